"""Drafts with a Falcon head, which guesses the tokens of a block together: two in one pass of the head.

Falcon (Gao et al. 2024; read: the authors' code, Bestpay-inc/Falcon, `models/cnets.py`, `models/choices.py` and
`train/glance.py`, and the abstract). The draft tree consists of blocks: a pass reads, for each chosen path, a block of
k tokens with the states that the block above gave them, whose rows see each other, and guesses the k tokens of the next
block independently of each other; so any guess of the block's first token may be followed by any of its second. The
authors' tree is one fixed table for k = 2; here the paths are the likeliest ones, as in the other trees.

Differences: the release's LSTM lacks `batch_first`, so that at a batch of one no row sees another one's memory; here it
runs along the text, and from a block to those below it, as the paper says. Layout: `models/drafts/falcon.py`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft, DrafterContext, DrafterFacts
from edgedec.drafters._heads.block_reader import BlockReader
from edgedec.drafters._heads.feature_tree import FeatureTree
from edgedec.drafters._heads.foreseen import Foreseen, Guesses, Likeliest
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.state_drafter import LEAST
from edgedec.drafters._options import Beam, Followers, TrainedLength
from edgedec.runtime import CallResult

DRAFT = "falcon"

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="Falcon")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 5, k: Followers = 8) -> Falcon:
    return Falcon(host, length, beam, k)


class Falcon(FeatureTree):
    reader = BlockReader

    def __init__(self, host: DrafterContext, depth: int, beam: int, k: int) -> None:
        super().__init__(host, DRAFT, depth, beam, k)
        assert isinstance(self._reader, BlockReader)
        self._blocks = self._reader

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        reader, size, levels = self._blocks, self._blocks.size, Levels(nodes, self._beam, least)
        sight = self._sight(context)
        result = yield from reader.read(self._seen.take(), context.ids, sight.outputs, self._beam * self._depth)
        if sight.guesses(result, 0) is None:
            return Draft()
        memory, above = reader.memory, [size - 1]  # the last row of each block
        for at in range(0, self._depth, size):
            chosen, blocks = _fill(levels, sight, result, at, min(size, self._depth - at), size)
            done = at + size >= self._depth or not levels.frontier
            if done or (least > LEAST and not self._pace.pays(levels.together)):
                break
            states = reader.state(result).reshape(len(above), size, -1)[chosen]
            parents = [above[block] for block in chosen]
            memory = memory[0][:, chosen], memory[1][:, chosen]
            result, memory = yield from reader.grow_blocks(blocks, parents, states, memory, sight.outputs)
            self._pace.add_level(reader.seconds)
            start = above[-1] + 1
            above = [start + i * size + size - 1 for i in range(len(blocks))]
        reader.end()
        return levels.draft()


def _fill(
    levels: Levels, sight: Likeliest | Foreseen, result: CallResult, at: int, count: int, size: int
) -> tuple[list[int], list[list[int]]]:
    """Add a block's levels -> of each node of the frontier then, the row's block that it comes from, and its tokens."""
    blocks, tokens = list(range(len(levels.frontier))), [list[int]() for _ in levels.frontier]
    for j in range(count):
        found = _guesses(sight, result, at + j, j, size)
        levels.add([found[0][b] for b in blocks], [found[1][b] for b in blocks])
        blocks = [blocks[row] for row in levels.rows]
        tokens = [[*tokens[row], token] for row, token in zip(levels.rows, levels.tokens, strict=True)]
        if not levels.frontier:
            break
    return blocks, tokens


def _guesses(sight: Likeliest | Foreseen, result: CallResult, level: int, j: int, size: int) -> Guesses:
    """What row j of each block guesses."""
    found = sight.guesses(_rows(result, j, size), level)
    assert found is not None
    return found


def _rows(result: CallResult, j: int, size: int) -> CallResult:
    """The outputs of row j of each block."""
    parts = {name: getattr(result, name) for name in ("ids", "scores", "logsum", "entropy", "logits")}
    return replace(result, **{name: part[j::size] for name, part in parts.items() if part is not None})
