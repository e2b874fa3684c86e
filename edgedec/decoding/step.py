"""One step of the loop: the forward of the pending rows and of the draft below them, verified."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgedec.decoding.call_rows import apart, first_taught, taught, with_draft, with_prompts, without
from edgedec.decoding.chooser import Chooser, Undecided, Verified, finite_token
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Sampled
from edgedec.decoding.logits import MaskPending
from edgedec.decoding.messages import Completed, Stats, StepResult, Token, Waiting
from edgedec.decoding.verify import follow, verifier, walk
from edgedec.runtime import Call, CallResult, Capabilities, Drawing, Logits, Outputs, Rows
from edgedec.sampling import Probs

# What follows a stop token: no token at all, so that nothing drafted below it matches.
_NOTHING = -1
_ANYTHING = Probs(np.zeros(1, np.int64), np.ones(1))
_NONE, _LOGITS = Outputs(), Outputs(logits=True)


class VerifiedStep:
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
    ) -> Generator[Call | Waiting, Completed, StepResult]:
        """Run the pending rows and the draft below them, and verify. The cache then ends with the last known token;
        the accepted rows are still pending. prompt_rows: so many before the last known token show the best tokens
        too."""
        context, chooser, root = self.context, self.chooser, len(first) - 1
        rows = with_draft(first, draft) if len(draft.tokens) else first
        drawing = chooser.drawing() if rows is first and draft.prompts is None else None
        needed = chooser.outputs if drawing is None else Outputs(draw=drawing)
        wanted = needed if wanted == _NONE else wanted | needed
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
        done = yield from self._ran(call if context.policy is None else context.policy.shape(call), drawing)
        result, below = (done.result, None) if ran is rows else apart(done.result, len(rows), wanted.logits_from)
        shown = [taught(rows, begin, root, result)] if begin < root else []
        result = without(result, root - begin) if shown else result
        early: dict[int, Logits] = {}
        for block in self._early:
            early[block] = yield from self._head(rows, root, result, block)
        sampled = draft.sampled if not self._greedy and len(draft.tokens) else None
        # With these draws one is made for each token, as plain decoding does.
        self._replays = not self._greedy and sampled is None
        again = not self._greedy and drawing is None and (len(draft.tokens) or chooser.may_fall_back)
        before = context.rng.bit_generator.state if again else None
        try:
            if drawing is not None:
                path, picked = [root], [chooser.drawn(result, drawing)]
            else:
                path, picked = yield from self._verified(rows, root, Verified(result, early), sampled, before)
                chooser.note(False)
        except Undecided:
            result = replace(result, logits=(yield from self._head(rows, root, result, self._last)))
            context.rng.bit_generator.state = before or context.rng.bit_generator.state
            path, picked = yield from self._verified(rows, root, Verified(result, early), sampled, before)
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

    def _ran(self, call: Call, drawing: Drawing | None) -> Generator[Call, Completed, Completed]:
        """What came of a call; if nothing did, its random number was not drawn."""
        if drawing is None:
            return (yield call)
        try:
            return (yield call)
        except BaseException:
            drawing.take_back()
            raise

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

    def _verified(
        self, rows: Rows, root: int, verified: Verified, sampled: Sampled | None, before: Any
    ) -> Generator[Waiting, None, tuple[list[int], list[int]]]:
        """What `_verify` returns, once the masks that it needs are known; before: the random state at its start."""
        while True:
            try:
                return self._verify(rows, root, verified, sampled)
            except MaskPending:
                self.context.rng.bit_generator.state = before or self.context.rng.bit_generator.state
                yield Waiting(self.context.ready)

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
        accepted, picked = verifier(sampled.verifier)(drawn, target, sampled.probs, rng, root)
        return follow(rows, pick, accepted, picked)
