"""Experts in tensors of their own formats, and rows that leave out an expert: the reference beside the oracle, the CPU
engine beside the reference, and nothing of a row depends on the others of its call."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import write_bundle

from edgedec.errors import BundleCorrupt
from edgedec.kernels.cpu import loader
from edgedec.runtime import Rows, lacking_kinds, logits_of
from edgedec.runtimes import ort
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.moe import left_out, route
from edgedec.spec import ModelSpec, Moe
from edgedec.spec.moe import level_name
from edgedec.testing.conformance.bundles import random_weights
from edgedec.testing.conformance.models import MODELS

SPEC = MODELS["experts in levels"]
HELD = random_weights(SPEC)
TOKENS = np.random.default_rng(4).integers(0, SPEC.vocab_size, 60).tolist()
FORMATS = ("int4", "int2", "int3")
native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


def _oracle() -> Any:
    path = Path(__file__).parent / "oracle.py"
    spec = spec_from_file_location("oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mixtures(spec: ModelSpec = SPEC) -> dict[int, Moe]:
    return {b: block for b, block in enumerate(spec.blocks) if isinstance(block, Moe)}


def changed(**fields: Any) -> ModelSpec:
    """The model with other fields of its mixtures."""

    def one(block: Any) -> Any:
        return replace(block, **fields) if isinstance(block, Moe) else block

    return replace(SPEC, layers=tuple(tuple(map(one, layer)) for layer in SPEC.layers))


def reference(spec: ModelSpec = SPEC) -> np.ndarray:
    runtime = Reference(spec, lambda name, a, b: HELD[name][a:b])
    return logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(len(TOKENS)))


def test_the_reference_is_the_oracle() -> None:
    expected = _oracle().forward(SPEC, HELD.__getitem__, TOKENS)
    np.testing.assert_allclose(reference(), expected, rtol=1e-3, atol=2e-3 * expected.std())
    for neighbour in ({"drop_below": 0.0, "protect_from": 0.0}, {"protect_from": 0.0}, {"drop_below": 0.3}):
        other = reference(changed(**neighbour))
        assert np.abs(other - expected).max() > 0.05 * expected.std(), neighbour


def test_levels_and_borders_are_where_they_should_be() -> None:
    """A stack of experts in the order of their numbers, and rows on both sides of both borders."""
    assert SPEC.blocks[1].members(1) == (0, 2, 5)  # type: ignore[union-attr]
    assert [SPEC.blocks[1].place(e) for e in range(6)] == [(1, 0), (0, 0), (1, 1), (2, 0), (0, 1), (1, 2)]  # type: ignore[union-attr]
    shapes = SPEC.tensors()
    assert [shapes[f"blocks.1.{level_name('down', level)}"][0] for level in range(3)] == [128, 192, 64]
    block = Moe(4, 2, 16, drop_below=0.5, protect_from=9.0)
    weights, sizes = np.array([[0.6, 0.2], [0.6, 0.4], [0.6, 0.2]], np.float32), np.array([[1.0, 0], [1, 0], [-4, 5]])
    assert left_out(block, weights, sizes).tolist() == [True, False, False]
    logits = np.log(np.array([[0.6, 0.2, 0.1, 0.1], [0.4, 0.35, 0.15, 0.1]], np.float32))
    experts, shares = route(block, logits, x=np.ones((2, 2), np.float32))
    assert experts.tolist() == [[0, -1], [0, 1]]
    np.testing.assert_allclose(shares, [[1, 0], [0.4 / 0.75, 0.35 / 0.75]], rtol=1e-5)  # normalized without it
    single = replace(block, normalize=False)
    np.testing.assert_allclose(route(single, logits, x=np.ones((2, 2), np.float32))[1][0], [0.6, 0], rtol=1e-5)
    topk = replace(single, router="softmax_topk")
    np.testing.assert_allclose(route(topk, logits, x=np.ones((2, 2), np.float32))[1][0], [1, 0], rtol=1e-5)


def own_formats(spec: ModelSpec = SPEC) -> dict[str, Any]:
    found = {}
    for b, block in mixtures(spec).items():
        for name in (block.up, "down"):
            found |= {f"blocks.{b}.{level_name(name, level)}": FORMATS[level] for level in range(block.n_levels)}
    return found


@native
@pytest.mark.parametrize("formats", [{}, own_formats(), {"blocks.1.gate_up_1": "int4", "blocks.3.down_1": "f16"}])
def test_the_cpu_engine_reads_each_level_in_its_format(formats: dict[str, Any], tmp_path: Path) -> None:
    """In f32, and in several formats at once, for which activations are rounded: some rows then choose others."""
    from edgedec.runtimes.native import NativeRuntime

    spec = SPEC if not formats else changed(drop_below=0.0, protect_from=0.0)
    bundle = write_bundle(tmp_path / "b", spec, HELD.__getitem__, own=formats)
    assert {bundle.manifest.tensors[name].format for name in formats} == set(formats.values())
    runtime, own = NativeRuntime(bundle, "f32", 2), Reference(spec, bundle.rows)
    found = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(64))
    expected = logits_of(own, Rows.chain(TOKENS, 0), own.new_cache(64))
    errors = np.sqrt(np.square(found - expected).mean(axis=1)) / expected.std()
    assert np.quantile(errors, 0.5) < (0.05 if formats else 1e-3)
    if not formats:
        assert errors.max() < 1e-3


@native
def test_a_row_is_the_same_bytes_alone_and_among_others_and_by_every_instruction_set(tmp_path: Path) -> None:
    from edgedec.runtimes.native import NativeRuntime

    bundle = write_bundle(tmp_path / "b", SPEC, HELD.__getitem__, "int4", own=own_formats())
    first = NativeRuntime(bundle, "f32", 1)
    alone, cache = [], first.new_cache(64)
    for token in TOKENS:
        alone.append(logits_of(first, Rows.chain([token], cache.length), cache)[0])
        cache.commit([0])
    for isa in [name for name, runs in loader.isas().items() if runs]:
        engine = NativeRuntime(bundle, "f32", 2, isa=isa)
        whole = logits_of(engine, Rows.chain(TOKENS, 0), engine.new_cache(64))
        assert whole.tobytes() == np.stack(alone).tobytes(), isa


def test_others_refuse_it_in_one_line(tmp_path: Path) -> None:
    for spec, words in ((changed(drop_below=0.0, protect_from=0.0), "own formats"), (SPEC, "own formats")):
        bundle = write_bundle(tmp_path / f"b{len(words)}{spec is SPEC}", spec, HELD.__getitem__)
        said = lacking_kinds(bundle, ort.KINDS, facts=ort.FACTS_OF_MODELS)
        assert said is not None
        assert words in said
        assert "\n" not in said
    dropping = replace(SPEC, layers=((SPEC.layers[0][0], Moe(6, 2, 16, drop_below=0.5)),))
    bundle = write_bundle(tmp_path / "d", dropping, random_weights(dropping).__getitem__)
    assert "that some rows leave out" in str(lacking_kinds(bundle, ort.KINDS, facts=ort.FACTS_OF_MODELS))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"levels": (0, 1)}, "levels: not a level of each expert"),
        ({"levels": (0, 0, 2, 2, 0, 0)}, "levels: not a level of each expert"),
        ({"levels": (0, 1, 2, 3, 4, 0)}, "levels: 5 of at most 4"),
        ({"drop_below": 1.5}, "drop_below: 1.5 with 2 experts a row"),
        ({"drop_below": 0.5, "top_k": 1}, "drop_below: 0.5 with 1 experts a row"),
        ({"protect_from": 3.0}, "protect_from: 3.0 where experts below 0.0 drop"),
        ({"drop_below": 0.5, "protect_from": -1.0}, "protect_from: -1.0"),
    ],
)
def test_what_no_mixture_can_have(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BundleCorrupt, match=said):
        replace(Moe(6, 2, 16), **fields).check("spec.layers[0][1]")
