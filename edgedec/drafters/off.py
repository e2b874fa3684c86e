"""Drafts nothing: one token a call."""

from __future__ import annotations

import sys
from typing import Any

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext


def make(host: DrafterContext) -> Off:
    return Off()


class Off(BaseDrafter):
    """code, why: the reason why nothing is drafted, and its text; empty if plain decoding was chosen."""

    def __init__(self, code: str = "", why: str = "") -> None:
        self._code, self._draft = code, Draft(why=why, rest=sys.maxsize - 1, unseen=True)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return self._draft

    def report(self) -> dict[str, Any]:
        """`why`: the reason of all calls; their number is the session's."""
        return {"why": self._code, "sizes": {}, "drafters": {}} if self._code else {}
