"""The messages between the decoding loop, the runner of its calls, and its drafters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgedec.decoding.allocation import Offer
from edgedec.runtime import Call, CallResult, DecodingStep, Rows, Runtime, Stepped


class Token(int):
    """A generated token: an int that also carries its log-probability, if requested.

    `logprob` is the model's own, before temperature and the like; `top` the most likely tokens. `by`: the
    drafter that proposed it, empty if none did.
    """

    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    by: str = ""

    def __new__(
        cls, token: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = (), by: str = ""
    ) -> Token:
        self = super().__new__(cls, token)
        if logprob is not None:
            self.logprob, self.top = logprob, top
        if by:
            self.by = by
        return self

    @property
    def token(self) -> int:
        return int(self)


class ForwardOn(NamedTuple):
    """A call to another runtime than the sequence's own, for example a draft model's."""

    runtime: Runtime
    call: Call


class Completed(NamedTuple):
    """A call's result, the rows of all sequences that shared the forward, and the seconds that it took. cells: the
    cached tokens before these rows, weighted by their cost (`allocation.text_cells`); whole: whether all calls of the
    forward ran the whole stack, with the head for every row."""

    result: CallResult
    rows: int
    seconds: float
    cells: int = 0
    whole: bool = True


class Waiting(NamedTuple):
    """A wait for something other than a call, such as a constraint's mask: the loop continues, without an answer, once
    `ready()` is true."""

    ready: Callable[[], bool]


class DraftedStep(NamedTuple):
    """A call that the runtime's own step makes (`DecodingStep.draft`), of so many rows; answered by a `Completed` whose
    `drawn` is the first token."""

    native: DecodingStep
    rows: int


Request = Call | ForwardOn


class Steps:
    """Steps that the runtime makes by itself: of plain decoding, or with drafts that its governor chooses. The runner
    runs them one after another and delivers their tokens; the loop continues, without an answer, when no step is
    `left`. began: when the step began, set by the runner after each delivery."""

    native: DecodingStep
    left: int
    began: float

    def take(self, token: int, done: Stepped) -> Token | None:
        """Add the first token of a step to the text; None: it ends the text and is not delivered. done: the forward."""
        raise NotImplementedError

    def more(self) -> Token | None:
        """Add the next token of the same step; None: there is none."""
        raise NotImplementedError


class Together(NamedTuple):
    """One or more calls of one text, of its forks or of its companions, to be run in one forward; answered by a list, a
    `Completed` for each."""

    requests: Sequence[Request]


# Yields calls, each answered by a `Completed`; offers of drafts, each answered by a `Grant`; the generated tokens; and
# steps of the runtime's own, whose tokens the runner takes.
# Where the runner accepts it (`ConstraintHooks.parks`), also `Waiting`; `Together`, answered by a list of `Completed`,
# where processors ask for calls beside a step's own (`gathering`).
DecodeLoop = Generator[Together | Request | DraftedStep | Offer | Token | Waiting | Steps, Any, None]
# The same for a loop that holds several forks: a search, best of n.
ForkLoop = DecodeLoop


@dataclass(slots=True)
class StepResult:
    """The result of a step's call and of its verification. Rows are numbered from the last known token, which is 0;
    drafted rows follow.

    path: the accepted rows, 0 first; picked: the token that followed each of them (the last is new). result: of all
    these rows, what the drafter's `outputs` named; its hidden states are of `rows` from its first computed row on.
    seconds: of the forward; total: the rows of all sequences in it; cells, whole: as in `Completed`. prompt: the
    results of the last rows of a prompt that ends in this call, as many as the drafter's `prompt_rows`. prompted: the
    result of the rows that ran below the draft (`Draft.prompts`).
    """

    rows: Rows
    root: int
    path: Sequence[int]
    picked: Sequence[int]
    result: CallResult
    seconds: float
    total: int = 0
    cells: int = 0
    whole: bool = True
    prompt: Sequence[StepResult] = ()
    prompted: CallResult | None = None

    @property
    def new(self) -> int:
        """The number of tokens that the call chose: nothing is chosen after an accepted stop token."""
        return len(self.picked) - (self.picked[-1] < 0)

    def tokens(self) -> list[int]:
        """The token of each row, 0 first."""
        ids: list[int] = self.rows.tokens[self.root :].tolist()
        return ids


@dataclass
class Stats:
    """The counts and times of a generation. `calls`: forward calls that produced tokens, one per token in plain
    decoding; `sufficed`: calls whose k best decided the tokens, without all logits; `fallbacks`: calls whose k
    best did not, so that the head ran again. `checks`: tokens that a constraint checked singly, `masks`: those
    of all tokens that these checks were not enough for, and `log_weight`: the logarithm of the text's weight,
    with the option awrs. Times are of the loop alone: up to the first token, and after it; `forward_s` is the
    part spent in calls.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    calls: int = 0
    proposed: int = 0
    accepted: int = 0
    sufficed: int = 0
    fallbacks: int = 0
    checks: int = 0
    masks: int = 0
    log_weight: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    forward_s: float = 0.0
    finish: str = ""

    def add_call(self, seconds: float, forward: float) -> None:
        """One more call; the first is the one that read the prompt."""
        if self.calls:
            self.decode_s += seconds
            self.forward_s += forward
        else:
            self.prefill_s = seconds
        self.calls += 1
