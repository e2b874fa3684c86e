"""Random adapters with gates, for tests of sets of them."""

from __future__ import annotations

import numpy as np
from bundles import ODD

from edgedec.bundle.adapter import Gates, LoraAdapter, LowRank
from edgedec.spec import Attention, Mlp, ModelSpec


def parts_of(spec: ModelSpec, name: str) -> list[tuple[int, int]]:
    """(first output, outputs) of what a checkpoint has as matrices of their own."""
    block, kind = spec.blocks[int(name.split(".")[1])], name.split(".")[2]
    if isinstance(block, Attention) and kind == "qkv":
        q, kv = block.q_dim, block.kv_dim
        return [(0, q), (q, kv), (q + kv, kv)]
    if isinstance(block, Mlp) and kind == "gate_up":
        return [(0, block.inner_size), (block.inner_size, block.inner_size)]
    return [(0, spec.tensors()[name][0])]


def gated(seed: int, spec: ModelSpec = ODD["all"], rank: int = 3) -> LoraAdapter:
    """A random adapter of all matrices, with gates whose means are far from zero."""
    rng, found = np.random.default_rng(seed), {}
    for name in sorted(name for name in spec.matrices if name.startswith("blocks.")):
        (n, k), parts = spec.tensors()[name], parts_of(spec, name)
        a, b = rng.normal(0, 0.3, (rank * len(parts), k)), np.zeros((n, rank * len(parts)))
        for i, (first, count) in enumerate(parts):
            b[first : first + count, i * rank : (i + 1) * rank] = rng.normal(0, 0.3, (count, rank))
        spans = np.array([(rank, *part) for part in parts], np.int32)
        vectors = rng.normal(seed, 1 + seed, (len(parts), k)).astype(np.float32)
        found[name] = LowRank(a.astype(np.float32), b.astype(np.float32), Gates(vectors, spans))
    return LoraAdapter(f"a{seed}", f"{seed}" * 64, found)
