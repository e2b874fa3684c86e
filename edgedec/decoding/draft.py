"""Drafts, and the interface of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.runtime import CallResult, Hidden, Outputs, Rows
from edgedec.sampling import Probs

State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sampled:
    """Of a draft whose tokens were drawn: from which distributions, and the verifier (a file of
    `edgedec.decoding.verify`) that is right for the way they were drawn. One `Probs` for each drawn token;
    these are the first of the draft, and any guesses come after them."""

    verifier: str
    probs: Sequence[Probs]


@dataclass(frozen=True)
class PromptRows:
    """Rows of embeddings that are run below a draft and never accepted. parents: numbers of drafted tokens, -1 the last
    known one; from the number of drafted tokens on, of these rows themselves. embeddings: of the pending tokens, the
    drafted ones, and these rows."""

    parents: Sequence[int]
    embeddings: Hidden


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens below the last known one; parent -1 is that last known token.

    p: how likely each token is to be accepted if its parent is, as the drafter estimates it (the governor
    calibrates such claims); empty: unknown. blocks, hidden: the blocks that verification still has to run, and the
    state that enters them, of the pending rows and these: they have been through the blocks before, which are the share
    `done` of a call; numbers: of each token, which it was of all that went through them (empty: there were no others).
    prompts: rows that run below it (of a draft that has been through no blocks).
    by: the names of the drafters of each token, and why: the governor's reason for a draft of this size; both for
    people. rests (of an empty draft): this function gets the text before each of the next calls, and until it returns
    True nothing is drafted, and the drafter gets no results; None: the drafter proposes at the next call.
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
    rests: Callable[[Sequence[int]], bool] | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int], p: Sequence[float] = ()) -> Draft:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), p)

    def with_prompts(self, prompts: PromptRows) -> Draft:
        return replace(self, prompts=prompts)


# What Python and the calls of small networks take for a level of a draft, on a host of today: until it was measured.
_LEVEL = 1e-4


@dataclass(frozen=True)
class Effort:
    """What a proposal is likely to take, by the size of what makes it: `depth` levels, each the share `share` of the
    multiply-adds of the model's call."""

    depth: int
    share: float

    def seconds(self, call: float) -> float:
        """Where a call of the model takes so many."""
        return self.depth * (self.share * call + _LEVEL)


# A proposal that needs forward calls yields them, so that those of many sequences run together. The governor's also
# yields an offer.
Proposal = Draft | Generator[Request | Offer, Any, Draft]


class Drafter(Protocol):
    """What the loop needs of a drafter. An empty proposal is plain decoding.

    `outputs`: what calls return for `observe`, besides what the loop itself needs. `reads`: what it has to be shown of
    every call, also of those that read a prompt (`read`), whether or not it drafts.
    """

    @property
    def outputs(self) -> Outputs: ...

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        """At most `nodes` tokens that may follow `context.ids`, on no path less likely to be accepted than
        `min_path_prob`: such a row costs more than it brings. A generator that yields calls returns the draft at its
        end.

        Between `reset` and `reset` the ids only grow: what was indexed once stays true.
        """
        ...

    @property
    def reads(self) -> Outputs: ...

    @property
    def prompt_rows(self) -> int:
        """Of so many rows, a prompt's last, `observe` is shown the best tokens as well (`StepResult.prompt`), as many
        as `outputs` name. The head runs for them, and the first token waits for that."""
        ...

    @property
    def shift(self) -> LogitsProcessor | None:
        """What it makes of the target's logits: another text, lossy. None, as of most: nothing."""
        ...

    @property
    def effort(self) -> Effort | None:
        """What a proposal takes, by its size; None: next to nothing, or it is not known before one was made."""
        ...

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        """A chunk of a prompt was read and is committed; `result` has what `reads` names. Called if it names any."""
        ...

    def observe(self, step: StepResult) -> None:
        """Learn from a verified call; what it added to the text stands in `context.ids` at the next proposal
        (less, if the text ended in the middle)."""
        ...

    def prepare(self) -> None:
        """Open or make what has to be there before anything can be drafted; called after a text's first token, so that
        it never waits for that."""
        ...

    def reset(self) -> None:
        """Another text begins. What was learned about the model stays."""
        ...

    def state(self) -> State:
        """What was learned, as arrays to keep; empty if nothing is worth keeping."""
        ...

    def own_state(self) -> State:
        """The part of `state` that sessions with shared tables do not share."""
        ...

    def report(self) -> dict[str, Any]:
        """What people may want to know of the work so far, fit for JSON."""
        ...

    def restore(self, state: State) -> None:
        """Continue from what an earlier `state` returned; UsageError if it cannot be of this drafter and model."""
        ...

    def inherit(self, other: Drafter) -> None:
        """Continue from what another one of these options knows now, as `restore(other.state())` would."""
        ...


class BaseDrafter:
    """What most drafters have in common: no extra outputs, nothing learned."""

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
