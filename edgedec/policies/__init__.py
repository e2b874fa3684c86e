"""Cache policies: what a cache keeps of a text, and what of it is looked at. File name = `--cache NAME:option=value,…`.

A policy is lossy: the text is another one than with the whole cache. It is the same, whatever is drafted, batched,
forked or saved: a policy decides from committed rows, at lengths of the text that do not depend on who reads it.
Without one nothing here runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Family, Words
from edgedec.runtime import Adapter, Call, CallResult, Capabilities, Outputs
from edgedec.spec import ModelSpec

# Every token is kept: no policy.
FULL = "full"
# `room` where drafts may be as long as they like.
ANY_ROOM = 1 << 30

PolicyState = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PolicyHost:
    """What a policy is made for: the model, and what its runtime can do. `folder`: the bundle's, if it has one;
    `decode`: the text of tokens, None if that is not known."""

    spec: ModelSpec
    capabilities: Capabilities
    folder: str = ""
    decode: Callable[[Sequence[int]], str] | None = None


class Chunk(NamedTuple):
    """The next rows of a prompt that are read in one call, and what that call returns for the policy."""

    rows: int
    outputs: Outputs = Outputs()


class TextSize(NamedTuple):
    """What a text takes and may come to. held: slots of its fullest block; cached: its committed tokens; prompt: tokens
    of it so far, of which the last is run by itself; length: tokens that it may come to; chunk: rows of a prompt's
    call at most."""

    held: int
    cached: int
    prompt: int
    length: int
    chunk: int


class CachePolicy(Protocol):
    """One object for one text. `words`: as it was given, with every option; `name`: of its file.

    A prompt is read up to its last token: first by `prefill`, then chunk by chunk (`chunk`, `read`), and `end` comes
    after it. From then on each step is `settle`, `shape`, `observe`.
    """

    name: str
    words: str

    def follow(self, ids: Sequence[int]) -> None:
        """The text so far, before anything else of a step."""
        ...

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """Calls that read these tokens in a way of its own, at most `most` rows each, and the commits after them. What
        it leaves is read in chunks."""
        ...

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        """The next chunk of a prompt of which `left` tokens are to be read."""
        ...

    def read(self, cache: Cache, result: CallResult) -> None:
        """A chunk is committed."""
        ...

    def end(self, cache: Cache) -> None:
        """A prompt is read, but for its last token."""
        ...

    def settle(self, cache: Cache) -> None:
        """Make the decisions that are due at this length; called before every step, and again at the same length."""
        ...

    def room(self, length: int) -> int:
        """How many rows may be drafted after `length` committed tokens: none that would see what a decision after
        fewer tokens drops."""
        ...

    def peak(self, text: TextSize) -> int:
        """The most slots that any block comes to hold from here on, pending rows among them: never too few, as caches
        are admitted by it."""
        ...

    def shape(self, call: Call) -> Call:
        """A step's call with what the policy wants of it, and what its rows may see."""
        ...

    def observe(self, cache: Cache, result: CallResult) -> None:
        """The first row of a step is committed."""
        ...

    def reset(self) -> None:
        """Another text begins: the cache is empty."""
        ...

    def trim(self, cache: Cache) -> None:
        """The last committed tokens were forgotten."""
        ...

    def fork(self) -> CachePolicy:
        """Another one that knows the same."""
        ...

    def state(self) -> PolicyState:
        """What it knows of the text, to be saved with the cache."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        """Know what `state` returned; SessionError if that is not of this policy and cache."""
        ...

    def report(self, cache: Cache) -> dict[str, Any]:
        """What people may want to know, fit for JSON."""
        ...


@runtime_checkable
class WorkingPolicy(Protocol):
    """A policy that makes calls of its own while a text is generated."""

    def work(self, cache: Cache, adapter: Adapter | None) -> Generator[Call, Any, None]:
        """The calls that are due at this length; comes after `settle`."""
        ...


@dataclass(frozen=True)
class PolicyFacts:
    """needs: capabilities of a runtime that it uses; kinds: of blocks that it can run, None: any; budget: the option
    that says how much is kept or read, if it has one of that name; paper: the method."""

    needs: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
    budget: str = "budget"
    paper: str = ""


FAMILY = Family(
    "edgedec.policies",
    "policy",
    where="--cache",
    facts=PolicyFacts,
    words={FULL: "Every token is kept: no policy."},
)


def make_policy(words: Words, host: PolicyHost) -> CachePolicy | None:
    """The policy that "NAME" or "NAME:option=value,…" means; None for "full"."""
    choices = FAMILY.parse(words)
    if len(choices) != 1:
        raise UsageError(f"--cache {words}: a text has one policy; name one of them")
    name, options = choices[0]
    if name == FULL:
        return None
    _require(name, FAMILY.facts(name), host)
    policy: CachePolicy = FAMILY.file(name).make(host, **options)
    policy.name, policy.words = name, words if isinstance(words, str) else json.dumps(words)
    return policy


def bytes_held(cache: Cache) -> int:
    """Bytes of keys and values that the committed slots take, whatever pages they lie in."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[cache.kv]
    return sum(2 * block.kv_dim * bits // 8 * cache.slots(b) for b, block in cache.spec.attention.items())


def _require(name: str, facts: PolicyFacts, host: PolicyHost) -> None:
    """UsageError unless model and runtime have what the policy needs."""
    lacking = [need for need in facts.needs if not getattr(host.capabilities, need, False)]
    if lacking:
        raise UsageError(
            f"--cache {name}: needs a runtime with {', '.join(lacking)}; this engine has none. Use --engine native"
        )
    if not host.spec.attention:
        raise UsageError(f"--cache {name}: this model has no attention blocks of its own, so there is nothing to drop")
    found = {block.kind for block in host.spec.blocks}
    if facts.kinds is not None and not found <= set(facts.kinds):
        raise UsageError(
            f"--cache {name}: cannot run blocks of kind {', '.join(sorted(found - set(facts.kinds)))} on fewer rows; "
            "use a policy that only evicts, such as snapkv"
        )
