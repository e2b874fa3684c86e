"""Searches on the same tasks in turns: how often the answer is right, with an interval, and what each took.

A search is worth its tokens only if its interval lies above that of another at as many tokens: so tokens, forwards and
scorer calls stand beside the share. The scorer of `--scorer form` knows the form of an answer, not the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from time import perf_counter
from typing import Any

from edgedec.bench.diffusion import AnsweredTask
from edgedec.bench.list_tasks import NAMES
from edgedec.bench.search_budgets import at_tokens
from edgedec.diffusion.words import OFF
from edgedec.model import Model
from edgedec.sampling import Sampling

GREEDY, SAMPLED, SEED = "greedy", "sampled", 5
# Standard deviations of a 95% interval.
_Z = 1.96
# Tasks by which the tokens of a search are measured.
_FEW = 6


@dataclass
class SearchCost:
    """What a way to decode took for all tasks. tokens: drawn, those of dropped texts included."""

    texts: int = 0
    right: int = 0
    tokens: int = 0
    forwards: int = 0
    scorer_calls: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        low, high = wilson(self.right, self.texts)
        per_text = {f"{name}_per_text": round(vars(self)[name] / max(self.texts, 1), 2) for name in _EACH}
        return {**vars(self), "share": round(self.right / max(self.texts, 1), 4), "interval": [low, high], **per_text}


_EACH = ("tokens", "forwards", "scorer_calls")


def wilson(right: int, texts: int) -> tuple[float, float]:
    """The 95% interval of a share, as Wilson computes it.

    >>> wilson(5, 10), wilson(0, 10)
    ((0.2366, 0.7634), (0.0, 0.2775))
    """
    if not texts:
        return 0.0, 1.0
    p, n, z = right / texts, texts, _Z
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return round(max(low, 0.0), 4), round(min(high, 1.0), 4)


def form(prompt: str, text: str) -> float:
    """The share of a text's words that are names, none twice: the form of an answer about a list, not the answer."""
    told = [word for word in re.split(r",\s*", text.strip()) if word]
    known = set(told) & set(NAMES)
    return len(known) / len(told) if told else 0.0


def compare(
    model: Model,
    ways: Sequence[str],
    tasks: Sequence[AnsweredTask],
    longest: int,
    temperature: float,
    scored: bool,
    progress: Callable[[int, int], None],
) -> dict[str, SearchCost]:
    """{way: cost}; each task is answered in every way before the next."""
    found = {way: SearchCost() for way in ways}
    for done, task in enumerate(tasks):
        progress(done, len(tasks))
        for way, cost in found.items():
            _add(cost, model, way, task, _options(way, longest, temperature, scored, SEED + done))
    progress(len(tasks), len(tasks))
    return found


def at_equal_tokens(
    model: Model, ways: Sequence[str], tasks: Sequence[AnsweredTask], longest: int, temperature: float, tokens: int
) -> list[str]:
    """The ways, the searches among them with as many texts as draw about `tokens` tokens for each of the first few
    tasks."""
    few = tasks[:_FEW]

    @cache
    def measured(way: str) -> float:
        cost = SearchCost()
        for i, task in enumerate(few):
            _add(cost, model, way, task, _options(way, longest, temperature, False, SEED + i))
        return cost.tokens / max(cost.texts, 1)

    return [way if way in (GREEDY, SAMPLED) else at_tokens(way, tokens, measured) for way in ways]


def _options(way: str, longest: int, temperature: float, scored: bool, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": longest, "sampling": Sampling(temperature=temperature, seed=seed)}
    if way == GREEDY:
        options["sampling"] = Sampling(temperature=0)
    elif way != SAMPLED:
        options |= {"search": way, "scorer": form if scored else None}
    return options


def _add(cost: SearchCost, model: Model, way: str, task: AnsweredTask, options: Mapping[str, Any]) -> None:
    session = model.session(diffusion="" if model.bundle.manifest.diffusion is None else OFF, speculate="off")
    start = perf_counter()
    text = "".join(session.generate(task.prompt, **options))
    cost.seconds += perf_counter() - start
    report = session.search_report()
    cost.texts, cost.right = cost.texts + 1, cost.right + task.right(text)
    cost.tokens += report.get("tokens", session.stats.generated)
    cost.forwards += report.get("forwards", session.stats.calls)
    cost.scorer_calls += report.get("scorer_calls", 0)
