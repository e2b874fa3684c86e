"""The one loop: propose, forward, shape the logits, verify, commit, yield.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is its first call: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, DecodeLoop, Stats, StepResult, Token, run_loop
from edgedec.decoding.verify import VERIFIERS, walk
from edgedec.drafters import Draft, Drafter, Sampled
from edgedec.errors import UsageError
from edgedec.generation import GenerationConfig
from edgedec.runtime import Call, CallResult, Outputs, Rows, Runtime
from edgedec.sampling import Probs, draw, logprob, probs, top_logprobs

# A mask or a page table of a long context is large: a chunk then has fewer rows.
_MASK_CELLS = 4 << 20
# What follows a stop token: no token at all, so that nothing drafted below it matches.
_NOTHING = -1
_ANYTHING = Probs(np.zeros(1, np.int64), np.ones(1))
_LARGEST, _ALL, _NONE = Outputs(top=1), Outputs(logits=True), Outputs()


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
    chunk = runtime.capabilities.prefill_chunk
    return run_loop(runtime, decode_loop(context, config, drafter, stats, trace, eos, chunk))


def decode_loop(
    context: Context,
    config: GenerationConfig,
    drafter: Drafter,
    stats: Stats | None = None,
    trace: list[StepTrace] | None = None,
    eos: frozenset[int] = frozenset(),
    chunk: int = 128,
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
    step = _Step(context, config, config.ends(eos), stats)
    constraint, left = config.constraint, config.max_tokens
    context.sampling = config.sampling
    context.jump_forward = tuple if constraint is None else constraint.forced
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
            began = perf_counter()
            first = yield from _prefill(context, chunk)
            proposal = drafter.propose(context, _room(context, left), 0.0)
            draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
            seen = yield from step.run(first, draft, drafter.outputs)
            drafter.observe(seen)
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
                if constraint is not None:
                    constraint.accept(token)
                yield _token(token, draft, seen, at, config.logprobs)
                if constraint is not None and constraint.done:
                    stats.finish = "eos"
                    return
            left = left if left is None else left - len(seen.picked)
        stats.finish = "length"
    finally:
        context.jump_forward = tuple
        context.cache.rollback()
        # For an interrupt from outside: everywhere else this holds already.
        if context.cache.length > len(context.ids):
            context.cache.truncate(len(context.ids))


def _prefill(context: Context, chunk: int) -> Generator[Call, Completed, Rows]:
    """Read pending tokens in chunks until one chunk is left; returns that chunk as rows."""
    cache = context.cache
    if len(context.ids) == cache.length + 1:
        return Rows.chain(context.ids[-1:], cache.length)
    while True:
        if cache.length >= len(context.ids):
            # Everything is cached: the last token is run again, for its logits.
            cache.truncate(len(context.ids) - 1)
        pending = context.pending()
        size = max(min(32, chunk), min(chunk, _MASK_CELLS // (cache.length + chunk)))
        rows = Rows.chain(pending[:size], cache.length)
        if len(pending) <= size:
            return rows
        yield Call(rows, cache, outputs=_NONE, adapter=context.adapter)
        cache.commit(range(len(rows)))


class _Step:
    """One forward call and its verification, for one generation."""

    def __init__(self, context: Context, config: GenerationConfig, ends: frozenset[int], stats: Stats) -> None:
        self.context, self.config, self.ends, self.stats = context, config, ends, stats
        self._greedy, self._largest = config.sampling.temperature == 0, config.takes_largest
        self._replays = False

    def run(self, first: Rows, draft: Draft, wanted: Outputs) -> Generator[Call, Completed, StepResult]:
        """Run the pending rows and the draft below them, and verify. The cache then ends with the last known token;
        the accepted rows are still pending."""
        context, root = self.context, len(first) - 1
        rows = _with_draft(first, draft) if len(draft.tokens) else first
        wanted = (wanted | (_LARGEST if self._largest else _ALL))._replace(logits_from=root)
        result, total, seconds = yield Call(rows, context.cache, draft.blocks, draft.hidden, wanted, context.adapter)
        sampled = draft.sampled if not self._greedy and len(draft.tokens) else None
        # With these draws one is made for each token, as plain decoding does.
        self._replays = not self._greedy and sampled is None
        before = context.rng.bit_generator.state if self._replays and len(draft.tokens) else None
        path, picked = self._verify(rows, root, result, sampled)
        context.cache.commit(range(root + 1))
        if before is not None and len(path) > 1:
            context.rng.bit_generator.state = before
            context.rng.random()
        return StepResult(rows, root, [row - root for row in path] if root else path, picked, result, seconds, total)

    def commit(self, seen: StepResult, at: int) -> None:
        """One more accepted row counts, and so does its draw, as if its token had been run by itself."""
        self.context.cache.commit((seen.root + seen.path[at],))
        if self._replays:
            self.context.rng.random()

    def _verify(
        self, rows: Rows, root: int, result: CallResult, sampled: Sampled | None
    ) -> tuple[list[int], list[int]]:
        """The accepted rows and the tokens picked. What follows a stop token is never seen."""
        logits = result.logits
        largest = result.ids[:, 0].tolist() if logits is None and result.ids is not None else []

        def target(row: int, path: Sequence[int]) -> Probs:
            assert logits is not None
            if path and path[-1] in self.ends:
                return _ANYTHING
            return self._target(logits[row - root], path)

        def pick(row: int, path: Sequence[int]) -> int:
            if path and path[-1] in self.ends:
                return _NOTHING
            if logits is None:
                return _finite(largest[row - root])
            found = target(row, path)
            return int(found.ids[0]) if self._greedy else draw(found, self.context.rng)

        if sampled is None:
            return walk(rows, pick, root)
        return VERIFIERS[sampled.verifier](rows, target, sampled.probs, self.context.rng, root)

    def _target(self, logits: NDArray[np.float32], path: Sequence[int]) -> Probs:
        """The distribution of the token that follows `path`."""
        context, constraint = self.context, self.config.constraint
        if constraint is not None:
            logits = np.where(constraint.mask(path), logits, -np.inf)
        if self.stats.generated + len(path) < self.config.min_tokens:
            logits = logits.copy()
            logits[list(self.ends)] = -np.inf
        ids = [*context.ids, *path] if path and self.config.sampling.adjusts else context.ids
        return probs(logits, self.config.sampling, ids, context.n_prompt)


def _with_draft(first: Rows, draft: Draft) -> Rows:
    """The pending rows, and the draft below the last of them."""
    root = len(first) - 1
    parents = [parent + root + 1 for parent in draft.parents]
    start = int(first.positions[0])
    return Rows.tree([*first.tokens.tolist(), *draft.tokens], [*first.parents.tolist(), *parents], start)


def _finite(token: int) -> int:
    """The runtime's own choice, unless there was none."""
    if token < 0:
        raise UsageError("logits: the largest is not finite; need at least one finite value and no NaN or +inf")
    return token


def _token(token: int, draft: Draft, seen: StepResult, at: int, n: int | None) -> Token:
    # The token after row `at` of the path was drafted if the path goes on.
    by = draft.by[seen.path[at + 1] - 1] if draft.by and at + 1 < len(seen.path) else ""
    if n is None or seen.result.logits is None:
        return Token(token, by=by)
    logits = seen.result.logits[seen.path[at]]
    return Token(token, logprob(logits, token), tuple(top_logprobs(logits, n)), by)


def _room(context: Context, left: int | None) -> int:
    """How many drafted rows may be run: no more than can be used or cached."""
    room = context.cache.capacity - len(context.ids)
    return max(0, room if left is None else min(room, left - 1))
