"""Run by test_read_ahead.py with watched_reads.cpp loaded: what the engine wants to be read, call by call.

python watched_reads.py FOLDER MODEL INNER FORMAT CHUNK IN_MEMORY
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bundles import random_weights, write_bundle

from edgedec.bundle import Bundle
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime
from edgedec.spec import ModelSpec, Moe
from edgedec.testing.conformance.compare import tokens
from edgedec.testing.conformance.models import MODELS

TOKENS = 12


def spec_of(model: str, inner: int) -> ModelSpec:
    """A model of the conformance suite whose experts are many pages."""
    spec = MODELS[model]
    layers = (tuple(replace(b, inner_size=inner) if isinstance(b, Moe) else b for b in layer) for layer in spec.layers)
    return replace(spec, layers=tuple(layers)).check()


def bundle_of(folder: Path, model: str, inner: int, fmt: str) -> Bundle:
    spec = spec_of(model, inner)
    return write_bundle(folder, spec, random_weights(spec), fmt)


def main(folder: Path, model: str, inner: int, fmt: str, chunk: int, in_memory: int) -> None:
    bundle = bundle_of(folder, model, inner, fmt)
    watch = ctypes.CDLL(None)
    count = ctypes.c_int.in_dll(watch, "watched_count")
    ranges = (ctypes.c_size_t * (1 << 16)).in_dll(watch, "watched_ranges")
    ctypes.c_int.in_dll(watch, "watched_in_memory").value = in_memory
    runtime = open_runtime("native", bundle, RuntimeOptions(threads=2, kv="f32"))
    ids, base = tokens(bundle.spec, TOKENS), bundle.weights.ctypes.data
    cache, found, digest = runtime.new_cache(TOKENS), list[list[tuple[int, int]]](), hashlib.sha256()
    for at in range(0, TOKENS, chunk):
        count.value = 0
        digest.update(logits_of(runtime, Rows.chain(ids[at : at + chunk], at), cache).tobytes())
        cache.commit(range(chunk))
        found.append([(ranges[2 * i] - base, ranges[2 * i + 1]) for i in range(count.value)])
    print(json.dumps({"reads": found, "logits": digest.hexdigest()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
