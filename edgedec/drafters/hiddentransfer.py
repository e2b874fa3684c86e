"""Drafts with pseudo states: the target's middle layers are given guesses of the states of tokens to come.

Hidden Transfer (Wu et al. 2024; read in third-party notes, there is no code: which layer, steps and data were not to be
found). At one layer a trained matrix for each token ahead makes a pseudo state of the last state there. The pseudo
states run through the other layers as rows that attend to the text and to each other, and the target's own head reads
them. They run in the call that verifies the draft which the call before made, so a guess costs a row of those layers.

    first layers   root ─ 5 ─ 8            the drafted tokens
    other layers   root ─ 5 ─ 8 ─ ~1 ─ ~2  with pseudo states of 8: W1 h(8), W2 h(8)

As in `prompt`, rows stand below the tokens where the text is likely to end up, and are never accepted. Training:
`train-heads --kind hidden-transfer`; layout: `models/drafts/hiddentransfer.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft, DrafterContext, DrafterFacts, PromptRows
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._networks.graphs import open_network
from edgedec.drafters._options import TrainedLength
from edgedec.drafters._slices.stack import block_costs, require_slices
from edgedec.drafters.prompt import PromptDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Call, Outputs, Rows

DRAFT = "hiddentransfer"

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="Hidden Transfer")


def make(
    host: DrafterContext,
    length: TrainedLength = 0,
    rows: Annotated[int, Opt("Rows of pseudo states in a call.", 1)] = 24,
) -> HiddenTransfer:
    facts = facts_of(host, DRAFT)
    require_slices(DRAFT, host)
    if not host.runtime.capabilities.trees:
        raise UsageError(f"drafter {DRAFT}: the runtime {host.runtime.name} runs no rows below a tree")
    if length > facts.depth:
        raise UsageError(f"drafter {DRAFT}: length={length}: the bundle has {facts.depth} pseudo states")
    return HiddenTransfer(host, facts, length or facts.depth, rows)


class HiddenTransfer(PromptDrafter):
    def __init__(self, host: DrafterContext, facts: DraftFacts, depth: int, rows: int) -> None:
        super().__init__(host, np.zeros((depth, 0), np.float32), rows)
        threads, spec = host.runtime.capabilities.threads, host.runtime.spec
        files = [facts.networks[f"ahead_{i}"] for i in range(1, depth + 1)]
        self._ahead = [open_network(host.bundle, file, threads) for file in files]
        self._block, self._n_blocks = facts.features[0], spec.n_blocks
        self._share = sum(block_costs(spec)[0][: self._block + 1])

    def _with_rows(
        self, context: Context, draft: Draft, lengths: Mapping[int, int], parents: Sequence[int]
    ) -> Generator[Request, Completed, Draft]:
        """Run the first layers on text and draft, and add pseudo states of the chosen tokens' states there."""
        pending, first = context.pending(), self._block + 1
        rows = Rows.chain(pending, context.cache.length)
        root = len(rows) - 1
        if draft.tokens:
            rows = rows.extend(draft.tokens, [root + 1 + parent for parent in draft.parents])
            rows = replace(rows, first=0)
        done = yield Call(rows, context.cache, range(first), None, Outputs(hidden=(self._block,)), context.adapter)
        states = done.result.hidden[self._block]
        own = [
            self._ahead[i].run(states[root + 1 + node : root + 2 + node])[0]
            for node, length in lengths.items()
            for i in range(length)
        ]
        below = PromptRows(parents, np.concatenate([states, *own]))
        return replace(draft, blocks=range(first, self._n_blocks), hidden=states, done=self._share, prompts=below)
