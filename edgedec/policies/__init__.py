"""Cache policies: what a KV cache keeps of a text, and what a step reads of it.

A policy is lossy: the text differs from that of the whole cache. But it does not depend on drafting, batching, forking
or saving: a policy decides from committed rows, at lengths of the text that are independent of how the text is split
into calls. Without a policy none of this code runs.
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
from edgedec.text.subwords import Joinable

# Every token is kept: no policy.
FULL = "full"
# The value of `room` without a limit on drafts.
ANY_ROOM = 1 << 30

PolicyState = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PolicyHost:
    """The inputs of a policy's `make`: the model and its runtime's capabilities. `folder`: the bundle's, if it has one;
    `decode`: the text of tokens, `joinable`: which of them may be joined; both None without a tokenizer. `images`:
    texts may have rows of images."""

    spec: ModelSpec
    capabilities: Capabilities
    folder: str = ""
    decode: Callable[[Sequence[int]], str] | None = None
    images: bool = False
    joinable: Callable[[], Joinable] | None = None


class Chunk(NamedTuple):
    """The size of the next call of a prompt, and the outputs that the policy needs of it."""

    rows: int
    outputs: Outputs = Outputs()


class TextSize(NamedTuple):
    """The present and the largest size of a text. held: slots of its fullest block; cached: its committed tokens;
    prompt: its tokens so far, of which the last runs by itself; length: its largest number of tokens; chunk: the most
    rows of a prompt's call."""

    held: int
    cached: int
    prompt: int
    length: int
    chunk: int


class CachePolicy(Protocol):
    """The cache policy of one text. `words`: its name with every option, as for `--cache`; `name`: of its file.

    A prompt is read up to its last token: first by `prefill`, then chunk by chunk (`chunk`, `read`), and `end` comes
    after it. From then on each step is `settle`, `shape`, `observe`.
    """

    name: str
    words: str

    def follow(self, ids: Sequence[int]) -> None:
        """Set the text so far; the first call of each step."""
        ...

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """Read tokens by the policy's own calls of at most `most` rows, and commit them. The remaining tokens are read
        in chunks."""
        ...

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        """The next chunk of a prompt of which `left` tokens are to be read."""
        ...

    def read(self, cache: Cache, result: CallResult) -> None:
        """Process the result of a committed chunk."""
        ...

    def end(self, cache: Cache) -> None:
        """Note that a prompt is read, except for its last token."""
        ...

    def settle(self, cache: Cache) -> None:
        """Make the decisions that are due at this length; called before every step, and again at the same length."""
        ...

    def room(self, length: int) -> int:
        """The most rows that may be drafted after `length` committed tokens, so that no drafted row reaches beyond the
        next decision."""
        ...

    def peak(self, text: TextSize) -> int:
        """An upper bound of the slots of any block from here on, pending rows included; admission relies on it."""
        ...

    def shape(self, call: Call) -> Call:
        """A step's call with the outputs that the policy needs, and the views of its rows."""
        ...

    def observe(self, cache: Cache, result: CallResult) -> None:
        """Process the result of a step, whose first row is committed."""
        ...

    def reset(self) -> None:
        """Prepare for another text: the cache is empty."""
        ...

    def trim(self, cache: Cache) -> None:
        """Note that the last committed tokens were removed."""
        ...

    def fork(self) -> CachePolicy:
        """An independent copy with the same state."""
        ...

    def state(self) -> PolicyState:
        """The policy's state of the text, to be saved with the cache."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        """Restore a state of `state`; SessionError if it does not fit this policy and cache."""
        ...

    def report(self, cache: Cache) -> dict[str, Any]:
        """Figures for display, as JSON values."""
        ...


@runtime_checkable
class WorkingPolicy(Protocol):
    """A policy that makes calls of its own while a text is generated."""

    def work(self, cache: Cache, adapter: Adapter | None) -> Generator[Call, Any, None]:
        """The calls that are due at this length; comes after `settle`."""
        ...


@dataclass(frozen=True)
class PolicyFacts:
    """needs: the capabilities of a runtime that it uses; kinds: the block kinds that it supports, None: any; budget:
    the option that sets how much is kept or read, if there is one; paper: the method."""

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
    """The policy for "NAME" or "NAME:option=value,…"; None for "full"."""
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
    return sum(block.kv_parts * block.kv_dim * bits // 8 * cache.slots(b) for b, block in cache.spec.attention.items())


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
