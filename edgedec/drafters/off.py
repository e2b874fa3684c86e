"""No drafting: the loop decodes one token a call."""

from __future__ import annotations

from edgedec.decoding.context import Context
from edgedec.drafters import Draft, Host, Plain


def make(host: Host) -> Off:
    return Off()


class Off(Plain):
    def propose(self, context: Context, nodes: int, floor: float) -> Draft:
        return Draft()
