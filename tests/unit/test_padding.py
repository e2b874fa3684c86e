"""Padding to a geometry: the same function at another size, in floats and in int4, and what cannot be padded."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_llama
from onnx_sessions import session as session_of

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.errors import UsageError
from edgedec.runtime import DeviceName, Rows, RuntimeOptions, logits_of, open_runtime

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export import heads, padding
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.padding import (
    GEOMETRIES,
    Geometry,
    Padded,
    geometry_named,
    geometry_of,
    pad_to_geometry,
    padded,
    padded_path,
)

ENGINES = ("reference", "native", "ort")


def wider(bundle: Bundle, vocab: int = 2, hidden: int = 2, heads: int = 1, layers: int = 1) -> Geometry:
    """A geometry with room to spare everywhere, its groups one query head larger."""
    s = geometry_of(bundle.spec)
    kv = s.n_kv_heads + heads
    return Geometry(
        vocab_size=s.vocab_size * vocab,
        hidden_size=s.hidden_size * hidden,
        intermediate_size=s.intermediate_size + 64,
        n_layers=s.n_layers + layers,
        n_heads=kv * (s.n_heads // s.n_kv_heads + heads),
        n_kv_heads=kv,
        head_dim=2 * s.head_dim,
    )


def runtime(path: Path, engine: str, kv: str | None = None):  # type: ignore[no-untyped-def]
    if engine == "native":
        from edgedec.runtimes import native

        if why := native.unavailable_reason(Bundle.open(path), DeviceName()):
            pytest.skip(why)
    return open_runtime(engine, Bundle.open(path), RuntimeOptions(threads=1, kv=kv))


def logits(path: Path, engine: str, ids: list[int], kv: str | None = None) -> np.ndarray:
    found = runtime(path, engine, kv)
    return logits_of(found, Rows.chain(ids, 0), found.new_cache(len(ids)))


def answer(path: Path, ids: list[int], n: int) -> list[int]:
    model = edgedec.open(path, engine="native", threads=1)
    return [int(token) for token in model.session().tokens(ids, max_tokens=n, ignore_eos=True)]


@pytest.fixture(scope="module", params=[False, True], ids=["head", "tied"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A random little Llama in f32: one with a head of its own, one whose head is the embedding."""
    folder = tmp_path_factory.mktemp("small")
    checkpoint = write_llama(folder / "checkpoint", seed=3, tie_word_embeddings=request.param, hidden_size=48)
    return export(
        str(checkpoint), folder / "small", ExportOptions(weights="f32", kv=("f32", "f16", "int8", "int4"), check=False)
    )


