"""Compares a bundle's logits with those of the float checkpoint on a text.

Reports KL divergence (nats a token), the share of equal likeliest tokens, and both perplexities.
The bundle is run a layer at a time and each layer is closed again, so that the check needs less
memory than the model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Parity
from edgedec.errors import CheckpointError
from edgedec.export.layers import through_layer
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, choose_runtime, forward_one, open_runtime
from edgedec.runtimes.reference.entry import entered

Logits = NDArray[np.float32]
_ROWS = 32
# Rows of logits compared at once: in float64 a row of a large vocabulary is a megabyte, several times over.
_LOGIT_ROWS = 8
# The most KL divergence, in nats a token, that rounding to halves explains.
_FLOATS, _MOST = ("f32", "f16"), 0.01


def parity(bundle: Bundle, ids: NDArray[np.int64], reference: Logits, text: str, threads: int) -> Parity:
    """reference: the float model's logits [n, vocab] on ids [n]."""
    own = _nll(reference, ids)
    results = {kv: _compare(bundle, kv, ids, reference, threads) for kv in bundle.manifest.kv_formats}
    return Parity(
        text=text,
        tokens=len(ids),
        reference_perplexity=float(np.exp(own)),
        perplexity={kv: r[0] for kv, r in results.items()},
        kl={kv: r[1] for kv, r in results.items()},
        top1={kv: r[2] for kv, r in results.items()},
    )


def check_parity(found: Parity, floats: bool) -> None:
    """CheckpointError for a bundle that computes something else than its checkpoint. floats: its weights are not
    rounded to integers; caches of floats then leave nothing but rounding."""
    for kv, kl in found.kl.items():
        if not np.isfinite(kl) or (floats and kv in _FLOATS and kl > _MOST):
            raise CheckpointError(
                f"with KV {kv} the bundle does not compute what its checkpoint does: {kl:.2g} nats a token apart on "
                f"{found.tokens} tokens of {found.text}. Nothing was written; --no-check writes it as it is"
            )


def _compare(
    bundle: Bundle, kv: str, ids: NDArray[np.int64], reference: Logits, threads: int
) -> tuple[float, float, float]:
    """(perplexity, KL a token, share of equal likeliest tokens) of one cache format."""
    # Prefer ONNX Runtime, which frees a layer's memory; if it cannot run the model, use any runtime that can.
    name = "ort" if "ort" in bundle.manifest.artifacts else choose_runtime(bundle)
    runtime = open_runtime(name, bundle, RuntimeOptions(threads=threads, kv=kv))
    embedded = bundle.gather("embed", ids) * np.float32(bundle.spec.embed_scale)
    cache, hidden = runtime.new_cache(len(ids)), entered(bundle.spec, embedded, np.arange(len(ids)), bundle.rows)
    for layer in range(runtime.spec.n_layers):
        hidden = through_layer(runtime, cache, hidden, ids, layer, _ROWS)
        runtime.release()
    kl = same = nll = 0.0
    for at in range(0, len(ids), _LOGIT_ROWS):
        logits, expected = _head(runtime, hidden[at : at + _LOGIT_ROWS]), reference[at : at + _LOGIT_ROWS]
        p, q = _log_softmax(expected), _log_softmax(logits)
        kl += float((np.exp(p) * (p - q)).sum())
        same += float((logits.argmax(axis=1) == expected.argmax(axis=1)).sum())
        following = ids[at + 1 : at + 1 + len(logits)]
        nll -= float(q[np.arange(len(following)), following].sum())
    return float(np.exp(nll / (len(ids) - 1))), kl / len(ids), same / len(ids)


def _head(runtime: Runtime, hidden: Logits) -> Logits:
    """hidden [n, hidden_size] -> logits [n, vocab_size]: a call of no blocks."""
    rows = Rows.chain([0] * len(hidden), 0)
    logits = forward_one(runtime, Call(rows, runtime.new_cache(len(rows)), (), hidden, ALL_LOGITS)).logits
    assert logits is not None
    return logits


def _nll(logits: Logits, ids: NDArray[np.int64]) -> float:
    """Mean negative log-likelihood of ids[1:]."""
    total = 0.0
    for at in range(0, len(ids) - 1, _LOGIT_ROWS):
        following = ids[at + 1 : at + 1 + _LOGIT_ROWS]
        q = _log_softmax(logits[at : at + len(following)])
        total -= float(q[np.arange(len(following)), following].sum())
    return total / (len(ids) - 1)


def _log_softmax(x: Logits) -> NDArray[np.float64]:
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
