"""One step of the loop: the call of the pending rows and of the draft below them, and the choice of the tokens that
follow."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgedec.decoding.call_rows import apart, first_taught, taught, with_draft, with_prompts, without
from edgedec.decoding.chooser import Chooser, Undecided, Verified, finite_token
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Sampled
from edgedec.decoding.gathering import GatheringStep, run_gathered
from edgedec.decoding.logits import MaskPending
from edgedec.decoding.messages import Completed, DraftedStep, Stats, StepResult, Together, Token, Waiting
from edgedec.decoding.native_steps import NativeSteps, takes
from edgedec.decoding.verify import follow, verifier, walk
from edgedec.runtime import Call, Capabilities, Drawing, Logits, Outputs, Rows
from edgedec.sampling import Probs

# The pick after a stop token: no token, so that no draft below it matches.
_NOTHING = -1
_ANYTHING = Probs(np.zeros(1, np.int64), np.ones(1))
_NONE, _LOGITS = Outputs(), Outputs(logits=True)
_NO_EARLY: Mapping[int, Logits] = {}


class PlannedCall(NamedTuple):
    """The call of a step. rows: the pending and the drafted rows; `call.rows` has prompt rows below these if the draft
    has any. root: the row of the last known token; begin: the first row whose outputs are returned; drawing: the draw
    of the next token in the call, None if it is chosen from the call's outputs."""

    call: Call
    rows: Rows
    root: int
    begin: int = 0
    drawing: Drawing | None = None

    def shown(self, done: Completed) -> StepResult:
        """The call's result as a step, before any row is accepted."""
        rows, root, begin = self.rows, self.root, self.begin
        result, below = done.result, None
        if self.call.rows is not rows:
            result, below = apart(result, len(rows), begin)
        prompt: Sequence[StepResult] = ()
        if begin < root:
            prompt, result = [taught(rows, begin, root, result)], without(result, root - begin)
        return StepResult(rows, root, (), (), result, done.seconds, done.rows, done.cells, done.whole, prompt, below)


