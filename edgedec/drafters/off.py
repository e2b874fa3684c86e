"""No drafting: the loop decodes one token a call."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters import Draft


def make() -> Off:
    return Off()


class Off:
    def propose(self, ids: Sequence[int], budget: int) -> Draft:
        return Draft()

    def observe(self, ids: Sequence[int], accepted: int) -> None:
        pass

    def reset(self) -> None:
        pass
