"""Tasks on lists of names whose answers can be checked: what can be written in any order at once, and what cannot.

ParallelBench's operations. A copy, a replacement or a removal fixes every place by the question. A random order fixes
none until others are known: written at once, from one prediction, three names are an order in 6 of 27 cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAMES = (
    *("Amy", "Anna", "Ben", "Bob", "Daisy", "Ella", "Emma", "Fred", "Jack", "Jane", "Jim", "Kate"),
    *("Leo", "Lily", "Lucy", "Max", "Mia", "Nina", "Sam", "Sara", "Sue", "Tim", "Tom", "Zoe"),
)
# After a question and its list.
MARK = "\n\nList:\n\n"
# A list, numbers drawn, names that may come in -> the question, and the list that answers it.
Operation = Callable[[list[str], random.Random, Sequence[str]], tuple[str, list[str]]]


def written(names: Sequence[str]) -> str:
    return ", ".join(names)


def _new(names: list[str], rng: random.Random, known: Sequence[str]) -> str:
    return rng.choice([name for name in known if name not in names])


def _copy(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    return "Copy the list.", names


def _reverse(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    return "Reverse the list.", names[::-1]


def _sort(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    return "Sort the list.", sorted(names)


def _shuffle(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    return "Shuffle the list.", rng.sample(names, len(names))


def _remove(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    gone = rng.choice(names)
    return f"Take {gone} out of the list.", [name for name in names if name != gone]


def _replace(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    old, new = rng.choice(names), _new(names, rng, known)
    return f"Write {new} instead of {old} in the list.", [new if name == old else name for name in names]


def _insert(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    new, at = _new(names, rng, known), rng.randrange(len(names))
    return f"Put {new} before {names[at]} in the list.", [*names[:at], new, *names[at:]]


def _replace_any(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    at, new = rng.randrange(len(names)), _new(names, rng, known)
    return f"Write {new} for any name of the list.", [new if i == at else name for i, name in enumerate(names)]


OPERATIONS: dict[str, Operation] = {
    "copy": _copy, "reverse": _reverse, "sort": _sort, "shuffle": _shuffle, "remove": _remove, "replace": _replace,
    "insert": _insert, "replace_any": _replace_any,
}  # fmt: skip


@dataclass(frozen=True)
class ListTask:
    """A question about a list. answer: one that is right; of `shuffle` and `replace_any` there are others."""

    kind: str
    prompt: str
    given: tuple[str, ...]
    answer: tuple[str, ...]

    def right(self, text: str) -> bool:
        """Whether a text answers the question."""
        told = tuple(text.strip().split(", "))
        if self.kind == "shuffle":
            return sorted(told) == sorted(self.given)
        if self.kind == "replace_any":
            (new,) = set(self.answer) - set(self.given)
            changed = [i for i, (old, now) in enumerate(zip(self.given, told, strict=False)) if old != now]
            return len(told) == len(self.given) and len(changed) == 1 and told[changed[0]] == new
        return told == self.answer


def list_task(kind: str, rng: random.Random, known: Sequence[str] = NAMES, most: int = 6) -> ListTask:
    """A question about 3 to `most` names."""
    names = rng.sample(list(known), rng.randint(3, most))
    order, answer = OPERATIONS[kind](names, rng, known)
    return ListTask(kind, f"{order}\n\n{written(names)}{MARK}", tuple(names), tuple(answer))