class VerifiedStep:
    """The calls of one generation, and the verification of each."""

    def __init__(
        self,
        context: Context,
        config: GenerationConfig,
        ends: frozenset[int],
        stats: Stats,
        capabilities: Capabilities,
    ) -> None:
        self.context, self.ends, self.stats = context, ends, stats
        self.chooser = Chooser(config, context, ends, capabilities, stats)
        self._greedy = config.sampling.temperature == 0
        self._replays = False
        self._last = context.cache.spec.n_blocks - 1
        self._early, self.gathers = self.chooser.chain.early, self.chooser.chain.gathers
        self.native = NativeSteps(context, self.chooser, ends, stats, capabilities)

    def run(
        self, first: Rows, draft: Draft, wanted: Outputs, prompt_rows: int
    ) -> Generator[Together | Call | DraftedStep | Waiting, Any, StepResult]:
        """Run the pending rows and the draft below them, and verify it. The cache then ends with the last known token;
        the accepted rows are still pending. wanted, prompt_rows: as of `call`."""
        if len(first) == 1 and takes(draft, wanted, self._greedy) and self.native.possible():
            self._replays = not self._greedy
            return (yield from self.native.verify(first, draft, wanted))
        planned = self.call(first, draft, wanted, prompt_rows)
        done = yield from self.forward(planned)
        seen = planned.shown(done)
        yield from self.choose(planned, draft, seen)
        self.context.cache.commit(range(planned.root + 1))
        if self.context.policy is not None:
            self.context.policy.observe(self.context.cache, done.result)
        return seen

    def call(self, first: Rows, draft: Draft, wanted: Outputs, prompt_rows: int) -> PlannedCall:
        """The call of the pending rows and the draft below them. wanted: outputs that the drafter needs; prompt_rows:
        the number of rows before the last known token that return their best tokens too."""
        context, root = self.context, len(first) - 1
        rows = with_draft(first, draft) if len(draft.tokens) else first
        drawing = self.chooser.drawing() if rows is first and draft.prompts is None else None
        needed = self.chooser.outputs if drawing is None else Outputs(draw=drawing)
        wanted = needed if wanted == _NONE else wanted | needed
        begin = 0
        if root:
            begin = first_taught(root, prompt_rows if wanted.top and not wanted.logits else 0)
            wanted = wanted._replace(logits_from=begin)
        # Early logits need all blocks: the blocks that drafting has already run are run again.
        blocks, hidden = (None, None) if self._early else (draft.blocks, draft.hidden)
        if blocks is not None and wanted.hidden:  # blocks that the draft has been through return no states again
            wanted = wanted._replace(hidden=tuple(block for block in wanted.hidden if block in blocks))
        ran = rows
        if draft.prompts is not None and (hidden is None) == (draft.hidden is None):
            ran = with_prompts(rows, root, draft.prompts)
            if hidden is not None:
                ran, hidden = replace(ran, embeddings=None), draft.prompts.embeddings
        call = Call(ran, context.cache, blocks, hidden, wanted, context.adapter)
        return PlannedCall(call if context.policy is None else context.policy.shape(call), rows, root, begin, drawing)

    def forward(self, planned: PlannedCall) -> Generator[Together | Call, Any, Completed]:
        """Run the call, and what processors ask for beside it. If it fails, the random number that it drew is put
        back."""
        try:
            if self.gathers:
                step = GatheringStep(self.context, planned.rows, planned.root)
                return (yield from run_gathered(planned.call, step, self.gathers))
            done: Completed = yield planned.call
            return done
        except BaseException:
            if planned.drawing is not None:
                planned.drawing.take_back()
            raise

    def choose(self, planned: PlannedCall, draft: Draft, seen: StepResult) -> Generator[Call | Waiting, Any, None]:
        """Set the accepted rows of `seen` and the token picked after each. Draws that belong to tokens not yet
        delivered are put back: `commit` repeats them."""
        chooser, rng = self.chooser, self.context.rng
        if planned.drawing is not None:
            seen.path, seen.picked = [0], [chooser.drawn(seen.result, planned.drawing)]
            return
        early = (yield from self._early_logits(planned, seen)) if self._early else _NO_EARLY
        sampled = draft.sampled if not self._greedy and len(draft.tokens) else None
        # One draw per token, as in plain decoding.
        self._replays = not self._greedy and sampled is None
        before = None
        if not self._greedy and (len(draft.tokens) or chooser.may_fall_back):
            before = rng.bit_generator.state
        fell_back = False
        while True:
            try:
                path, seen.picked = self._verify(planned, Verified(seen.result, early), sampled)
                break
            except (MaskPending, Undecided) as missing:
                if before is not None:
                    rng.bit_generator.state = before
                if isinstance(missing, MaskPending):
                    yield Waiting(self.context.hooks.ready)
                    continue
                fell_back = True
                seen.result = replace(seen.result, logits=(yield from self._head(planned, seen, self._last)))
        seen.path = [row - planned.root for row in path] if planned.root else path
        chooser.note(fell_back)
        self.stats.fallbacks, self.stats.sufficed = chooser.fallbacks, chooser.sufficed
        if before is not None and self._replays and len(path) > 1:
            rng.bit_generator.state = before
            rng.random()

    def commit(self, seen: StepResult, at: int) -> None:
        """Commit one more accepted row and repeat its draw, as if its token had been run by itself."""
        row = seen.root + seen.path[at]
        self.context.cache.commit((row if seen.rows.numbers is None else int(seen.rows.numbers[row]),))
        if self._replays:
            self.context.rng.random()

    def token(self, token: int, draft: Draft, seen: StepResult, at: int) -> Token:
        """The token picked after row `at` of the path, with its log-probabilities; it was drafted if the path
        continues."""
        by = draft.by[seen.path[at + 1] - 1] if draft.by and at + 1 < len(seen.path) else ""
        return Token(token, *self.chooser.logprobs(seen.result, seen.path[at], token), by)

    def _early_logits(self, planned: PlannedCall, seen: StepResult) -> Generator[Call, Completed, dict[int, Logits]]:
        """By block: the logits of the state after each block that a processor needs."""
        found: dict[int, Logits] = {}
        for block in self._early:
            found[block] = yield from self._head(planned, seen, block)
        return found

    def _head(self, planned: PlannedCall, seen: StepResult, block: int) -> Generator[Call, Completed, Logits]:
        """All logits of the state after a block, of the rows from the root on: a call of the head alone."""
        rows, root = planned.rows, planned.root
        states = seen.result.hidden[block][root:]
        some = Rows.chain(rows.tokens[root:], int(rows.positions[root]))
        completed = yield Call(some, self.context.cache, (), states, _LOGITS, self.context.adapter)
        assert completed.result.logits is not None
        return completed.result.logits

    def _verify(self, planned: PlannedCall, verified: Verified, sampled: Sampled | None) -> tuple[list[int], list[int]]:
        """The accepted rows and the tokens picked. Nothing is evaluated below a stop token."""
        chooser, rng, ids = self.chooser, self.context.rng, verified.result.ids
        rows, root = planned.rows, planned.root
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
