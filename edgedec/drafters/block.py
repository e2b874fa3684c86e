"""Lossless drafts of a diffusion model: masks below the verified tokens guess the tokens after the next one.

    root ── 5 ── 8 ── x          the draft, verified as any other: the text is that of plain decoding
                 └─ [M M M]      masks that see each other: what they say is drafted after x in the next call

Fast-dVLM's self-speculation and NBDiff's causal context: a model with causal context that was trained
both ways drafts a block in one pass and verifies it causally. Here both are one call, so drafts cost the rows of masks
and no call of their own. As in `prompt`, masks stand below the tokens where the text is likely to end up, as many as
pay. The bundle needs a section `diffusion` with causal context and shift; `--diffusion off` decodes it token by token.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Annotated

import numpy as np

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import Draft, DrafterContext, DrafterFacts, PromptRows
from edgedec.drafters.prompt import PromptDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = DrafterFacts(guides=True, paper="Fast-dVLM, NBDiff")


def make(
    host: DrafterContext,
    length: Annotated[int, Opt("Masks below a token; 0: a block less its first token.", 0, 256)] = 0,
    rows: Annotated[int, Opt("Rows of masks in a call.", 1)] = 24,
) -> BlockDrafter:
    facts, can = host.bundle.manifest.diffusion, host.runtime.capabilities
    if facts is None or facts.context != "causal" or not facts.shift:
        raise UsageError("drafter block: the bundle is no diffusion model with causal context and shift")
    if not can.trees or not can.groups:
        raise UsageError(f"drafter block: the runtime {host.runtime.name} runs no groups of rows below a tree")
    most = facts.block - 1
    if length > most or not most:
        raise UsageError(f"drafter block: length={length}: blocks of {facts.block} tokens have {most} masks")
    return BlockDrafter(host, facts, length or most, rows)


class BlockDrafter(PromptDrafter):
    def __init__(self, host: DrafterContext, facts: DiffusionFacts, depth: int, rows: int) -> None:
        super().__init__(host, np.zeros((depth, 0), np.float32), rows)
        self._mask = facts.mask

    def _with_rows(
        self, context: Context, draft: Draft, lengths: Mapping[int, int], parents: Sequence[int]
    ) -> Generator[Request, Completed, Draft]:
        """A group of masks below each of the chosen tokens."""
        groups = [group for group, length in enumerate(lengths.values()) for _ in range(length)]
        yield from ()  # it needs no call
        return draft.with_prompts(PromptRows(parents, tokens=[self._mask] * len(parents), groups=groups))

    def observe(self, step: StepResult) -> None:
        super().observe(step)
        # The mask is never a token of a text.
        self._levels = [[(token, p) for token, p in level if token != self._mask] for level in self._levels]
