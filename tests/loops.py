"""The decoding loop of one text on a runtime of its own, for tests that need no session."""

from __future__ import annotations

from collections.abc import Generator

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.loop import StepTrace, decode_loop
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.runner import run_loop
from edgedec.runtime import Runtime


def decode(
    runtime: Runtime,
    context: Context,
    config: GenerationConfig,
    drafter: Drafter,
    stats: Stats | None = None,
    trace: list[StepTrace] | None = None,
    eos: frozenset[int] = frozenset(),
) -> Generator[Token]:
    """The tokens of the loop, one call at a time."""
    loop = decode_loop(context, config, drafter, stats, trace, eos, runtime.capabilities)
    return run_loop(runtime, loop, context.gaps)
