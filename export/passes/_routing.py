"""What routers do with calibration text, and models whose mixtures are others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgedec.export.passes._statistics import Statistics
from edgedec.runtimes.reference.moe import ranked, read_by_router, route, sparse_mixed
from edgedec.runtimes.reference.numeric import Array, BlockWeights, Weights
from edgedec.spec import Block, ModelSpec, Moe


@dataclass(frozen=True)
class Routed:
    """The rows of a text at a mixture. x [n, hidden]: what its experts read; read [n, hidden]: its router; experts
    [n, top_k]; shares [n, top_k]: their weights as the router has them; weights [n, top_k]: as they are multiplied."""

    x: Array
    read: Array
    experts: NDArray[np.int64]
    shares: Array
    weights: Array


def routed(statistics: Statistics, spec: ModelSpec, read: Weights) -> Iterator[tuple[int, Moe, list[Routed]]]:
    """(number, block, the rows of each text) of every mixture of experts."""
    run = statistics.run(spec, read)
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Moe):
            w = BlockWeights(spec, b, read)
            yield b, block, [_of(block, w, x) for x in run.state()]
        run.advance(b)


def _of(block: Moe, w: BlockWeights, x: Array) -> Routed:
    read, logits = read_by_router(block, w, x)
    bias = w.get("router_bias") if block.router_bias else None
    mixed = sparse_mixed(block, logits) if block.router == "sparsemixer" else ranked(block, logits, bias)
    experts, weights = route(block, logits, bias)
    if block.expert_scale:
        weights = weights * w.get("expert_scale")[experts]
    return Routed(w.norm(x, block.norm), read, experts, mixed[1], weights)


def with_blocks(spec: ModelSpec, own: Mapping[int, Block]) -> ModelSpec:
    """The model with other blocks at these numbers."""
    layers = (tuple(own.get(b, spec.blocks[b]) for b in spec.span(i, i + 1)) for i in range(spec.n_layers))
    return replace(spec, layers=tuple(layers))
