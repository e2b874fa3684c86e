"""Models of experts, states and weights with zero points, with their kernels' sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bundles import offset

from edgedec.bundle import Bundle
from edgedec.runtimes.tvm.plans import source_of
from edgedec.spec import Attention, Mlp, ModelSpec, Moe, Rope, Ssm
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.sources import MachineMissing, SourceMachine, SourceModel, machine_for

_ROPE = Rope(tuple(1e4 ** (-j / 16) for j in range(16)))
_HEADS = Attention(4, 2, 32, 32**-0.5)
# All routers, groups of experts; weights that sum to 1 and that do not; a shared expert, gated or not; more experts
# than a group has threads; norms after and none before.
EXPERTS = ModelSpec(
    "experts", 101, 64, 512,
    (
        (_HEADS, Moe(6, 3, 32, "softmax_topk", shared_size=48, shared_gate=True, post_norm="rms")),
        (_HEADS, Moe(5, 2, 16, "sigmoid", router_bias=True, scale=0.7, activation="gelu")),
        (_HEADS, Moe(12, 3, 16, "sigmoid", router_bias=True, groups=4, top_groups=2)),
        (_HEADS, Moe(70, 5, 16, normalize=False, shared_size=16, norm="none")),
    ),
    1e-5, False, (_ROPE,),
)  # fmt: skip
# Rows of no whole blocks, biases, activations, an embedding that is the head too.
DENSE = ModelSpec(
    "dense", 101, 80, 512, ((_HEADS, Mlp(96)), (_HEADS, Mlp(112, gated=False, activation="relu", bias=True))),
    1e-5, True, (_ROPE,),
)  # fmt: skip
# Groups of heads that share, groups that are normed apart; heads of no power of two; attention between.
_STATES = Ssm(4, 16, 16, n_groups=2, norm_groups=2, dt_min=0.001, dt_max=0.5)
_WIDE = Ssm(3, 80, 40, conv_size=3, proj_bias=True, post_norm="rms")
STATES = ModelSpec(
    "states", 101, 64, 512,
    ((_STATES, Mlp(96)), (_HEADS, Moe(6, 2, 16)), (_WIDE, Mlp(96))),
    1e-5, False, (_ROPE,),
)  # fmt: skip
MODELS = {"experts": EXPERTS, "dense": DENSE, "states": STATES}


def bundle_of(folder: Path, model: str, how: str, languages: tuple[str, ...]) -> Bundle:
    """A model of random weights with its sources. how: "int4", or "int8+64": zero points, in blocks of 64."""
    spec, (fmt, _, block) = MODELS[model], how.partition("+")
    weights: Any = random_weights(spec)
    zeroed = [name for name in spec.tensors() if name in spec.matrices - {"embed"}]

    def kept(name: str) -> Any:
        return offset(weights[name], fmt, int(block)) if block and name in zeroed else None

    wanted = tuple(f"tvm:{name}" for name in languages)
    bundle = write_bundle(folder, spec, weights, fmt, wanted, kept=kept)  # type: ignore[arg-type]
    assert {bool(bundle.manifest.tensors[name].zeros) for name in zeroed} == {bool(block)}
    return bundle


@cache
def _machine(language: str, path: Path) -> SourceMachine | str:
    try:
        return machine_for(language, *source_of(Bundle.open(path), language))
    except MachineMissing as error:
        return str(error)


def machine_of(language: str, path: Path) -> SourceMachine:
    """What runs a bundle's sources in a language; a test is skipped where nothing here does."""
    found = _machine(language, path)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def opened(bundle: Bundle, language: str, kv: str, capacity: int) -> SourceModel:
    """The model by its sources in a language."""
    return SourceModel(bundle, source_of(bundle, language)[1], machine_of(language, bundle.path), kv, capacity)
