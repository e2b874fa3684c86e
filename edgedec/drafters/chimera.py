"""Drafts with a Chimera head: one layer over the target's states and the trigrams of the tokens, a head for each depth.

Chimera (Zeng et al. 2024; read: the authors' code, kafkayu/Chimera, `Chimera_model.py`, and the abstract). Each guess
becomes a trigram with the two tokens before it; the layer's output there takes the place of the state that the target
will compute, for the guesses that follow. Head i reads the target's last state beside the latest output.

Differences: the release masks the drafted states by an error in its mask, here they are seen, as its comments say;
its tree is a fixed table of 25 paths, here the likeliest paths are drafted. Layout: `models/drafts/chimera.py`.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft, DrafterContext, DrafterFacts
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._heads.state_drafter import StateDrafter
from edgedec.drafters._heads.trigram_reader import TrigramReader
from edgedec.drafters._options import Beam, TrainedLength
from edgedec.runtime import Outputs

DRAFT = "chimera"

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="Chimera")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 4) -> Chimera:
    return Chimera(host, length, beam)


class Chimera(StateDrafter):
    reader = TrigramReader

    def __init__(self, host: DrafterContext, depth: int, beam: int) -> None:
        facts = facts_of(host, DRAFT)
        super().__init__(host, facts)
        assert isinstance(self._reader, TrigramReader)
        self._grams, self._beam, self._depth = self._reader, beam, min(depth or facts.depth, facts.depth)
        self._heads = [self._grams.head.networks[f"depth_{i}"] for i in range(1, self._depth + 1)]
        self._outputs = Outputs(hidden=(self._grams.last,))

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        reader, levels, ids = self._grams, Levels(nodes, self._beam, least), context.ids
        result = yield from reader.read(self._seen.take(), ids, self._outputs, self._beam * self._depth)
        if not result.hidden:
            return Draft()
        states, rows, ends = result.hidden[reader.last][-1:], [-1], [(ids[-2], ids[-1])]
        for depth, head in enumerate(self._heads, 1):
            known = np.repeat(reader.last_state, len(states), axis=0)
            found, logprobs = head.run(np.concatenate([known, states], axis=1))
            levels.add(found.tolist(), np.exp(logprobs).tolist())
            if not levels.frontier or depth == len(self._heads):
                break
            at = levels.rows
            grams = [(*ends[row], token) for row, token in zip(at, levels.tokens, strict=True)]
            parents, ends = [rows[row] for row in at], [(gram[1], gram[2]) for gram in grams]
            states, rows = yield from reader.below(grams, parents, states[at], self._outputs)
        reader.end()
        return levels.draft()
