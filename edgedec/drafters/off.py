"""Drafts nothing: one token a call."""

from __future__ import annotations

import sys

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext

_NOTHING = Draft(rest=sys.maxsize)


def make(host: DrafterContext) -> Off:
    return Off()


class Off(BaseDrafter):
    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return _NOTHING
