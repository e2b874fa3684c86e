"""Texts that begin without drafters, on a clock of their own: for tests of when they are opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.decoding import host_time
from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter, Draft, State
from edgedec.speculation.bank import AUTO, Bank
from edgedec.speculation.deferred import Deferred, Openings
from edgedec.speculation.reasons import BANK

CREATE, PROPOSE, CALL = 0.5, 0.25, 1.0
REST = 32


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Drafts(BaseDrafter):
    """Takes PROPOSE seconds for each proposal."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked, self.known, self.resets, self.ends = clock, 0, "new", 0, 0

    def propose(self, context: Any, nodes: int, min_path_prob: float) -> Draft:
        self.asked += 1
        self.clock.now += PROPOSE
        return Draft.chain([7])

    def end(self, context: Any) -> None:
        self.ends += 1

    def reset(self) -> None:
        self.resets += 1

    def state(self) -> State:
        return {"known": np.array([1])}

    def restore(self, state: State) -> None:
        self.known = "restored"

    def inherit(self, other: Any) -> None:
        self.known = f"from {other.known}"

    def report(self) -> dict[str, Any]:
        return {"silent": 3, "calls": {BANK: 1, "waiting": 2}, "sizes": {}, "drafters": {}}


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(host_time, name, clock)


class World:
    """Texts that share a bank. A call without drafts takes CALL seconds, and creating drafters CREATE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: float = 0.0) -> None:
        self.clock = Clock()
        set_clock(monkeypatch, self.clock)
        self.bank = Bank(AUTO)
        self.openings = Openings(self.bank)
        for _ in range(2):  # their times become known
            self.text().propose(context(1), 4, 0.0)
        self.bank.open(CALL)
        self.bank.left, self.bank.lost = left, 0.0

    def text(self) -> Deferred:
        return Deferred(self.make, self.openings, ["copy", "eagle3"])

    def make(self) -> Drafts:
        self.clock.now += CREATE
        return Drafts(self.clock)


def context(length: int, others: int = 0) -> Any:
    return Context([0] * length, 1, SimpleNamespace(), concurrent=others)  # type: ignore[arg-type]  # no cache


def looks(text: Deferred, others: int = 0, length: int = 10, step: int = REST + 1) -> int:
    """How often it is asked until it is open."""
    for n in range(10_000):
        if text.opened:
            return n
        text.propose(context(length + n * step, others), 4, 0.0)
    raise AssertionError("never opened")
