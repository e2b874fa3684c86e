"""The loss of cache policies: tasks with known answers, at several budgets, compared with the whole cache.

story    perplexity of the last part of a long story, given what came before
copy     a story is to be said again, word for word: the share of its tokens that were
needle   one sentence in a long story says a number; the share of its digits that are found at the end
pairs    a list of names and numbers; the share of the digits of one of them, asked for at the end
keys     the same of as many pairs as fill the context (256 at most)

The stories are the model's own (or those of a text of the user's). Copying is the hardest: every token of the prompt
is needed once. A small model cannot do every task with its whole cache either; what it can do is its own line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from edgedec.bench.prompts import read_prompts
from edgedec.policies import FAMILY, FULL
from edgedec.sampling import Sampling

if TYPE_CHECKING:
    from edgedec.model import Model

TASKS = ("story", "copy", "needle", "pairs", "keys")
# Of a story so many tokens are scored; a copied one has so many; lists have so many pairs.
_SCORED, _COPIED, _PAIRS, _DIGITS = 96, 160, 12, 4
_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown", "old", "new", "big", "little")
_MOST_KEYS, _KEY_TOKENS = 256, 12
_THINGS = ("boat", "bear", "kite", "hat", "ball", "cake", "drum", "bird", "tree", "cup", "door", "bell", "cart", "frog")


@dataclass(frozen=True)
class Case:
    """A task's prompt, and the tokens that should follow it."""

    task: str
    ids: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass
class QualityResult:
    """The mean over cases, by task, policy and budget; "full", and policies that have none, are under the budget 1."""

    values: dict[str, dict[str, dict[float, float]]] = field(default_factory=dict)
    interrupted: bool = False

    def report(self) -> dict[str, dict[str, dict[str, float]]]:
        """task -> policy -> budget."""
        return {
            task: {name: {f"{b:g}": round(v, 4) for b, v in found.items()} for name, found in policies.items()}
            for task, policies in self.values.items()
        }


class QualityBench:
    """One model. text: long, for the stories; by default its own. context: tokens of a case at most."""

    def __init__(self, model: Model, tasks: Sequence[str], context: int, limit: int, text: str = "") -> None:
        self.model = model
        room = min(context, model.spec.context_length)
        self.cases = [case for task in tasks for case in _CASES[task](Stories(model, text, room), limit)]

    def measure(
        self,
        names: Sequence[str],
        budgets: Sequence[float],
        progress: Callable[[int, int], None],
    ) -> QualityResult:
        """Every policy at every budget, the whole cache first; one without a budget as it is."""
        runs = [(FULL, 1.0, FULL)]
        runs += [(name, budget, words) for words, (name, budget) in at_budgets(names, budgets).items()]
        result, done, total = QualityResult(), 0, len(runs) * len(self.cases)
        try:
            for name, budget, words in runs:
                found: dict[str, list[float]] = {}
                for case in self.cases:
                    found.setdefault(case.task, []).append(self._value(case, words))
                    progress(done := done + 1, total)
                for task, values in found.items():
                    mean = exp(float(np.mean(values))) if task == "story" else float(np.mean(values))
                    result.values.setdefault(task, {}).setdefault(name, {})[budget] = mean
        except KeyboardInterrupt:
            result.interrupted = True
        return result

    def _value(self, case: Case, words: str) -> float:
        """Nats a token of a story; of other tasks the share that was right."""
        session = self.model.session(speculate="off", cache=words)
        if case.task == "story":
            session.append(case.ids)
            return -float(np.mean(session.score(case.wanted)))
        room = min(len(case.wanted) + 4, session.capacity - len(case.ids))
        said = [int(token) for token in session.tokens(list(case.ids), max_tokens=room)]
        return alike(said, case.wanted) if case.task == "copy" else right(said, case.wanted)


def budget_option(name: str) -> str | None:
    """The option of a policy that is its budget; None if it has none, or if it is given in these words."""
    kind, _, given = name.partition(":")
    if kind == FULL:
        return None
    known = FAMILY.facts(kind).budget
    return known if known in FAMILY.options(kind) and f"{known}=" not in given else None


def worded(name: str, budget: float) -> str:
    """The policy `name` at a budget, its other options as given.

    worded("snapkv:window=16", 0.2) -> "snapkv:window=16,budget=0.2"
    """
    return f"{name}{',' if ':' in name else ':'}{budget_option(name)}={budget:g}"


def at_budgets(names: Sequence[str], budgets: Sequence[float]) -> dict[str, tuple[str, float]]:
    """Every policy at every budget, one without a budget as it is: its words -> (name, budget).

    at_budgets(["snapkv", "anchor"], [0.1, 0.5]) -> {"snapkv:budget=0.1": ("snapkv", 0.1), …, "anchor": ("anchor", 1.0)}
    """
    found: dict[str, tuple[str, float]] = {}
    for name in names:
        if budget_option(name) is None:
            found[name] = name, 1.0
        else:
            found |= {worded(name, budget): (name, budget) for budget in budgets}
    return found


