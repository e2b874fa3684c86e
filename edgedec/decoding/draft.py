"""Drafts, and the interface of a drafter."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.runtime import CallResult, Hidden, Outputs, Rows, StepGovernor, Stepped
from edgedec.sampling import Probs

State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sampled:
    """The distributions that a draft's tokens were drawn from, and the verifier (a file of `edgedec.decoding.verify`)
    that fits the way they were drawn. One `Probs` for each drawn token; drawn tokens come first in the draft, tokens
    that were not drawn after them."""

    verifier: str
    probs: Sequence[Probs]


@dataclass(frozen=True)
class PromptRows:
    """Rows that run below a draft and are never accepted. parents: indices of drafted tokens, -1 for the last known
    token; indices from the number of drafted tokens on refer to these rows themselves. embeddings: of the pending
    tokens, the drafted tokens and these rows; of a draft that has been through some blocks, the states after those.
    tokens, groups: of these rows, if they are tokens and see each other in groups, instead."""

    parents: Sequence[int]
    embeddings: Hidden | None = None
    tokens: Sequence[int] = ()
    groups: Sequence[int] = ()


class StepDrafting(Protocol):
    """Drafts that the runtime's own steps make, as `governor` decides."""

    @property
    def governor(self) -> StepGovernor: ...

    def add_call(self, done: Stepped) -> None:
        """Learn what a call took."""
        ...

    def name(self, by: int) -> str:
        """The names of the drafters of a token, by bit."""
        ...


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens below the last known token, which is parent -1.

    p: the drafter's estimate of the probability that each token is accepted if its parent is (the governor calibrates
    it); empty if unknown. blocks, hidden: the blocks that verification still has to run, and the hidden states of the
    pending and drafted rows that enter them; drafting has run the blocks before these, which are the share `done` of a
    call. numbers: the index of each token among all tokens that drafting ran through those blocks (empty: the draft has
    all of them). prompts: rows that run below it. by: the names of the
    drafters of each token; why: the governor's reason for a draft of this size; both for display. rest (of an empty
    draft): the number of further calls that run without drafts and without the drafter, which gets no results of them;
    0: it proposes at the next call. unseen: it needs no result of this call either, so the runtime's own steps may make
    this one too. steps: drafts in the runtime's own steps, in so many calls from this one on.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    p: Sequence[float] = ()
    blocks: Sequence[int] | None = None
    hidden: Hidden | None = None
    numbers: Sequence[int] = ()
    done: float = 0.0
    sampled: Sampled | None = None
    by: Sequence[str] = ()
    why: str = ""
    prompts: PromptRows | None = None
    rest: int = 0
    unseen: bool = False
    steps: StepDrafting | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int], p: Sequence[float] = ()) -> Draft:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), p)

    def with_prompts(self, prompts: PromptRows) -> Draft:
        return replace(self, prompts=prompts)


# Seconds of Python and of small networks' calls per level of a draft, on a current host: used until measured.
_LEVEL = 1e-4


@dataclass(frozen=True)
class Effort:
    """The expected cost of a proposal: `depth` levels, each with the share `share` of the multiply-adds of the model's
    call."""

    depth: int
    share: float

    def seconds(self, call: float) -> float:
        """The expected seconds of a proposal if a call of the model takes `call` seconds."""
        return self.depth * (self.share * call + _LEVEL)


# A proposal that needs forward calls yields them, so that those of many sequences run together. The governor's also
# yields an offer.
Proposal = Draft | Generator[Request | Offer, Any, Draft]


class Drafter(Protocol):
    """The interface of a drafter. An empty proposal is plain decoding.

    `outputs`: what calls return for `observe`, besides the outputs that the loop itself needs. `reads`: the outputs
    that the drafter gets of every call, prompt chunks included (`read`), whether or not it drafts."""

    @property
    def outputs(self) -> Outputs: ...

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        """A draft of at most `nodes` tokens after `context.ids`, with no path less likely to be accepted than
        `min_path_prob`: such a row costs more than it gains. A generator that yields calls returns the draft at its
        end.

        Between two calls of `reset` the ids only grow, so that an index of them stays valid."""
        ...

    @property
    def reads(self) -> Outputs: ...

    @property
    def prompt_rows(self) -> int:
        """The number of last prompt rows whose best tokens `observe` gets as well (`StepResult.prompt`), as many tokens
        as `outputs` name. The head runs for these rows, which delays the first token."""
        ...

    @property
    def shift(self) -> LogitsProcessor | None:
        """A processor that the drafter applies to the target's logits, which changes the text (lossy). None for most
        drafters."""
        ...

    @property
    def effort(self) -> Effort | None:
        """The expected cost of a proposal; None if it is negligible, or unknown before the first one."""
        ...

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        """Process a chunk of a prompt that was read and committed; `result` has the outputs of `reads`. Called only if
        `reads` names any."""
        ...

    def observe(self, step: StepResult) -> None:
        """Learn from a verified call. Its tokens are in `context.ids` at the next proposal (fewer, if the text ended
        among them)."""
        ...

    def prepare(self) -> None:
        """Open or build what drafting needs. Called after a text's first token, so that the first token is not
        delayed."""
        ...

    def end(self, context: Context) -> None:
        """Account for what came since the last proposal. Called when a generation ends, complete or not, and before a
        `reset` during one. A later generation may continue the text."""
        ...

    def reset(self) -> None:
        """Prepare for another text; what was learned about the model stays."""
        ...

    def state(self) -> State:
        """The learned state as arrays to save; empty if there is none."""
        ...

    def own_state(self) -> State:
        """The part of `state` that sessions with shared tables do not share."""
        ...

    def report(self) -> dict[str, Any]:
        """Figures about the work so far, for display, as JSON values."""
        ...

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned; UsageError if it does not fit this drafter and model."""
        ...

    def inherit(self, other: Drafter) -> None:
        """Continue from the current state of another drafter with the same options, as `restore(other.state())`
        would."""
        ...


class BaseDrafter:
    """The defaults of most drafters: no extra outputs, no learned state."""

    outputs: Outputs = Outputs()
    reads: Outputs = Outputs()
    prompt_rows: int = 0
    effort: Effort | None = None
    shift: LogitsProcessor | None = None

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        return None

    def observe(self, step: StepResult) -> None:
        pass

    def prepare(self) -> None:
        pass

    def end(self, context: Context) -> None:
        pass

    def reset(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def own_state(self) -> State:
        return {}

    def report(self) -> dict[str, Any]:
        return {}

    def restore(self, state: State) -> None:
        pass

    def inherit(self, other: Drafter) -> None:
        self.restore(other.state())
