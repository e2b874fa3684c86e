"""Plans before texts: several plans that pick units of a source, a text after each, and the best of these texts.

After Adams et al. (EDU plans, arXiv:2305.17779), from the authors' code (github griff4692/edu-sum): a plan copies units
(elementary discourse units) of the source by their numbers, 16 of them by beam search, 3 to 20 units, length penalty 1;
one abstract is written for each plan with the plan's units marked in the source; a trained ranker (BRIO) picks one.
There, plans and abstracts are models that were trained for it. Here both are prompts for one model, units are given (as
sentences), a unit comes once in a plan, and without a `scorer` the abstract of the largest mean log-probability wins:
these are our own choices, so measure before trusting it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from edgedec.constraints.automata.script import OneOf, ScriptConstraint
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.prompting.together import gen_each

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from edgedec.model import Model

PLAN = "{source}\n\nThe most important parts, by number:"
TEXT = "{source}\n\nIn short:"
MARKED = "<e> {0} </e>"


class Planned(NamedTuple):
    """A plan, by the numbers of its units from 0, the text that follows it, and its score."""

    plan: tuple[int, ...]
    text: str
    score: float


def planned(
    model: Model,
    units: Sequence[str],
    *,
    plans: int = 16,
    least: int = 3,
    most: int = 20,
    max_tokens: int = 128,
    stop: str | Sequence[str] = "\n",
    scorer: Callable[[str], float] | None = None,
    plan_prompt: str = PLAN,
    text_prompt: str = TEXT,
) -> list[Planned]:
    """A text for each of `plans` different plans, the best first. scorer(text): its worth; by default the mean
    log-probability of its tokens. The prompts have {source}."""
    found = _plans(model, units, plans, least, most, plan_prompt)
    sessions = []
    for plan in found:
        marked = " ".join(MARKED.format(unit) if i in plan else unit for i, unit in enumerate(units))
        sessions.append(model.session().extend(text_prompt.format(source=marked)))
    starts = [session.fork() for session in sessions]
    texts = gen_each(sessions, max_tokens, stop, temperature=0)
    scores = [scorer(text) if scorer else _mean(start.score(text)) for start, text in zip(starts, texts, strict=True)]
    return sorted(map(Planned, found, texts, scores), key=lambda one: -one.score)


def _mean(logps: Sequence[float]) -> float:
    return sum(logps) / len(logps) if logps else float("-inf")


def _plans(model: Model, units: Sequence[str], n: int, least: int, most: int, prompt: str) -> list[tuple[int, ...]]:
    """Different plans, the likeliest first."""
    most = min(most, len(units))
    if not 1 <= least <= most:
        raise UsageError(f"plans of {least} to {most} units: must be from 1 to {len(units)}, as many as there are")
    source = " ".join(f"[{i + 1}] {unit}" for i, unit in enumerate(units))
    constraint = ScriptConstraint("plan", PlanScript(len(units), least, most), token_tree(vocabulary(model)))
    longest = sum(sorted((len(_label(i)) for i in range(len(units))), reverse=True)[:most]) + 1
    found = model.session().search(
        f"beam:width={n}", prompt.format(source=source), max_tokens=longest, constraint=constraint
    )
    return list(dict.fromkeys(units_of(one.text) for one in found.texts))


def units_of(text: str) -> tuple[int, ...]:
    """The units that a plan's text names.

    >>> units_of(" [3] [1]")
    (2, 0)
    """
    return tuple(int(word.strip("[]")) - 1 for word in text.split())


def _label(unit: int) -> str:
    return f" [{unit + 1}]"


class PlanScript:
    """The script of plans: numbers of units, none twice, `least` to `most` of them."""

    first: tuple[int, ...] | str = ()

    def __init__(self, units: int, least: int, most: int) -> None:
        self._units, self._least, self._most = units, least, most

    def part(self, plan: tuple[int, ...] | str) -> OneOf | None:
        if isinstance(plan, str):
            return None
        return OneOf(_label(i) for i in range(self._units) if i not in plan)

    def then(self, plan: tuple[int, ...], choice: str) -> Iterable[Hashable]:
        """Further units while there may be more, the end once there may be none."""
        grown = (*plan, *units_of(choice))
        if len(grown) < self._most:
            yield grown
        if len(grown) >= self._least:
            yield "end"
