"""Models whose first tokens choose which rows of a text see each other (UniXcoder, arXiv:2203.03850)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgedec.errors import BundleCorrupt, UsageError
from edgedec.spec import ModelSpec, Output


@dataclass(frozen=True)
class ModeFacts:
    """One stack with three masks. encoder: the tokens before a text of which a vector is made, all rows of which see
    each other; source: those before a text whose rows, up to the next `end`, see each other, and after which one is
    generated; `end`: the token after either. The rows of any other text see what is before them. output: what becomes
    of the rows of the first."""

    encoder: tuple[int, ...]
    source: tuple[int, ...]
    end: int
    output: Output = field(default_factory=lambda: Output(normalize=True))

    def together(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a text see each other.

        source 0 5 2, end 2: [0, 5, 2, 7, 8, 2, 9] -> 6; [0, 6, 2, 7] -> 0
        """
        n = len(self.source)
        if tuple(ids[:n]) != self.source:
            return 0
        try:
            return ids.index(self.end, n) + 1
        except ValueError:
            raise UsageError(
                f"a source whose tokens see each other ends with token {self.end}, which this text of {len(ids)} lacks"
            ) from None

    def check(self, spec: ModelSpec, where: str) -> None:
        """BundleCorrupt for facts that do not fit the model."""
        where = f"{where}: modes"
        tokens = (*self.encoder, *self.source, self.end)
        if not self.encoder or not self.source or self.encoder == self.source:
            raise BundleCorrupt(f"{where}: the tokens before a text do not tell its modes apart")
        if not all(0 <= token < spec.vocab_size for token in tokens):
            raise BundleCorrupt(f"{where}: tokens outside the vocabulary of {spec.vocab_size}")
        if spec.output is not None or spec.recurrent:
            raise BundleCorrupt(f"{where}: belong to a decoder of attention")
        if self.output.kind != "vector" or self.output.dense or self.output.pool == "rows":
            raise BundleCorrupt(f"{where}.output: must be a vector of the rows, without layers")
