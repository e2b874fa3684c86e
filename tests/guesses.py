"""Guesses of drafters whose chances are known, and a text for them: tests of what a governor decides."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter, Draft
from edgedec.runtime import Call, Rows
from edgedec.speculation.record import DrafterRecord
from edgedec.testing.fakes import FakeRuntime
from edgedec.trees.calibration import BINS, Calibration
from edgedec.trees.merge import TreeMerger

CLAIMED = [k / BINS for k in range(BINS)]  # claims of 1/4, 1/2 and 3/4 are taken as they are


class Proposes(BaseDrafter):
    """Makes the same proposal at each call; nodes: how many it was allowed."""

    def __init__(self, draft: Draft = Draft()) -> None:  # noqa: B008
        self.draft, self.nodes = draft, list[int]()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.nodes.append(nodes)
        return self.draft


def member(draft: Draft = Draft(), name: str = "it") -> DrafterRecord:  # noqa: B008
    return DrafterRecord(name, Proposes(draft), Calibration())


def merged(*drafts: Draft) -> TreeMerger:
    merger = TreeMerger()
    for number, draft in enumerate(drafts):
        merger.add(number, draft, CLAIMED)
    merger.best_first()
    return merger


def context(ids: Sequence[int] = (1, 2, 3, 4, 5), cached: int = 2) -> Context:
    runtime = FakeRuntime()
    found = Context(list(ids), 3, runtime.new_cache(40))
    runtime.forward([Call(Rows.chain(ids[:cached], 0), found.cache)])
    found.cache.commit(range(cached))
    return found


TREE = Draft([7, 8, 9], [-1, 0, -1], [0.5, 0.5, 0.75])  # whole paths: 0.5, 0.25, 0.75
