"""Saved caches name the shape of what they hold: the GPU engines write the number that the native engine writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import unpack_from

import pytest

from edgedec.kernels.cpu import loader
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtimes._device.runtime import FACTS_OF_MODELS, KINDS
from edgedec.runtimes._device.saved import state_shape
from edgedec.spec import Attention, Conv, Delta, Mlp, ModelSpec, Moe, Rope, Ssm
from edgedec.spec.newer import newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytest.importorskip("onnx", reason="bundles are written with onnx")
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
SHARED = [n for n, spec in MODELS.items() if set(spec.kinds) <= set(KINDS) and set(newer(spec)) <= set(FACTS_OF_MODELS)]


@needs_native
@pytest.mark.parametrize("name", SHARED)
def test_the_number_of_the_native_engine(name: str, tmp_path: Path) -> None:
    spec = MODELS[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    saved = open_runtime("native", bundle, RuntimeOptions(threads=1, kv="f32")).new_cache(4).save()["state"]
    magic, version, _, blocks, shape, length = unpack_from("=4s3iQq", saved.tobytes())
    assert (magic, version, blocks, length) == (b"edkv", 1, spec.n_blocks, 0)
    assert shape == state_shape(spec)


def test_models_of_all_kinds_are_tried() -> None:
    assert {kind for name in SHARED for kind in MODELS[name].kinds} == set(KINDS)


HEADS, CONV = Attention(4, 2, 8, 0.35), Conv(inner_size=32, conv_size=3)
STATES, RULE = Ssm(4, 16, 16, 2, 2, 0.001, 0.5), Delta(n_heads=4, head_dim=16, key_dim=24, n_groups=2, conv_size=3)
OTHERS = [
    *((HEADS, replace(HEADS, **{name: value})) for name, value in (("n_kv_heads", 4), ("head_dim", 16))),
    *((CONV, replace(CONV, **{name: value})) for name, value in (("inner_size", 64), ("conv_size", 4))),
    *(
        (STATES, replace(STATES, **{name: value}))
        for name, value in (("n_heads", 8), ("head_dim", 32), ("state_size", 32), ("n_groups", 4), ("conv_size", 3))
    ),
    *(
        (RULE, replace(RULE, **{name: value}))
        for name, value in (("n_heads", 8), ("head_dim", 32), ("key_dim", 32), ("n_groups", 4), ("conv_size", 4))
    ),
    (Mlp(32), Moe(4, 2, 32)),
    (HEADS, Mlp(32)),
]


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_caches_of_other_sizes_have_another_number(one: object, other: object) -> None:
    rope = Rope(tuple(1e3 ** (-j / 4) for j in range(4)))
    specs = [ModelSpec("m", 31, 16, 64, ((HEADS, block),), 1e-5, True, (rope,)) for block in (one, other)]  # type: ignore[arg-type]
    assert state_shape(specs[0]) != state_shape(specs[1])


def test_sizes_that_no_cache_depends_on_do_not_count() -> None:
    one, other = (ModelSpec("m", 31, 16, 64, ((block, Mlp(n)),), 1e-5, True) for block, n in ((CONV, 32), (CONV, 64)))
    assert state_shape(one) == state_shape(other)