def alike(said: Sequence[int], wanted: Sequence[int]) -> float:
    """The share of the wanted tokens that were generated, in their order."""
    blocks = SequenceMatcher(None, said, wanted, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(len(wanted), 1)


def right(said: Sequence[int], wanted: Sequence[int]) -> float:
    """The share of the wanted tokens up to the first that is another one.

    right([4, 5, 1], [4, 5, 6, 7]) -> 0.5
    """
    same = [one == other for one, other in zip(said, wanted, strict=False)]
    return (same.index(False) if False in same else len(same)) / max(len(wanted), 1)


class Stories:
    """Long texts for a model: parts of a given text, or texts that the model generates."""

    def __init__(self, model: Model, text: str, room: int) -> None:
        self.model, self.room = model, room
        self.encode = model.tokenizer.encode
        self._given = self.encode(text) if text else []

    def story(self, i: int, n: int) -> list[int]:
        """The i-th story, `n` tokens of it."""
        if self._given:
            at = (i * n) % max(len(self._given) - n, 1)
            return self._given[at : at + n]
        begins = [prompt.turns[0] for prompt in read_prompts(None) if prompt.category == "story"]
        ids, session = self.encode(begins[i % len(begins)]), self.model.session(speculate="off", cache=FULL)
        sampling = Sampling(temperature=0.7, top_p=0.9, seed=i)
        told = session.tokens(ids[:n], max_tokens=max(n - len(ids), 1), ignore_eos=True, sampling=sampling)
        return [*ids, *map(int, told)][:n]

    def plain(self, text: str) -> list[int]:
        """Tokens of a text that stands in the middle of another one."""
        return self.encode(text, around=False)


def _story(stories: Stories, limit: int) -> list[Case]:
    n = stories.room - 8
    texts = [stories.story(i, n) for i in range(limit)]
    return [Case("story", tuple(ids[:-_SCORED]), tuple(ids[-_SCORED:])) for ids in texts]


def _copy(stories: Stories, limit: int) -> list[Case]:
    decode, found = stories.model.tokenizer.decode, []
    for i in range(limit):
        text = decode(stories.story(i, min(_COPIED, stories.room // 3))).strip()
        ids = stories.encode(f"Say it again.\n\n{text}\n\nAgain:")
        found.append(Case("copy", tuple(ids), tuple(stories.plain(f" {text}"))))
    return found


def _needle(stories: Stories, limit: int) -> list[Case]:
    rng, found = np.random.default_rng(7), []
    for i in range(limit):
        thing, code = _THINGS[i % len(_THINGS)], _number(rng)
        said, asked = f" The secret number of the {thing} is {code}.", f" The secret number of the {thing} is"
        filler = stories.story(i, stories.room - 80)
        at = int(len(filler) * (i + 0.5) / limit)
        ids = [*filler[:at], *stories.plain(said), *filler[at:], *stories.plain(asked)]
        found.append(Case("needle", tuple(ids), tuple(stories.plain(f" {code}"))))
    return found


def _pairs(stories: Stories, limit: int) -> list[Case]:
    rng, found = np.random.default_rng(8), []
    for i in range(limit):
        codes = {thing: _number(rng) for thing in _THINGS[:_PAIRS]}
        text = "".join(f" The {thing} is {code}." for thing, code in codes.items())
        asked = _THINGS[int(rng.integers(_PAIRS))]
        filler = stories.story(i, max(stories.room // 2, 16))
        ids = [*filler[:8], *stories.plain(text), *filler[8:], *stories.plain(f" The {asked} is")]
        found.append(Case("pairs", tuple(ids[-stories.room + 8 :]), tuple(stories.plain(f" {codes[asked]}"))))
    return found


def _keys(stories: Stories, limit: int) -> list[Case]:
    rng, found = np.random.default_rng(9), []
    names = [f"{colour} {thing}" for colour in _COLOURS for thing in _THINGS]
    for i in range(limit):
        n = max(2, min(_MOST_KEYS, len(names), (stories.room - 32) // _KEY_TOKENS))
        codes = {str(name): _number(rng) for name in rng.permutation(names)[:n]}
        text = "".join(f" The {name} is {code}." for name, code in codes.items())
        asked = list(codes)[int(n * (i + 0.5) / limit)]
        ids = [*stories.encode(text), *stories.plain(f" The {asked} is")]
        found.append(Case("keys", tuple(ids[-stories.room + 8 :]), tuple(stories.plain(f" {codes[asked]}"))))
    return found


def _number(rng: np.random.Generator) -> str:
    return str(rng.integers(10 ** (_DIGITS - 1), 10**_DIGITS))


_CASES: dict[str, Callable[[Stories, int], list[Case]]] = {
    "story": _story,
    "copy": _copy,
    "needle": _needle,
    "pairs": _pairs,
    "keys": _keys,
}
