"""Steps that the runtime makes by itself (`edgedec.runtime.steps`), as parts of the loop: plain ones while the drafter
rests, and those of a given draft. `VerifiedStep` is the oracle of both: the same tokens, and at every token the same
cache and random state."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter

from edgedec.decoding.call_rows import with_draft
from edgedec.decoding.chooser import Chooser
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import Completed, DraftedStep, Stats, StepResult, Steps, Token
from edgedec.runtime import Capabilities, DecodingStep, Outputs, Rows


class NativeSteps(Steps):
    """The runtime's steps of one generation. ended: whether the text has ended."""

    def __init__(
        self, context: Context, chooser: Chooser, ends: frozenset[int], stats: Stats, capabilities: Capabilities
    ) -> None:
        self._context, self._chooser, self._ends, self._stats = context, chooser, ends, stats
        self._parts = capabilities.steps
        self._accept = chooser.accept if chooser.config.sampling.adjusts else None
        self.left, self.ended, self.began = 0, False, 0.0

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

    def run(self, n: int) -> Generator[NativeSteps, None, int]:
        """Let the runner make at most n plain steps after the text, whose last token is not cached. Returns how many it
        made."""
        native, stats, context = self.native, self._stats, self._context
        self.left, calls, numbers = n, stats.calls, native.numbers
        self._chooser.follow()
        native.start(context.ids[-1])
        self.began = perf_counter()
        try:
            yield self
        finally:
            if native.settings.rng is not None:  # the number of a step that failed, or was interrupted
                _put_back(native, native.numbers - numbers - (stats.calls - calls))
        return stats.calls - calls

    def take(self, token: int, forward: float) -> Token | None:
        """Add a step's token to the text; None: it ends the text and is not delivered. forward: seconds."""
        now, stats = perf_counter(), self._stats
        if token < 0:
            token = self._decided(token)
        stats.decode_s += now - self.began
        stats.forward_s += forward
        stats.calls += 1
        self.left -= 1
        if token in self._ends:
            self.left, self.ended = 0, True
            return None
        self._context.ids.append(token)
        stats.generated += 1
        if self._accept is not None:
            self._accept(token)
        return int.__new__(Token, token)

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
