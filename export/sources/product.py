"""Matrix products (`kernels/cpu/gemm.inl`): sixteen outputs of a tile of rows a group of threads."""

from __future__ import annotations

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.epilogue import KernelEnd, Stacked, groups_of
from edgedec.export.sources.kernel import Kernels
from edgedec.export.sources.product_lanes import float_product
from edgedec.export.sources.product_steps import step_product
from edgedec.export.sources.weights import is_quantized, kind_of, parts_of

# Rows of a tile.
TILES = (1, 4)


def items_of(t: Tensor, epilogue: KernelEnd, stacked: Stacked | None = None) -> int:
    """Groups of outputs, of stacked matrices those of all that a row takes."""
    if stacked is None:
        return groups_of(t, epilogue)
    return stacked.top_k * groups_of(stacked.one(t), epilogue)


def product(k: Kernels, t: Tensor, epilogue: KernelEnd, stacked: Stacked | None = None) -> dict[int, str]:
    """Write the kernels of a product for tiles of rows; their names. Arrays: q, scale, sum, data, scales, zeros (as far
    as there are) of quantized weights; x, data of floats; then experts of stacked matrices, bias if there is one, and
    y. Rows that go through experts are one a tile, for others have other weights."""
    one, made = t if stacked is None else stacked.one(t), {}
    for tile in TILES if is_quantized(t) and stacked is None else (1,):
        name = made[tile] = _name(one, epilogue, stacked, tile)
        if k.has(name):
            continue
        arrays = _arrays(one, epilogue, stacked)
        if is_quantized(t):
            step_product(k, name, arrays, one, epilogue, stacked, tile)
        else:
            float_product(k, name, arrays, one, epilogue, stacked)
    return made


def _name(t: Tensor, epilogue: KernelEnd, stacked: Stacked | None, tile: int) -> str:
    shape, experts = "x".join(str(n) for n in t.shape), ""
    if stacked is not None:
        experts = f"{'pairs' if stacked.by_pair else 'rows'}_of{stacked.top_k}"
    parts = (f"product_{kind_of(t)}_{t.block}_{shape}", experts, epilogue.name, f"rows{tile}")
    return "_".join(part for part in parts if part)


def _arrays(t: Tensor, epilogue: KernelEnd, stacked: Stacked | None) -> dict[str, str]:
    """The arguments."""
    if is_quantized(t):
        found = {"q": "uint32", "scale": "float32", "sum": "int32", "data": "uint32"}
        found |= dict.fromkeys(parts_of(t), "uint32")
    else:
        found = {"x": "float32", "data": "float32" if t.format == "f32" else "uint32"}
    found |= {} if stacked is None else {"experts": "int32"}
    return found | ({"bias": "float32"} if epilogue.bias else {}) | {"y": "float32"}
