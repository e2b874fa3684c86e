"""The check that ends every import of a graph: beside its checkpoint, and beside itself. What does not agree is not
written."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import CheckpointError
from edgedec.export.checkpoint_logits import Expected
from edgedec.models import FAMILY as ARCHITECTURES
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

_TOKENS = 48
# Of the logits' spread. A graph of quantized products may depend on the rows of a call; another model is off by 1.
_BESIDE_ITSELF, _BESIDE_CHECKPOINT = 0.25, {"f32": 2e-3, "f16": 2e-2}


class Checked(NamedTuple):
    """off: the largest difference between logits of a text in one call and token by token, of their spread; apart: from
    the checkpoint's, by whom; None: nothing but the graph could compute them."""

    off: float
    apart: float | None = None
    by: str = ""


def check_import(bundle: Bundle, threads: int, expected: Callable[[NDArray[np.int64]], Expected | None]) -> Checked:
    """Compare; CheckpointError for a graph that does not compute what it should. expected: the checkpoint's logits of
    a text."""
    runtime = open_runtime("graph", bundle, RuntimeOptions(threads=threads))
    spec, graph = bundle.spec, bundle.manifest.source["graph"]
    n = min(_TOKENS, spec.context_length)
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, n)
    whole, cache = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(n)), runtime.new_cache(n)
    if not np.isfinite(whole).all():
        raise CheckpointError(f"{graph}: gives logits that are not finite")
    single = []
    for i in range(n):
        single.append(logits_of(runtime, Rows.chain(ids[i : i + 1], i), cache))
        cache.commit([0])
    off = _apart(np.concatenate(single), whole)
    if off > _BESIDE_ITSELF:
        raise CheckpointError(
            f"{graph}: token by token its logits differ from those of the whole text by {off:.1g} of their spread: its "
            "cache does not work; export it again with another version of optimum"
        )
    wanted = expected(ids)
    if wanted is None:
        return Checked(off)
    apart = _apart(whole, wanted.logits)
    if apart > _BESIDE_CHECKPOINT.get(cache.kv, 2e-3):
        raise CheckpointError(_disagreement(spec.architecture, graph, apart, wanted.by))
    return Checked(off, apart, wanted.by)


def _disagreement(architecture: str, graph: str, apart: float, by: str) -> str:
    own = "; `edgedec export` without --via runs this architecture itself" if architecture in ARCHITECTURES else ""
    return (
        f"{graph}: a {architecture} that computes something else than its checkpoint: logits differ from those of {by} "
        f"by {apart:.2g} of their spread. optimum does not export this model rightly; nothing was written{own}"
    )


def _apart(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.abs(found - wanted).max() / max(float(wanted.std()), 1e-9))
