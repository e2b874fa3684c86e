"""Scorers: the worth of texts, by their likelihood, by a function of the program, or by a command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol, TypeVar

from edgedec.decoding.messages import Waiting
from edgedec.errors import UsageError
from edgedec.search.branch import Branch
from edgedec.search.command import CommandScorer
from edgedec.search.extending import add_ends
from edgedec.search.host import GivenScorer, SearchHost
from edgedec.search.room import Room

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """The worth of a text, and what is said about it for a next attempt."""

    value: float
    feedback: str = ""


class Scorer(Protocol):
    """asks: whether it is given texts, each a call of it; otherwise it reads log-probabilities."""

    asks: bool

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        """The worth of a text after a prompt. Runs in a thread of its own where other texts share the batch."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class ByLikelihood:
    """The sum of a text's log-probabilities, or their mean."""

    asks = False

    def __init__(self, mean: bool) -> None:
        self._mean = mean

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        return Score(branch.logp / max(branch.length, 1) if self._mean else branch.logp)

    def close(self) -> None:
        pass


class ByFunction:
    """A function of (prompt, text), from Python."""

    asks = True

    def __init__(self, function: GivenScorer) -> None:
        self._function = function

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        try:
            return Score(checked(self._function(prompt, text), "the scorer"))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"the scorer raised {type(error).__name__}: {_line(error)}") from error

    def close(self) -> None:
        pass


class ByCommand:
    """A program that reads a line of JSON for each text and writes a line."""

    asks = True

    def __init__(self, command: str, timeout: float) -> None:
        self._command = CommandScorer(command, timeout)

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        said = self._command.ask({"prompt": prompt, "text": text})
        value, feedback = (said.get("score"), said.get("feedback", "")) if isinstance(said, dict) else (said, "")
        return Score(checked(value, self._command.name), str(feedback))

    def close(self) -> None:
        self._command.close()


def scorer_of(host: SearchHost, by: str, command: str, timeout: float) -> Scorer:
    """The scorer that options name: the command, else the function that the generation was given, else likelihood."""
    if command and host.config.scorer is not None:
        raise UsageError("--search: a scorer and command=… are two scorers; give one")
    if command:
        return ByCommand(command, timeout)
    if host.config.scorer is not None:
        return ByFunction(host.config.scorer)
    return ByLikelihood(by == "mean")


def needed(host: SearchHost, name: str, command: str, timeout: float) -> Scorer:
    """The scorer of a search that cannot do without."""
    if not command and host.config.scorer is None:
        raise UsageError(f"--search {name}: needs a scorer: command=…, or scorer= in Python")
    return scorer_of(host, "", command, timeout)


def checked(value: object, who: str) -> float:
    """A scorer's number; UsageError for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value):  # type: ignore[arg-type]
        raise UsageError(f"{who}: gave {value!r:.60} as a score; must be a finite number")
    return float(value)  # type: ignore[arg-type]


def scored(room: Room, branches: Sequence[Branch], scorer: Scorer) -> Generator[Any, Any, list[Score]]:
    """Set the value of each branch."""
    found = list[Score]()
    room.uses(scorer.close)
    if not scorer.asks:
        yield from add_ends(room, branches)
    for branch in branches:
        if scorer.asks:
            room.counts.scorer_calls += 1
            score = yield from beside(room, lambda branch=branch: _asked(room, scorer, branch))  # type: ignore[misc]
        else:
            score = scorer.score("", "", branch)
        branch.value = score.value
        found.append(score)
    return found


def _asked(room: Room, scorer: Scorer, branch: Branch) -> Score:
    return scorer.score(room.prompt(), room.text(branch), branch)


def beside(room: Room, work: Callable[[], T]) -> Generator[Waiting, None, T]:
    """What `work` returns; in a batch, a thread does it while other texts run."""
    if not room.context.hooks.parks:
        return work()
    future = Future[T]()
    # A thread that is given up when the search is cancelled: nothing waits for a function that does not return.
    threading.Thread(target=_work, args=(future, work), name="edgedec-scorer", daemon=True).start()
    while not future.done():
        yield Waiting(future.done)
    return future.result()


def _work(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
