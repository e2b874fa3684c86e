"""Cache policies: what a cache keeps of a text, and what of it is looked at. File name = `--cache NAME:option=value,…`.

A policy is lossy: the text is another one than with the whole cache. It is the same, whatever is drafted, batched,
forked or saved: a policy decides from committed rows, at lengths of the text that do not depend on who reads it.
Without one nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.runtime import Adapter, Call, CallResult, Capabilities, Outputs
from edgedec.spec import ModelSpec
from edgedec.words import split_options, typed_options

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


@cache
def policy_names() -> tuple[str, ...]:
    """The policies that ship, by file name."""
    return tuple(sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_")))


def make_policy(words: str, host: PolicyHost) -> CachePolicy | None:
    """The policy that "NAME" or "NAME:option=value,…" means; None for "full"."""
    name, _, rest = words.partition(":")
    if name == FULL and not rest:
        return None
    if name not in policy_names():
        raise UsageError(f"--cache {words}: no policy {name!r}; there are: {', '.join((FULL, *policy_names()))}")
    file = import_module(f"edgedec.policies.{name}")
    _require(name, getattr(file, "NEEDS", ()), getattr(file, "KINDS", None), host)
    options = typed_options(f"--cache {name}", file.make, split_options(f"--cache {words}", rest, "snapkv:budget=0.2"))
    policy: CachePolicy = file.make(host, **options)
    policy.name, policy.words = name, words
    return policy


def summary_of(name: str) -> str:
    """The first line of a policy's file."""
    return (import_module(f"edgedec.policies.{name}").__doc__ or "").splitlines()[0]


def bytes_held(cache: Cache) -> int:
    """Bytes of keys and values that the committed slots take, whatever pages they lie in."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[cache.kv]
    return sum(2 * block.kv_dim * bits // 8 * cache.slots(b) for b, block in cache.spec.attention.items())


def _require(name: str, needs: Sequence[str], kinds: Sequence[str] | None, host: PolicyHost) -> None:
    """UsageError unless model and runtime have what the policy needs."""
    lacking = [need for need in needs if not getattr(host.capabilities, need, False)]
    if lacking:
        raise UsageError(
            f"--cache {name}: needs a runtime with {', '.join(lacking)}; this engine has none. Use --engine native"
        )
    if not host.spec.attention:
        raise UsageError(f"--cache {name}: this model has no attention blocks of its own, so there is nothing to drop")
    found = {block.kind for block in host.spec.blocks}
    if kinds is not None and not found <= set(kinds):
        raise UsageError(
            f"--cache {name}: cannot run blocks of kind {', '.join(sorted(found - set(kinds)))} on fewer rows; use a "
            "policy that only evicts, such as snapkv"
        )
