"""Rounds of attempts, each shown what was said of the one before: the loop of Self-Refine (Madaan et al.,
arXiv:2303.17651), with a judge of the caller's in place of the model's own feedback; the prompt's words are ours.

`--search refine` (IAD) is the same with several texts a round, inside one search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgedec.errors import UsageError
from edgedec.prompting.asking import Ask

Judge = Callable[[str], tuple[float, str]]
AGAIN = "{task}\n\nAn attempt:\n{text}\n\nWhat is wrong with it: {said}\n\nA better one:\n"


class Attempt(NamedTuple):
    """A text, its score, and what the judge said of it."""

    text: str
    score: float
    said: str = ""


def improved(ask: Ask, task: str, judge: Judge, rounds: int = 3, enough: float = 1.0) -> Sequence[Attempt]:
    """The attempts, the best first, the earlier of equals. judge(text) gives a score and what is wrong. Each round is
    shown the best so far; a score of `enough` ends them."""
    if rounds < 1:
        raise UsageError(f"rounds {rounds}: must be 1 or more")
    found = list[Attempt]()
    for _ in range(rounds):
        best = max(found, key=lambda one: one.score, default=None)
        text = ask(task if best is None else AGAIN.format(task=task, text=best.text, said=best.said))
        found.append(Attempt(text, *judge(text)))
        if found[-1].score >= enough:
            break
    return sorted(found, key=lambda one: -one.score)
