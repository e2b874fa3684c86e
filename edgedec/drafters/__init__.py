"""Drafters: each file guesses the tokens ahead in its own way; file name = registry key.

Whatever a drafter guesses, the output stays what it would have been (`edgedec.decoding.verify`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.decoding.context import Context
from edgedec.errors import UsageError
from edgedec.runtime.core import Begun, Output, Runtime, Want
from edgedec.runtime.rows import Rows
from edgedec.sampling import Probs
from edgedec.text.tokenizer import Tokenizer

State = dict[str, NDArray[Any]]
# What several sessions learned of their model and hold in common. Not for two threads at once.
Tables = dict[Hashable, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Sampled:
    """Of a draft whose tokens were drawn: from which distributions, and the verifier (a name in
    `edgedec.decoding.verify.VERIFIERS`) that is right for the way they were drawn. One `Probs` for each token."""

    verifier: str
    probs: Sequence[Probs]


@dataclass(frozen=True)
class Draft:
    """A tree of guessed tokens below the last known one; parent -1 is that last known token.

    p: how likely each token is to come true if its parent does, as the drafter sees it (the governor
    learns what such words are worth); empty: nothing is said. begun: the pending rows and these have been
    through the first blocks already. by: the names of the drafters behind each token, and why: the governor's
    reason for a draft of this size; both for people.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    p: Sequence[float] = ()
    begun: Begun | None = None
    sampled: Sampled | None = None
    by: Sequence[str] = ()
    why: str = ""

    @classmethod
    def chain(cls, tokens: Sequence[int], p: Sequence[float] = ()) -> Draft:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), p)


@dataclass(frozen=True)
class Seen:
    """What a call showed. Numbers of rows count from the last known token, which is 0; drafted rows follow.

    path: the rows that came true, 0 first; picked: the token that followed each of them (the last is new).
    output: of all these rows, what `wants` asked for. seconds: what the call took; total: the rows of all texts
    in it.
    """

    rows: Rows
    root: int
    path: Sequence[int]
    picked: Sequence[int]
    output: Output
    seconds: float
    total: int = 0

    def tokens(self) -> list[int]:
        """The token of each row, 0 first."""
        ids: list[int] = self.rows.tokens[self.root :].tolist()
        return ids


class Drafter(Protocol):
    """What the loop asks of a drafter. An empty proposal is plain decoding.

    `wants`: what calls shall show to `observe`, besides what the loop itself needs.
    """

    @property
    def wants(self) -> Want: ...

    def propose(self, context: Context, nodes: int, floor: float) -> Draft:
        """At most `nodes` tokens that may follow `context.ids`, none of which is less likely than `floor`
        to come true (its whole path, that is): such a row costs more than it brings.

        Between `reset` and `reset` the ids only grow: what was indexed once stays true.
        """
        ...

    def observe(self, seen: Seen) -> None:
        """A call was made and verified; what it added to the text stands in `context.ids` at the next proposal
        (less, if the text ended in the middle)."""
        ...

    def reset(self) -> None:
        """Another text begins. What was learned about the model stays."""
        ...

    def state(self) -> State:
        """What was learned, as arrays to keep; empty if nothing is worth keeping."""
        ...

    def report(self) -> dict[str, Any]:
        """What people may want to know of the work so far, fit for JSON."""
        ...

    def restore(self, state: State) -> None:
        """Take up what an earlier `state` gave; UsageError if it cannot be of this drafter and model."""
        ...


class Plain:
    """What most drafters have in common: nothing wanted, nothing learned."""

    wants: Want = Want(logits=False)

    def observe(self, seen: Seen) -> None:
        pass

    def reset(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def report(self) -> dict[str, Any]:
        return {}

    def restore(self, state: State) -> None:
        pass


@dataclass(frozen=True)
class Host:
    """What a drafter may use: the target's runtime, its bundle, its tokenizer (a call: some bundles have none), and
    what other sessions learned of this model (None: each learns for itself)."""

    runtime: Runtime
    bundle: Bundle
    tokenizer: Callable[[], Tokenizer]
    tables: Tables | None = None

    def table(self, name: Hashable, make: Callable[[], T]) -> T:
        """The table of this name: the one that sessions hold in common, or a new one."""
        if self.tables is None:
            return make()
        if name not in self.tables:
            self.tables[name] = make()
        found: T = self.tables[name]
        return found


def drafter_names() -> list[str]:
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


def make_drafter(name: str, host: Host, options: Mapping[str, str] | None = None) -> Drafter:
    """The drafter `drafters/<name>.py`; options are arguments of its `make`, as text."""
    if name not in drafter_names():
        raise UsageError(f"no drafter {name!r}; there are: {', '.join(drafter_names())}")
    make = import_module(f"edgedec.drafters.{name}").make
    drafter: Drafter = make(host, **_arguments(name, make, options or {}))
    return drafter


def _arguments(name: str, make: Callable[..., Drafter], options: Mapping[str, str]) -> dict[str, Any]:
    """Text as the types that `make` declares."""
    known = dict(list(inspect.signature(make).parameters.items())[1:])
    found: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"drafter {name}: no option {key!r}; there are: {', '.join(known) or 'none'}")
        kind = known[key].annotation
        try:
            found[key] = {"int": int, "float": float}.get(str(kind), str)(value)
        except ValueError:
            raise UsageError(f"drafter {name}: {key}={value}: must be {kind}") from None
    return found
