"""Tasks on lists of names whose answers can be checked: what can be written in any order at once, and what cannot.

ParallelBench's ten operations of a waiting line (github.com/furiosa-ai/ParallelBench: names, 3 to 6 items and
what is right are its own, the wording is ours, as nano learned it), and three by name instead of by place. A copy, a
replacement or a removal fixes every place by the question. A random order fixes none until others are known: written at
once, from one prediction, three names are an order in 6 of 27 cases.
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
    found = rng.sample(names, len(names))
    while found == names:
        found = rng.sample(names, len(names))
    return "Shuffle the list.", found


def _remove(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    gone = rng.choice(names)
    return f"Take {gone} out of the list.", [name for name in names if name != gone]


def _replace(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    old, new = rng.choice(names), _new(names, rng, known)
    return f"Write {new} instead of {old} in the list.", [new if name == old else name for name in names]


def _insert(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    new, at = _new(names, rng, known), rng.randrange(len(names))
    return f"Put {new} before {names[at]} in the list.", [*names[:at], new, *names[at:]]


def _insert_index(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    new, at = _new(names, rng, known), rng.randrange(len(names) + 1)
    return f"Put {new} in as name {at + 1} of the list.", [*names[:at], new, *names[at:]]


def _remove_index(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    at = rng.randrange(len(names))
    return f"Take name {at + 1} out of the list.", [*names[:at], *names[at + 1 :]]


def _replace_index(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    at, new = rng.randrange(len(names)), _new(names, rng, known)
    return f"Write {new} instead of name {at + 1} of the list.", [*names[:at], new, *names[at + 1 :]]


def _insert_random(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    new, at = _new(names, rng, known), rng.randrange(len(names) + 1)
    return f"Put {new} anywhere in the list.", [*names[:at], new, *names[at:]]


def _remove_random(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    at = rng.randrange(len(names))
    return "Take any name out of the list.", [*names[:at], *names[at + 1 :]]


def _replace_random(names: list[str], rng: random.Random, known: Sequence[str]) -> tuple[str, list[str]]:
    at, new = rng.randrange(len(names)), _new(names, rng, known)
    return f"Write {new} for any name of the list.", [new if i == at else name for i, name in enumerate(names)]


# ParallelBench's names, in its order.
WAITING_LINE: dict[str, Operation] = {
    "copy": _copy, "insert_index": _insert_index, "insert_random": _insert_random, "remove_index": _remove_index,
    "remove_random": _remove_random, "replace_index": _replace_index, "replace_random": _replace_random,
    "reverse": _reverse, "shuffle": _shuffle, "sort": _sort,
}  # fmt: skip
OPERATIONS: dict[str, Operation] = WAITING_LINE | {"insert": _insert, "remove": _remove, "replace": _replace}


@dataclass(frozen=True)
class ListTask:
    """A question about a list. answer: one that is right; of `shuffle` and the random places there are others."""

    kind: str
    prompt: str
    given: tuple[str, ...]
    answer: tuple[str, ...]

    def right(self, text: str) -> bool:
        """Whether a text answers the question, as ParallelBench counts it."""
        told, given = [name.strip() for name in text.strip().split(", ")], list(self.given)
        if self.kind == "shuffle":
            return sorted(told) == sorted(given) and told != given
        if not self.kind.endswith("_random"):
            return told == list(self.answer)
        new = [name for name in self.answer if name not in given]
        return told in _free(given, *new) if self.kind != "insert_random" else _without(told, new[0]) == given


def _free(given: list[str], new: str | None = None) -> list[list[str]]:
    """The list with a new name in any place, or without any of its names."""
    put = [] if new is None else [new]
    return [[*given[:i], *put, *given[i + 1 :]] for i in range(len(given))]


def _without(names: list[str], one: str) -> list[str]:
    return [name for i, name in enumerate(names) if i != names.index(one)] if one in names else []


def list_task(kind: str, rng: random.Random, known: Sequence[str] = NAMES, most: int = 6) -> ListTask:
    """A question about 3 to `most` names."""
    names = rng.sample(list(known), rng.randint(3, most))
    order, answer = OPERATIONS[kind](names, rng, known)
    return ListTask(kind, f"{order}\n\n{written(names)}{MARK}", tuple(names), tuple(answer))