@pytest.fixture(scope="module")
def large(small: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return pad_to_geometry(small, wider(small), tmp_path_factory.mktemp("large") / "large", "large", "f32")


IDS = [int(i) for i in np.random.default_rng(5).integers(0, 250, 40)]


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_the_same(small: Bundle, large: Bundle, engine: str) -> None:
    before, after = logits(small.path, engine, IDS), logits(large.path, engine, IDS)
    real, padded = after[:, : small.spec.vocab_size], after[:, small.spec.vocab_size :]
    shift = real - before
    if small.spec.tied:
        # One constant a row for all real ids.
        shift = shift - shift.mean(axis=1, keepdims=True)
    assert np.abs(shift).max() <= 1e-5 * np.abs(before).max()
    assert (real.argmax(axis=1) == before.argmax(axis=1)).all()
    assert (padded.max(axis=1) < real.min(axis=1) - 50).all(), "nobody's ids are as good as forbidden"


# The native engine's int4 has a scale for 16 channels; 8 pairs are not that many.
@pytest.mark.parametrize(
    ("engine", "kv"), [("native", "f16"), ("native", "int8"), ("ort", "f16"), ("ort", "int8"), ("ort", "int4")]
)
def test_caches_of_every_format_hold_the_same(small: Bundle, large: Bundle, engine: str, kv: str) -> None:
    before, after = logits(small.path, engine, IDS, kv), logits(large.path, engine, IDS, kv)
    shift = after[:, : small.spec.vocab_size] - before
    shift -= shift.mean(axis=1, keepdims=True) * small.spec.tied
    # A value on the edge between two steps of the format may fall to either side.
    assert np.abs(shift).mean() <= 1e-2 * np.abs(before).mean()
    assert np.median(np.abs(shift)) <= 1e-3 * np.abs(before).mean()


def test_every_matrix_has_its_full_size(small: Bundle, large: Bundle) -> None:
    geometry = wider(small)
    assert geometry_of(large.spec) == geometry
    assert large.spec.tied == small.spec.tied
    assert {name: t.shape for name, t in large.manifest.tensors.items()} == large.spec.tensors()
    attention, mlp = large.spec.span(small.spec.n_layers)
    for b, name in ((attention, "o"), (mlp, "down")):
        assert not large.rows(f"blocks.{b}.{name}").any(), "a layer more adds nothing"
    large.verify()


def test_text_comes_from_the_source(small: Bundle, large: Bundle) -> None:
    assert large.manifest.text == small.manifest.text
    assert large.file("tokenizer.json").read_bytes() == small.file("tokenizer.json").read_bytes()
    assert large.manifest.source == {"padded": small.digest}


def test_nano_in_int4_writes_the_same_text(nano: Path, tmp_path: Path) -> None:
    runtime(nano, "native")
    bundle = Bundle.open(nano)
    plain = pad_to_geometry(bundle, geometry_of(bundle.spec), tmp_path / "plain", "plain", "int4")
    large = pad_to_geometry(bundle, wider(bundle), tmp_path / "large", "large", "int4")
    ids = edgedec.open(nano).tokenizer.encode("One day, Lily found a magic key in the garden.")
    assert answer(large.path, ids, 100) == answer(plain.path, ids, 100)
    real = slice(0, bundle.spec.hidden_size)
    for name in ("embed", "blocks.7.gate_up"):
        rows = slice(0, 40)
        assert (large.rows(name)[rows, real] == plain.rows(name)[rows, real]).all(), "rounded as without the padding"
    column = large.rows("embed")[:, -1]
    assert len(set(column[: bundle.spec.vocab_size].tolist())) == 1, "no real id is favoured"
    assert column[0] > 0
    assert (column[bundle.spec.vocab_size :] < -0.99).all()


def test_channels_move_with_their_pairs(small: Bundle) -> None:
    geometry = wider(small)
    wide = Padded(small, geometry)
    # 16 channels of 8 pairs in 32: the halves lie 16 apart; values do not rotate.
    assert wide._keys(8)[:16].tolist() == [*range(8), *range(16, 24)]
    assert wide._keys(None)[:16].tolist() == list(range(16))
    # Two query heads share a kv head; three could.
    assert sorted({int(i) // 32 for i in wide._queries(8)}) == [0, 1, 3, 4]
    assert len(wide.spec.ropes[0].inv_freq) == 16
    assert wide.spec.ropes[0].inv_freq[:8] == small.spec.ropes[0].inv_freq


def test_what_cannot_be_padded_is_refused(small: Bundle, tmp_path: Path) -> None:
    good = wider(small)
    cases = {
        "cannot be padded to 1": replace(good, n_layers=1),
        "share a kv head": replace(good, n_heads=3, n_kv_heads=3),
        "no block of 32 to spare": replace(good, hidden_size=small.spec.hidden_size),
    }
    for message, geometry in cases.items():
        geometry = replace(geometry, n_heads=4, n_kv_heads=4) if message == "share a kv head" else geometry
        with pytest.raises(UsageError, match=message):
            pad_to_geometry(small, geometry, tmp_path / "no", "no")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    with pytest.raises(UsageError, match="llama-1b"):
        geometry_named("llama-9b")


def test_a_vocabulary_of_the_same_size_needs_nothing_to_spare(small: Bundle, tmp_path: Path) -> None:
    geometry = replace(wider(small, vocab=1), hidden_size=small.spec.hidden_size)
    found = pad_to_geometry(small, geometry, tmp_path / "same", "same", "f32")
    assert np.allclose(logits(found.path, "reference", IDS), logits(small.path, "reference", IDS), atol=1e-4)


def test_it_is_kept_in_the_cache(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setitem(GEOMETRIES, "llama-1b", wider(small))
    stages: set[str] = set()
    first = padded(small, "llama-1b", lambda stage, done, total: stages.add(stage))
    assert first.path.parent == tmp_path / "padded"
    assert stages >= {"weights", "graphs", "hashes"}
    stages.clear()
    assert padded(small, "llama-1b", lambda stage, done, total: stages.add(stage)).digest == first.digest
    assert not stages, "found, not made again"
    (first.path / "weights.bin").write_bytes(b"spoiled")
    assert padded(small, "llama-1b").digest == first.digest
    path = padded_path(small, "llama-1b")
    monkeypatch.setattr(padding, "VERSION", padding.VERSION + 1)
    assert padded_path(small, "llama-1b") != path


def test_old_ones_of_its_name_go(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setitem(GEOMETRIES, "little", wider(small))
    folder, name = padded_path(small, "little").parent, f"{small.manifest.name}-as-little"
    forgotten, of_late, other = (folder / each for each in (f"{name}-0", f"{name}-1", "another-as-little-0"))
    for path in (forgotten, of_late, other):
        path.mkdir(parents=True)
    for path in (forgotten, other):
        os.utime(path, (0, 0))
    made = padded(small, "little").path
    assert made.is_dir()
    assert of_late.is_dir()
    assert other.is_dir()
    assert not forgotten.exists()
    os.utime(made, (0, 0))
    padded(small, "little")
    assert made.stat().st_mtime > 0  # opened of late


def test_the_geometries_are_those_that_are_measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    try:
        from random_checkpoint import GEOMETRIES as MEASURED
    finally:
        sys.modules.pop("random_checkpoint", None)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    names += ("num_attention_heads", "num_key_value_heads", "head_dim")
    assert {name: tuple(vars(g).values()) for name, g in GEOMETRIES.items()} == {
        name: tuple(config[key] for key in names) for name, config in MEASURED.items()
    }


def test_int4_is_what_export_writes(small: Bundle, tmp_path: Path) -> None:
    found = pad_to_geometry(small, wider(small), tmp_path / "int4", "int4").manifest
    layer: Tensor = found.tensors["blocks.0.qkv"]
    assert (layer.format, layer.block, layer.layout) == ("int4", 32, "interleave16")
    assert found.quantization == {"body": "int4", "head": "int4", "embed": "int4", "block": "32"}


@pytest.mark.parametrize("kind", ["medusa", "hydra", "exit"])
def test_draft_heads_come_along(small: Bundle, tmp_path: Path, kind: str) -> None:
    shutil.copytree(small.path, tmp_path / "source")
    facts = heads.Facts(kind, hidden=48, width=24, depth=2, eps=1e-5, layer=2, top=4, format="int8")
    facts = replace(facts, depth=1, top=0) if kind == "exit" else replace(facts, layer=0)
    rng = np.random.default_rng(1)
    shapes = heads.expected(facts, 40)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items() if name != "vocab"}
    if "vocab" in shapes:
        arrays["vocab"] = np.arange(7, 47)
    source = heads.install(Bundle.open(tmp_path / "source"), heads.build(kind, arrays, facts), arrays, facts)
    large = pad_to_geometry(source, wider(source), tmp_path / "large", "large", "f32")
    head, wide = source.manifest.heads[kind], large.manifest.heads[kind]
    assert wide == head
    found = heads.arrays_of(large.file(wide.file))[1]
    # As wide inside as `train-heads` makes a head of this hidden size, at least.
    assert (found.hidden, found.width, found.format) == (96, 96, "int8")
    hidden = rng.standard_normal((3, 48), np.float32)
    before = run(source.file(head.file), hidden)
    after = run(large.file(wide.file), np.pad(hidden, ((0, 0), (0, 48))))
    for name, value in before.items():
        same = after[name][..., : value.shape[-1]]
        assert np.allclose(same, value, atol=1e-4 * np.abs(value).max()), name


def run(path: Path, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """What a head says of hidden states, whatever its inputs are called."""
    session = session_of(str(path))
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(None, {i.name: hidden for i in session.get_inputs()}), strict=True))


def test_a_diffusion_model_stays_one(tmp_path: Path) -> None:
    from diffusion.checkpoint import exported

    source = Bundle.open(exported(tmp_path))
    made = pad_to_geometry(source, wider(source), tmp_path / "padded", "wide")
    assert made.manifest.diffusion == source.manifest.diffusion is not None
