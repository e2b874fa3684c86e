"""What a runtime is: four methods. `open_runtime` finds one by its file name in `runtimes/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgedec.bundle import Bundle
    from edgedec.cache import Cache
    from edgedec.rows import Rows
    from edgedec.spec import ModelSpec

Hidden = NDArray[np.float32]
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class RuntimeOptions:
    """threads: 0 lets the runtime choose; kv: cache format, None for the bundle's default."""

    threads: int = 0
    kv: str | None = None


class Runtime(Protocol):
    """Runs any slice of a bundle's stack on any rows.

    `run` writes the keys and values of `rows[first:]` into the cache behind its `length` tokens
    and does not change `length`: the caller keeps the rows it wants with `cache.keep`.
    A runtime is safe to share between sessions and threads.
    """

    spec: ModelSpec
    name: str

    def embed(self, tokens: NDArray[np.int64]) -> Hidden:
        """tokens [n] -> hidden [n, hidden_size]."""
        ...

    def run(self, hidden: Hidden, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Hidden:
        """hidden [rows.count, hidden_size] through `blocks`, in the order given."""
        ...

    def head(self, hidden: Hidden) -> Logits:
        """hidden [n, hidden_size] -> logits [n, vocab_size]."""
        ...

    def logits(self, rows: Rows, cache: Cache, skip: int) -> Logits | None:
        """embed, run and head in one: logits of the computed rows but the first `skip`, the cache written
        as by `run`. None if the runtime has no quicker way than those three."""
        ...

    def greedy(self, rows: Rows, cache: Cache, skip: int) -> NDArray[np.int32] | None:
        """As `logits`, but only the token of the largest logit of each row (the lowest of equals, -1 if
        it is not finite). None if the runtime has no quicker way than all logits."""
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
    logits = runtime.logits(rows, cache, skip)
    if logits is not None:
        return logits
    hidden = runtime.embed(rows.tokens[rows.first :])
    return runtime.head(runtime.run(hidden, rows, cache, runtime.spec.blocks())[skip:])


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
