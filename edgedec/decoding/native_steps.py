"""Steps that the runtime makes by itself (`edgedec.runtime.steps`), as parts of the loop: plain ones while the drafter
rests, and those of a given draft. `VerifiedStep` is the oracle of both: the same tokens, and at every token the same
cache and random state."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter

from edgedec.decoding.call_rows import with_draft
from edgedec.decoding.chooser import Chooser
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, StepDrafting
from edgedec.decoding.messages import Completed, DraftedStep, Stats, StepResult, Steps, Token
from edgedec.runtime import Capabilities, DecodingStep, Outputs, Rows, StepGovernor, Stepped

_NO_ROWS = list[int]()


class NativeSteps(Steps):
    """The runtime's steps of one generation. ended: whether the text has ended."""

    def __init__(
        self, context: Context, chooser: Chooser, ends: frozenset[int], stats: Stats, capabilities: Capabilities
    ) -> None:
        self._context, self._chooser, self._ends, self._stats = context, chooser, ends, stats
        self._parts = capabilities.steps
        self._accept = chooser.accept if chooser.config.sampling.adjusts else None
        self.left, self.ended, self.began = 0, False, 0.0
        # Of the step in progress: rows and tokens that are not delivered yet, the last ones first.
        self._rows, self._picked = _NO_ROWS, list[int]()

    def possible(self) -> bool:
        """Whether the runtime makes this generation's steps as it is now."""
        if self._parts is None or self._context.policy is not None:
            return False
        settings = self._chooser.step_settings(self._ends)
        if settings is None:
            return False
        if not hasattr(self, "native") or self.native.settings != settings:
            self.native = self._parts.make(settings)
        return True

    def run(self, n: int, tokens: int, drafting: StepDrafting | None) -> Generator[NativeSteps, None, tuple[int, int]]:
        """Let the runner make at most n steps after the text, whose last token is not cached, and add at most so many
        tokens. drafting: of their drafts. Returns how many it made and added."""
        native, stats, context = self.native, self._stats, self._context
        calls, generated = stats.calls, stats.generated
        self.left, self._tokens, self._known, self._drafting = n, tokens, native.numbers, drafting
        self._chooser.follow()
        native.start(context.ids[-1])
        if drafting is not None:
            governor = drafting.governor
            native.govern(governor, context.ids)
            self._company = self._others = context.concurrent
            self._drafted, self._among = governor.drafted, context.ends
        self.began = perf_counter()
        try:
            yield self
        finally:
            if native.settings.rng is not None:  # the number of a step that failed, or was interrupted
                _put_back(native, native.numbers - self._known)
        return stats.calls - calls, stats.generated - generated

    def take(self, token: int, done: Stepped) -> Token | None:
        """Add the first token of a step to the text; None: it ends the text and is not delivered. done: the forward."""
        now, stats, drafting = perf_counter(), self._stats, self._drafting
        drafted = done.drafts > 0
        if token < 0:
            drafted = True
            token = self._decided(token) if drafting is None else self._decided_governed(token, drafting.governor)
        stats.decode_s += now - self.began
        stats.forward_s += done.seconds
        stats.calls += 1
        self.left -= 1
        self._known += 1
        self._rows = _NO_ROWS
        if drafting is not None:
            drafting.add_call(done)
            if drafted:
                self._follow(drafting.governor)
            context = self._context
            if context.ends is not self._among:
                self._among = context.ends
                drafting.governor.end_among(*context.ends)
            if context.concurrent != self._others:
                self._meet(drafting.governor, context.concurrent)
        return self._add(token)

    def _follow(self, governor: StepGovernor) -> None:
        """Account for a step that may have had a draft, and for the tokens that follow the first."""
        native, stats, drafted = self.native, self._stats, governor.drafted
        stats.proposed += drafted - self._drafted
        self._drafted = drafted
        if native.accepted > 1:
            path, picked = native.followed()
            self._rows, self._picked = path[:0:-1], picked[:0:-1]
            stats.accepted += len(self._rows)
            # The numbers of tokens that are not delivered yet are drawn again.
            more = native.numbers - self._known
            _put_back(native, more)
            self._known += more

    def _meet(self, governor: StepGovernor, others: int) -> None:
        """Go on in other company; where it is very different the terms are renewed first."""
        self._others, governor.sequences = others, others + 1
        if abs(others - self._company) > (self._company + 1) // 4:
            self.left = 0

    def more(self) -> Token | None:
        """Add the next token of the same step; None: there is none."""
        if not self._rows or not self._tokens or self.ended:
            return None
        row, token = self._rows.pop(), self._picked.pop()
        context, settings = self._context, self.native.settings
        context.cache.commit((row,))
        if settings.rng is not None:
            settings.rng.random()
        return self._add(token)

    def _add(self, token: int) -> Token | None:
        """The token, as the next of the text; None: it ends the text."""
        self._tokens -= 1
        if token in self._ends:
            self.left, self.ended = 0, True
            return None
        if not self._tokens:
            self.left = 0
        self._context.ids.append(token)
        self._stats.generated += 1
        if self._accept is not None:
            self._accept(token)
        found = int.__new__(Token, token)
        if self._rows:
            assert self._drafting is not None
            found.by = self._drafting.name(self.native.by(self._rows[-1]))
        return found

    def verify(self, first: Rows, draft: Draft, wanted: Outputs) -> Generator[DraftedStep, Completed, StepResult]:
        """Run the last token and the draft below it, and follow the model's choices through it."""
        native, rows = self.native, with_draft(first, draft)
        numbers, extra = native.numbers, 0
        self._chooser.follow()
        result = native.draft(rows, wanted.top if native.settings.sampler else max(wanted.top, 1))
        try:
            done = yield DraftedStep(native, len(rows))
            if done.result.drawn is not None and done.result.drawn < 0:
                self._decided(done.result.drawn)
            extra = 1  # the first token's number; the others are drawn again when their tokens are delivered
        finally:
            _put_back(native, native.numbers - numbers - extra)
        path, picked = native.followed()
        return StepResult(rows, 0, path, picked, result, done.seconds, done.rows, done.cells, done.whole)

    def _decided_governed(self, token: int, governor: StepGovernor) -> int:
        """As `_decided`; counts the governor's time and its draft, which the forward's have not (`Stepped`)."""
        gaps, spent, drafted = self._context.gaps, governor.seconds, governor.drafted
        found = self._decided(token)
        gaps.add_steps(governor.seconds - spent, int(governor.drafted > drafted))
        return found

    def _decided(self, token: int) -> int:
        """The first token of a step that the runtime did not decide; Python draws with the same random numbers."""
        native = self.native
        if token < -1:
            raise MemoryError("no memory for a decoding step")
        while native.undecided:
            _, picked = native.followed()
            native.decide(self._chooser.decide(picked, native.number))
        return native.followed()[1][0]


def _put_back(native: DecodingStep, n: int) -> None:
    """Restore the generator to its state before the last n numbers."""
    if n > 0 and native.settings.rng is not None:
        native.settings.rng.bit_generator.advance(-n)  # type: ignore[attr-defined]


def takes(draft: Draft, wanted: Outputs, greedy: bool) -> bool:
    """Whether the runtime's own steps verify such a draft and return what is wanted."""
    given = draft.blocks is None and draft.hidden is None and draft.prompts is None and not len(draft.numbers)
    drawn = draft.sampled is not None and not greedy
    return given and not drawn and len(draft.tokens) > 0 and wanted == Outputs(top=wanted.top)
