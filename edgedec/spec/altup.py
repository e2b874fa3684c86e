"""Alternating updates (AltUp, arXiv:2301.13310; Gemma 3n): beside the state that blocks read and add to there are
`streams` of the same width, of which a layer computes one and predicts the others.

For the streams s_0 ..  of a row, the state x and m(x) = tanh(router (rms(x) * router_norm)):

    enter     s_0 = x, s_i = projection_i x as large as x
    predict   s_i += sum_k coefs[i, k](m(s_active)) s_k, x = s_active
    correct   s_i += (1 + coefs[i](m(x))) (x - s_active), x = s_active
    leave     x = the mean of s_0 and of all projection_i s_i as large as s_0

"As large" is by the root mean square, of which that of a projection counts as at least `LEAST`. Between enter and leave
the rows of hidden states that calls take and return are x and the streams side by side (`ModelSpec.width`): with that
all other blocks are what they are in any model, a slice of the stack needs nothing but such rows, and what reads the
last state of a row reads one of the usual width. Streams that no block of a call made are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, require_sizes
from edgedec.spec.lookup import Lookup

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec

# The least mean square of a projection.
LEAST = 1e-5


@dataclass(frozen=True)
class AltUp:
    """`active`: the stream that blocks read and change, of a block that predicts or corrects."""

    step: Literal["enter", "predict", "correct", "leave"]
    streams: int
    active: int = 0
    kind: Literal["altup"] = "altup"
    norm: ClassVar[Norm] = "none"
    post_norm: ClassVar[Norm] = "none"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    @property
    def routed(self) -> bool:
        """Whether it has a router."""
        return self.step in ("predict", "correct")

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of those of a block that enters or leaves."""
        return () if self.routed else tuple(f"projection_{i}" for i in range(1, self.streams))

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in). `coefs`: a row for each stream, or of a
        block that predicts for each stream and each that it is made of."""
        if not self.routed:
            return self.matrices(hidden)
        rows = self.streams ** (2 if self.step == "predict" else 1)
        return {"router_norm": (hidden,), "router": (self.streams, hidden), "coefs": (rows, self.streams)}

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized: a projection for each stream but the first."""
        return dict.fromkeys(self.projections, (hidden, hidden))

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"streams": self.streams}, least=2)
        require_sizes(where, {"active": self.active}, least=0)
        if self.active >= self.streams:
            raise BundleCorrupt(f"{where}.active: {self.active} of {self.streams} streams")


def check_streams(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for streams that are not entered first and left last, with predictions and corrections in turn, and
    for blocks that add to streams outside."""
    blocks = list(spec.altups.items())
    order = ["enter", *["predict", "correct"] * ((len(blocks) - 2) // 2), "leave"]
    if blocks and [block.step for _, block in blocks] != order:
        raise BundleCorrupt(f"{where}.layers: altup blocks that do not enter, predict and correct in turn, and leave")
    for b, block in blocks:
        if block.streams != blocks[0][1].streams:
            raise BundleCorrupt(f"{where}.blocks[{b}].streams: {block.streams}, not {blocks[0][1].streams}")
        if b > 0 and spec.blocks[b - 1].branch:
            raise BundleCorrupt(f"{where}.blocks[{b}]: an altup block beside another")
    for b in spec.lookups:
        lookup = spec.blocks[b]
        if isinstance(lookup, Lookup) and lookup.streams and spec.width(b) == spec.hidden_size:
            raise BundleCorrupt(f"{where}.blocks[{b}].streams: the state has none here")
