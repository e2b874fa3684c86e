"""What a runtime is: four methods. `open_runtime` finds one by its file name in `runtimes/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle
    from edgedec.cache.host import Cache
    from edgedec.runtime.rows import Rows
    from edgedec.spec import ModelSpec

Hidden = NDArray[np.float32]
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class RuntimeOptions:
    """threads: 0 lets the runtime choose; kv: cache format, None for the bundle's default."""

    threads: int = 0
    kv: str | None = None


@dataclass(frozen=True)
class Want:
    """What a call shall say of its rows: all logits, the `top` best tokens, the hidden states behind the last block."""

    logits: bool = True
    top: int = 0
    hidden: bool = False

    def __or__(self, other: Want) -> Want:
        return Want(self.logits or other.logits, max(self.top, other.top), self.hidden or other.hidden)


@dataclass(frozen=True)
class Output:
    """One line for each row; None for what was not wanted.

    logits [n, vocab_size]; ids int32 [n, top]: the best tokens, the best first, the lowest of equals first, -1 where
    a logit is not finite; scores [n, top]: their logits; hidden [n, hidden_size]: behind the last block, before
    the final norm.
    """

    logits: Logits | None = None
    ids: NDArray[np.int32] | None = None
    scores: NDArray[np.float32] | None = None
    hidden: Hidden | None = None


@dataclass(frozen=True)
class Begun:
    """Rows that have been through all blocks before `block`: their keys and values there are in the cache,
    their hidden states [rows, hidden_size] are these."""

    hidden: Hidden
    block: int


class Call(NamedTuple):
    """The whole stack on `rows`, or what is left of it for begun ones: what is wanted of the computed rows but the
    first `skip`."""

    rows: Rows
    cache: Cache
    skip: int
    want: Want
    begun: Begun | None = None


class Runtime(Protocol):
    """Runs any slice of a bundle's stack on any rows.

    `run` writes the keys and values of `rows[first:]` into the cache behind its `length` tokens
    and does not change `length`: the caller keeps the rows it wants with `cache.keep`.
    A runtime is safe to share between sessions and threads. `invariant`: a row's logits are the same bytes
    whatever other rows share its call, so that verifying a draft gives exactly what plain decoding gives.
    """

    spec: ModelSpec
    name: str
    invariant: bool

    def embed(self, tokens: NDArray[np.int64]) -> Hidden:
        """tokens [n] -> hidden [n, hidden_size]."""
        ...

    def run(self, hidden: Hidden, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Hidden:
        """hidden [rows.count, hidden_size] through `blocks`, in the order given."""
        ...

    def head(self, hidden: Hidden) -> Logits:
        """hidden [n, hidden_size] -> logits [n, vocab_size]."""
        ...

    def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> Output | None:
        """embed, run and head in one: what is wanted of the computed rows but the first `skip`, the cache written
        as by `run`. None if the runtime has no quicker way than those three."""
        ...

    def call_all(self, calls: Sequence[Call]) -> list[Output] | None:
        """Calls of several texts in one, each with a cache of its own. None if that is no quicker here."""
        ...

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache with room for `capacity` rows."""
        ...

    def load(self) -> None:
        """Open now what the whole stack needs, rather than at first use."""
        ...

    def release(self) -> None:
        """Give back what can be opened again."""
        ...


def choose_engine(wanted: str = "auto") -> str:
    """The runtime that a name means; `auto` is the fastest that runs here."""
    if wanted != "auto":
        return wanted
    return "ort" if import_module("edgedec.runtimes.native").why_not() else "native"


def available_cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_kv(bundle: Bundle, wanted: str | None) -> str:
    """The cache format to use: the bundle's first unless another of its formats is wanted."""
    formats = bundle.manifest.kv_formats
    if wanted is not None and wanted not in formats:
        raise RuntimeUnavailable(
            f"{bundle.path}: exported for KV {', '.join(formats)}, not {wanted}; export again with --kv {wanted}"
        )
    return wanted or formats[0]


def forward(runtime: Runtime, rows: Rows, cache: Cache, skip: int = 0) -> Logits:
    """The whole stack on `rows`: logits of the computed rows but the first `skip`, [count - skip, vocab_size]."""
    logits = compute(runtime, rows, cache, skip, Want()).logits
    assert logits is not None
    return logits


def compute(runtime: Runtime, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> Output:
    """The whole stack on `rows`, or what is left of it: what is wanted of the computed rows but the first `skip`."""
    output = runtime.call(rows, cache, skip, want, begun)
    if output is not None:
        return output
    blocks, start = runtime.spec.blocks(), 0
    if begun is None:
        hidden = runtime.embed(rows.tokens[rows.first :])
    else:
        hidden, start = begun.hidden, begun.block
    hidden = runtime.run(hidden, rows, cache, blocks[start:])[skip:]
    logits = runtime.head(hidden) if want.logits or want.top else None
    ids, scores = best(logits, want.top) if want.top and logits is not None else (None, None)
    return Output(logits if want.logits else None, ids, scores, hidden if want.hidden else None)


def compute_all(runtime: Runtime, calls: Sequence[Call]) -> list[Output]:
    """`compute` for calls of several texts, together where the runtime can."""
    together = runtime.call_all(calls) if len(calls) > 1 else None
    return [compute(runtime, *call) for call in calls] if together is None else together


def best(logits: Logits, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """logits [n, vocab] -> the k best tokens of each row and their logits.

    The best first, the lowest of equals first; -1 where a logit is not finite.
    """
    ids = np.stack([_best(row, min(k, logits.shape[1])) for row in logits])
    scores = np.take_along_axis(logits, ids, axis=1)
    # argmax stops at the first NaN, so that a row which has one says so in its first place.
    return np.where(np.isfinite(scores), ids, -1).astype(np.int32), scores


def _best(row: Logits, k: int) -> NDArray[np.int64]:
    """row [vocab] -> [k]."""
    if k == 1 or np.isnan(row[row.argmax()]):
        first = row.argmax()
        return np.array([first] * k, np.int64)
    near = np.flatnonzero(row >= np.partition(row, len(row) - k)[len(row) - k])
    return near[np.argsort(-row[near], kind="stable")][:k]


def runtime_names() -> list[str]:
    """The runtimes that ship, by file name."""
    package = import_module("edgedec.runtimes")
    return sorted(m.name for m in iter_modules(package.__path__) if not m.name.startswith("_"))


def open_runtime(name: str, bundle: Bundle, options: RuntimeOptions | None = None) -> Runtime:
    """The runtime `runtimes/<name>.py` on `bundle`."""
    if name not in runtime_names():
        raise RuntimeUnavailable(f"no runtime {name!r}; there are: {', '.join(runtime_names())}")
    module = import_module(f"edgedec.runtimes.{name}")
    runtime: Runtime = module.open(bundle, options or RuntimeOptions())
    return runtime
