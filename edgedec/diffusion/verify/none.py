"""Every pass fills what its schedule chooses, and nothing is tried besides."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from edgedec.diffusion.host import DiffusionHost, MethodFacts

if TYPE_CHECKING:
    from edgedec.diffusion.loop import DiffusionText

FACTS = MethodFacts(exact=True)


def make(host: DiffusionHost) -> PassByPass:
    return PassByPass()


class PassByPass:
    def passes(self, text: DiffusionText) -> Generator[Any, Any, None]:
        while text.open:
            lines = yield from text.run()
            yield from text.fill(lines)
            yield from text.deliver()
