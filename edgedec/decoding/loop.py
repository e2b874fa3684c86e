"""The one decoding loop: read, draft, verify, learn, deliver.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is part of its first step: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.

The phases are methods of `TextGeneration`, so that other loops can reuse them: one of several forks that yield their
calls `Together`, or one that chooses the tokens of a whole block of rows by a schedule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.apply_policy import settle
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import NO_HOOKS, ConstraintHooks, limit_of
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter
from edgedec.decoding.messages import (
    DecodeLoop,
    DraftedStep,
    Request,
    Stats,
    StepResult,
    Steps,
    Together,
    Token,
    Waiting,
)
from edgedec.decoding.reading import read_pending
from edgedec.decoding.step import VerifiedStep
from edgedec.errors import UsageError
from edgedec.runtime import Call, Capabilities, Outputs, Rows, rope_room

_NONE, _PLAIN = Outputs(), Capabilities(kinds=(), kv_formats=())


@dataclass(frozen=True)
class StepTrace:
    """One call of a generation, for display: the draft, the call's result, and the length of the text before it.
    `seconds`: of the whole step, drafting and verification included."""

    length: int
    draft: Draft
    step: StepResult
    seconds: float


def decode_loop(
    context: Context,
    config: GenerationConfig,
    drafter: Drafter,
    stats: Stats | None = None,
    trace: list[StepTrace] | None = None,
    eos: frozenset[int] = frozenset(),
    capabilities: Capabilities = _PLAIN,
) -> DecodeLoop:
    """Generate tokens after `context.ids`; each is in `context.ids` when it is yielded. Yields its calls as well, and
    each is answered by its result (`DecodeLoop`): the runner may run the calls of many loops in one forward.

    At every yielded token `context` is exactly as after plain decoding, including its cache and random state. So it can
    be copied or saved there, and the generator can be closed at any time.
    """
    text = TextGeneration(context, config, drafter, stats, trace, eos, capabilities)
    with text.attached():
        while not text.ended():
            if (yield from text.rest()):
                continue
            rows = yield from text.read()
            draft = yield from text.draft(rows)
            if text.rests(draft):
                continue
            seen = yield from text.verify(rows, draft)
            text.learn(draft, seen)
            yield from text.deliver(draft, seen)


class TextGeneration:
    """The phases of one generation. The arguments are those of `decode_loop`."""

    def __init__(
        self,
        context: Context,
        config: GenerationConfig,
        drafter: Drafter,
        stats: Stats | None = None,
        trace: list[StepTrace] | None = None,
        eos: frozenset[int] = frozenset(),
        capabilities: Capabilities = _PLAIN,
    ) -> None:
        self.stats = stats if stats is not None else Stats()
        context.suit()
        self.stats.prompt, self.stats.cached = len(context.ids), context.cache.length
        if not context.ids:
            raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
        if drafter.shift is not None:
            config = replace(config, processors=(*config.processors, drafter.shift))
        self.context, self.config, self.capabilities = context, config, capabilities
        self.step = VerifiedStep(context, config, config.ends(eos), self.stats, capabilities)
        if context.together and self.step.gathers:
            raise UsageError("--fuse: a source whose tokens see each other cannot be read with another prompt")
        self._drafter, self._trace, self._constraint = drafter, trace, config.constraint
        self._left, self._stopped, self._began = config.max_tokens, False, 0.0
        # The empty draft of a resting drafter, None while it is active, and the calls that are left (`Draft.rest`).
        self._resting: Draft | None = None
        self._rest, self._prepared = 0, False
        # Results of prompt rows that were read before this step's call, for the drafter.
        self._shown: Sequence[StepResult] = ()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Connect the context to the constraint during the generation. At the end the cache holds no more than the
        text."""
        context = self.context
        context.sampling = self.config.sampling
        context.hooks = ConstraintHooks.of(self._constraint, context.hooks.parks)
        if self._constraint is not None:
            limit_of(self._constraint, self._most())
        try:
            yield
        finally:
            context.hooks = NO_HOOKS
            context.cache.rollback()
            # After an interrupt from outside; everywhere else this holds already.
            if context.cache.length > len(context.ids):
                context.cache.truncate(len(context.ids))
            self._drafter.end(context)

    def _most(self) -> int | None:
        """The most tokens that may be added; None if neither a limit nor the context ends the text."""
        room = self.context.cache.capacity - len(self.context.ids)
        limits = [*([] if self._left is None else [self._left]), *([room] if self.context.policy is None else [])]
        return max(min(limits), 0) if limits else None

    def ended(self) -> bool:
        """Whether the text is complete; `Stats.finish` then has the reason. A full context slides first, or raises
        ContextFull."""
        if self._stopped:
            return True
        if self._constraint is not None and self._constraint.done:
            return self._stop("eos")
        if self._left is not None and self._left <= 0:
            return self._stop("length")
        return len(self.context.ids) > self.context.cache.capacity and not self._make_room()

    def rest(self) -> Generator[Steps, None, bool]:
        """Let the runtime make steps by itself while the drafter rests; returns whether it made any."""
        native, left = self.step.native, self._own_steps() if self._rest > 0 else 0
        if left < 1:
            return False
        drafting = self._resting.steps if self._resting is not None else None
        made, tokens = yield from native.run(self._rest, left, drafting)
        self._rest = self._rest - made if drafting is None else 0
        if self._left is not None:
            self._left -= tokens
        if native.ended:
            self._stop("eos")
        return True

    def _own_steps(self) -> int:
        """The most tokens that the runtime may add by steps of its own from here on; 0 where the next call cannot be
        such a step."""
        context = self.context
        if self._trace is not None or len(context.ids) != context.cache.length + 1 or not self.step.native.possible():
            return 0
        room = context.cache.capacity - context.cache.length
        return room if self._left is None else min(room, self._left)

    def read(self) -> Generator[Request, Any, Rows]:
        """Apply the cache policy and read pending tokens; returns the rows that remain for the step's own call."""
        if self.stats.calls and not self._prepared:
            self._prepared = True
            self._drafter.prepare()  # before the clock starts, and after the first token: no token waits for it
        self._began = perf_counter()
        context = self.context
        if context.suit():
            self._drafter.end(context)
            self._drafter.reset()
        if context.policy is not None:
            yield from settle(context, self.capabilities.prefill_chunk, self._drafter)
        length = context.cache.length
        if len(context.ids) == length + 1:
            return Rows.chain(context.ids[-1:], length)
        rows, self._shown = yield from read_pending(context, self.capabilities, self._drafter)
        return rows

    def draft(self, rows: Rows) -> Generator[Request | Offer, Any, Draft]:
        """The drafter's proposal below these rows; empty while the drafter rests."""
        resting = self._resting
        if resting is not None and resting.steps is None and self._rest > 0 and len(rows) == 1:
            self._rest, self.context.left = self._rest - 1, 0
            return resting
        self._resting, self._rest, self.context.left = None, 0, self._own_steps()
        proposal = self._drafter.propose(self.context, self._room(len(rows)), 0.0)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        if self.rests(draft):
            self._resting, self._rest = draft, draft.rest + draft.unseen
        return draft

    def rests(self, draft: Draft) -> bool:
        """Whether the runtime makes this call and further ones by itself (`rest`)."""
        return draft.steps is not None or (draft.unseen and self.context.left > 0)

    def verify(self, rows: Rows, draft: Draft) -> Generator[Together | Call | DraftedStep | Waiting, Any, StepResult]:
        """Run the rows and the draft, and choose the tokens that follow."""
        if draft is self._resting:
            return self.step.run(rows, draft, _NONE, 0)
        drafter = self._drafter
        return self.step.run(rows, draft, drafter.outputs, drafter.prompt_rows if len(rows) > 1 else 0)

    def learn(self, draft: Draft, seen: StepResult) -> None:
        """Give the result to the drafter, and count the call."""
        if draft is not self._resting:
            if self._shown:
                seen.prompt = [*self._shown, *seen.prompt]
            self._drafter.observe(seen)
            if draft.rest and self._constraint is None:
                assert not len(draft.tokens), "a drafter that rests drafts nothing"
                self._resting, self._rest = draft, draft.rest
        self._shown = ()
        seconds, stats = perf_counter() - self._began, self.stats
        stats.add_call(seconds, seen.seconds)
        if self._trace is not None:
            self._trace.append(StepTrace(len(self.context.ids), draft, seen, seconds))
        stats.proposed += len(draft.tokens)
        stats.accepted += len(seen.path) - 1

    def deliver(self, draft: Draft, seen: StepResult) -> Generator[Token]:
        """Add the picked tokens to the text, one by one. At each yield the context may be copied, saved or closed: so a
        token's row is committed only after the token was delivered, and the context has no trace of later tokens."""
        context, step, constraint = self.context, self.step, self._constraint
        for at, token in enumerate(seen.picked[: self._left]):
            if at:
                if constraint is not None and constraint.done:
                    return
                step.commit(seen, at)
            if token in step.ends:
                step.chooser.weigh(token)
                self._stop("eos")
                return
            context.ids.append(token)
            self.stats.generated += 1
            step.chooser.accept(token)
            yield step.token(token, draft, seen, at)
        if self._left is not None:
            self._left -= len(seen.picked)

    def _stop(self, reason: str) -> bool:
        """Note why the text is complete; always True."""
        self.stats.finish, self._stopped = reason, True
        return True

    def _make_room(self) -> bool:
        """Let a full context slide; False where the generation ends there instead."""
        if self.stats.generated and self.config.max_tokens is None and self.context.sinks is None:
            self._stop("context")
            return False
        self._drafter.end(self.context)
        self.context.make_room()
        self._drafter.reset()
        return True

    def _room(self, pending: int) -> int:
        """The most drafted rows that a call with `pending` rows may have: no more than can be used or cached. 0 while
        the constraint's masks take long, because the whole batch would wait for the masks of drafted tokens."""
        context, left = self.context, self._left
        if context.hooks.slow():
            return 0
        room = min(context.cache.capacity - len(context.ids), rope_room(context.cache, len(context.ids)))
        if context.policy is not None:
            room = min(room, context.policy.room(context.cache.length))
        for processor in self.step.chooser.chain.gathers:
            room = min(room, processor.room(context))
        room = max(0, room if left is None else min(room, left - 1))
        return min(room, self.capabilities.largest_call - pending)
