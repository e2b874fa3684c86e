"""The one loop: propose, forward, shape the logits, verify, commit, yield.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is its first call: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from time import perf_counter

from edgedec.decoding.apply_policy import settle
from edgedec.decoding.call_rows import first_taught, showing, taught
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context, always, unsaid
from edgedec.decoding.draft import Draft, Drafter
from edgedec.decoding.messages import Completed, DecodeLoop, Request, Stats, StepResult, Token
from edgedec.decoding.runner import run_loop
from edgedec.decoding.step import VerifiedStep
from edgedec.errors import UsageError
from edgedec.runtime import Call, Capabilities, Outputs, Rows, Runtime

_NONE, _PLAIN = Outputs(), Capabilities(kinds=(), kv_formats=())
_DRAFTLESS = Draft()


@dataclass(frozen=True)
class StepTrace:
    """One call of a generation, for people to look at: the draft, what the call showed, and how many tokens
    stood before. `seconds`: all of it, drafting and verification included."""

    length: int
    draft: Draft
    step: StepResult
    seconds: float


def decode(
    runtime: Runtime,
    context: Context,
    config: GenerationConfig,
    drafter: Drafter,
    stats: Stats | None = None,
    trace: list[StepTrace] | None = None,
    eos: frozenset[int] = frozenset(),
) -> Generator[Token]:
    """The tokens of the loop on a runtime of its own: one text, one call at a time."""
    loop = decode_loop(context, config, drafter, stats, trace, eos, runtime.capabilities)
    return run_loop(runtime, loop, context.gaps)


def decode_loop(
    context: Context,
    config: GenerationConfig,
    drafter: Drafter,
    stats: Stats | None = None,
    trace: list[StepTrace] | None = None,
    eos: frozenset[int] = frozenset(),
    capabilities: Capabilities = _PLAIN,
) -> DecodeLoop:
    """Generate tokens after `context.ids`; each is in `context.ids` when it is yielded. Yields the calls it needs as
    well, and waits for what came of each: whoever runs it may run the calls of many loops in one forward.

    At every token `context` is what plain decoding would have made of it: cache, random state and all.
    So it may be copied or saved there, and a generator may be closed at any time.
    """
    stats = stats if stats is not None else Stats()
    stats.prompt, stats.cached = len(context.ids), context.cache.length
    if not context.ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    if drafter.shift is not None:
        config = replace(config, processors=(*config.processors, drafter.shift))
    step = VerifiedStep(context, config, config.ends(eos), stats, capabilities)
    constraint, left = config.constraint, config.max_tokens
    context.sampling = config.sampling
    context.jump_forward = tuple if constraint is None else constraint.forced
    context.ready = getattr(constraint, "ready", always)
    context.allowed = getattr(constraint, "allowed", unsaid)
    draft, rests = _DRAFTLESS, None
    try:
        if constraint is not None and constraint.done:
            stats.finish = "eos"
            return
        while left is None or left > 0:
            if len(context.ids) > context.cache.capacity:
                if stats.generated and config.max_tokens is None and context.sinks is None:
                    stats.finish = "context"
                    return
                context.make_room()
                drafter.reset()
            if stats.calls == 1:
                drafter.prepare()  # before the clock starts: it is no part of any token
            began = perf_counter()
            if context.policy is not None:
                yield from settle(context, capabilities.prefill_chunk, drafter)
            first, shown = yield from _prefill(context, capabilities, drafter)
            room = min(_room(context, left), capabilities.largest_call - len(first))
            # The masks of drafted tokens are waited for, by all that run beside this text.
            room = 0 if getattr(constraint, "slow", False) else room
            if rests is not None and len(first) == 1 and not rests(context.ids):
                seen = yield from step.run(first, draft, _NONE, 0)
            else:
                proposal = drafter.propose(context, room, 0.0)
                draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
                seen = yield from step.run(first, draft, drafter.outputs, drafter.prompt_rows if len(first) > 1 else 0)
                if shown:
                    seen.prompt = [*shown, *seen.prompt]
                drafter.observe(seen)
                rests = draft.rests if constraint is None else None
            seconds = perf_counter() - began
            stats.add_call(seconds, seen.seconds)
            if trace is not None:
                trace.append(StepTrace(len(context.ids), draft, seen, seconds))
            stats.proposed += len(draft.tokens)
            stats.accepted += len(seen.path) - 1
            for at, token in enumerate(seen.picked[:left]):
                if at:
                    step.commit(seen, at)
                if token in step.ends:
                    stats.finish = "eos"
                    return
                context.ids.append(token)
                stats.generated += 1
                step.chooser.accept(token)
                yield step.token(token, draft, seen, at)
                if constraint is not None and constraint.done:
                    stats.finish = "eos"
                    return
            left = left if left is None else left - len(seen.picked)
        stats.finish = "length"
    finally:
        context.jump_forward, context.ready, context.allowed, context.parks = tuple, always, unsaid, False
        context.cache.rollback()
        # For an interrupt from outside: everywhere else this holds already.
        if context.cache.length > len(context.ids):
            context.cache.truncate(len(context.ids))


def _prefill(
    context: Context, capabilities: Capabilities, drafter: Drafter
) -> Generator[Request, Completed, tuple[Rows, list[StepResult]]]:
    """Read pending tokens in chunks until one chunk is left; returns that chunk as rows, and what those before showed
    to learn from."""
    cache, shown = context.cache, list[StepResult]()
    if len(context.ids) == cache.length + 1:
        return Rows.chain(context.ids[-1:], cache.length), shown
    while True:
        if cache.length >= len(context.ids):
            # Everything is cached: the last token is run again, for its logits.
            cache.truncate(len(context.ids) - 1)
        pending = context.pending()
        size = capabilities.chunk(cache.length)
        rows = Rows.chain(pending[:size], cache.length)
        if len(pending) <= size:
            return rows, shown
        reads = wanted = drafter.reads
        first = first_taught(len(pending) - 1, drafter.prompt_rows)
        if first < size and (top := drafter.outputs.top):
            wanted = showing(reads, top, first)
        done = yield Call(rows, cache, outputs=wanted, adapter=context.adapter)
        cache.commit(range(len(rows)))
        if wanted != reads:
            shown.append(taught(rows, wanted.logits_from, size, done.result))
        if reads != _NONE and (reading := drafter.read(context, rows, done.result)) is not None:
            yield from reading


def _room(context: Context, left: int | None) -> int:
    """How many drafted rows may be run: no more than can be used or cached."""
    room = context.cache.capacity - len(context.ids)
    if context.policy is not None:
        room = min(room, context.policy.room(context.cache.length))
    return max(0, room if left is None else min(room, left - 1))
