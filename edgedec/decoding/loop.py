"""The one loop: propose, forward, shape the logits, verify, commit, yield.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is its first call: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from edgedec.decoding.choice import Chooser, Undecided, Verified, finite_token
from edgedec.decoding.context import Context, always, unsaid
from edgedec.decoding.draft_rows import apart, with_draft, with_prompts
from edgedec.decoding.keeping import settle
from edgedec.decoding.step import Completed, DecodeLoop, Request, Stats, StepResult, Token, run_loop
from edgedec.decoding.teaching import first_taught, showing, taught, without
from edgedec.decoding.verify import VERIFIERS, follow, walk
from edgedec.drafters import Draft, Drafter, Sampled
from edgedec.errors import UsageError
from edgedec.generation import GenerationConfig
from edgedec.runtime import Call, CallResult, Capabilities, Logits, Outputs, Rows, Runtime
from edgedec.sampling import Probs

# What follows a stop token: no token at all, so that nothing drafted below it matches.
_NOTHING = -1
_ANYTHING = Probs(np.zeros(1, np.int64), np.ones(1))
_NONE, _LOGITS, _PLAIN = Outputs(), Outputs(logits=True), Capabilities(kinds=(), kv_formats=())


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
    return run_loop(runtime, decode_loop(context, config, drafter, stats, trace, eos, runtime.capabilities))


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
    step = _Step(context, config, config.ends(eos), stats, capabilities)
    constraint, left = config.constraint, config.max_tokens
    context.sampling = config.sampling
    context.jump_forward = tuple if constraint is None else constraint.forced
    context.ready = getattr(constraint, "ready", always)
    context.allowed = getattr(constraint, "allowed", unsaid)
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
            proposal = drafter.propose(context, room, 0.0)
            draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
            seen = yield from step.run(first, draft, drafter.outputs, drafter.prompt_rows if len(first) > 1 else 0)
            if shown:
                seen.prompt = [*shown, *seen.prompt]
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
                step.chooser.accept(token)
                yield step.token(token, draft, seen, at)
                if constraint is not None and constraint.done:
                    stats.finish = "eos"
                    return
            left = left if left is None else left - len(seen.picked)
        stats.finish = "length"
    finally:
        context.jump_forward, context.ready, context.allowed = tuple, always, unsaid
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


class _Step:
    """One forward call and its verification, for one generation."""

    def __init__(
        self,
        context: Context,
        config: GenerationConfig,
        ends: frozenset[int],
        stats: Stats,
        capabilities: Capabilities,
    ) -> None:
        self.context, self.ends, self.stats = context, ends, stats
        self.chooser = Chooser(config, context, ends, capabilities)
        self._greedy = config.sampling.temperature == 0
        self._replays = False
        self._last = context.cache.spec.n_blocks - 1
        self._early = self.chooser.chain.early

    def run(
        self, first: Rows, draft: Draft, wanted: Outputs, prompt_rows: int
    ) -> Generator[Call, Completed, StepResult]:
        """Run the pending rows and the draft below them, and verify. The cache then ends with the last known token;
        the accepted rows are still pending. prompt_rows: so many before the last known token show the best tokens
        too."""
        context, chooser, root = self.context, self.chooser, len(first) - 1
        rows = with_draft(first, draft) if len(draft.tokens) else first
        wanted = chooser.outputs if wanted == _NONE else wanted | chooser.outputs
        prompt_rows = prompt_rows if wanted.top and not wanted.logits else 0
        begin = first_taught(root, prompt_rows)
        if root:
            wanted = wanted._replace(logits_from=begin)
        # A draft that has been through the blocks of early logits already begins again.
        blocks, hidden = (None, None) if self._early else (draft.blocks, draft.hidden)
        if blocks is not None and wanted.hidden:  # states of blocks that the draft has passed are not shown again
            wanted = wanted._replace(hidden=tuple(block for block in wanted.hidden if block in blocks))
        ran = rows if draft.prompts is None else with_prompts(rows, root, draft.prompts)
        call = Call(ran, context.cache, blocks, hidden, wanted, context.adapter)
        done: Completed = yield (call if context.policy is None else context.policy.shape(call))
        result, below = (done.result, None) if ran is rows else apart(done.result, len(rows), wanted.logits_from)
        shown = [taught(rows, begin, root, result)] if begin < root else []
        result = without(result, root - begin) if shown else result
        early: dict[int, Logits] = {}
        for block in self._early:
            early[block] = yield from self._head(rows, root, result, block)
        sampled = draft.sampled if not self._greedy and len(draft.tokens) else None
        # With these draws one is made for each token, as plain decoding does.
        self._replays = not self._greedy and sampled is None
        again = not self._greedy and (len(draft.tokens) or chooser.may_fall_back)
        before = context.rng.bit_generator.state if again else None
        try:
            path, picked = self._verify(rows, root, Verified(result, early), sampled)
            chooser.note(False)
        except Undecided:
            result = replace(result, logits=(yield from self._head(rows, root, result, self._last)))
            context.rng.bit_generator.state = before or context.rng.bit_generator.state
            path, picked = self._verify(rows, root, Verified(result, early), sampled)
            chooser.note(True)
        context.cache.commit(range(root + 1))
        if context.policy is not None:
            context.policy.observe(context.cache, done.result)
        if before is not None and self._replays and len(path) > 1:
            context.rng.bit_generator.state = before
            context.rng.random()
        self.stats.fallbacks, self.stats.sufficed = chooser.fallbacks, chooser.sufficed
        accepted = [row - root for row in path] if root else path
        spent = (done.seconds, done.rows, done.cells, done.whole)
        return StepResult(rows, root, accepted, picked, result, *spent, shown, below)

    def commit(self, seen: StepResult, at: int) -> None:
        """One more accepted row counts, and so does its draw, as if its token had been run by itself."""
        row = seen.root + seen.path[at]
        self.context.cache.commit((row if seen.rows.numbers is None else int(seen.rows.numbers[row]),))
        if self._replays:
            self.context.rng.random()

    def token(self, token: int, draft: Draft, seen: StepResult, at: int) -> Token:
        """What is yielded for the token after row `at` of the path, which was drafted if the path goes on."""
        by = draft.by[seen.path[at + 1] - 1] if draft.by and at + 1 < len(seen.path) else ""
        return Token(token, *self.chooser.logprobs(seen.result, seen.path[at], token), by)

    def _head(self, rows: Rows, root: int, result: CallResult, block: int) -> Generator[Call, Completed, Logits]:
        """All logits of the state after a block, of the rows from the root on: a call of the head alone."""
        states = result.hidden[block][root:]
        some = Rows.chain(rows.tokens[root:], int(rows.positions[root]))
        completed = yield Call(some, self.context.cache, (), states, _LOGITS, self.context.adapter)
        assert completed.result.logits is not None
        return completed.result.logits

    def _verify(
        self, rows: Rows, root: int, verified: Verified, sampled: Sampled | None
    ) -> tuple[list[int], list[int]]:
        """The accepted rows and the tokens picked. What follows a stop token is never seen."""
        chooser, rng, ids = self.chooser, self.context.rng, verified.result.ids
        largest = ids[:, 0].tolist() if chooser.takes_largest and ids is not None else []

        def target(row: int, path: Sequence[int]) -> Probs:
            if path and path[-1] in self.ends:
                return _ANYTHING
            return chooser.distribution(verified, row - root, path)

        def pick(row: int, path: Sequence[int]) -> int:
            if path and path[-1] in self.ends:
                return _NOTHING
            if largest:
                return finite_token(largest[row - root])
            return chooser.draw(verified, row - root, path)

        if sampled is None:
            return walk(rows, pick, root)
        drawn = rows.head(root + 1 + len(sampled.probs))
        accepted, picked = VERIFIERS[sampled.verifier](drawn, target, sampled.probs, rng, root)
        return follow(rows, pick, accepted, picked)


def _room(context: Context, left: int | None) -> int:
    """How many drafted rows may be run: no more than can be used or cached."""
    room = context.cache.capacity - len(context.ids)
    if context.policy is not None:
        room = min(room, context.policy.room(context.cache.length))
    return max(0, room if left is None else min(room, left - 1))
