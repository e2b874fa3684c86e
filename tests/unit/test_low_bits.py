"""Bundles of int3 and int2: the same logits on native and reference, the same bytes alone and in any call; who reads
none says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, WITH_ENCODERS, Text
from edgedec.errors import BundleCorrupt, RuntimeUnavailable, UsageError
from edgedec.export.amend import add_artifact
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.quantize import codes_of, packed_codes, quantize
from edgedec.export.weights import Kept
from edgedec.export.writer import BundleWriter, Contents
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime, unavailable_reason
from edgedec.testing.conformance.models import MODELS

LOW = ["int3", "int2"]
needs_native = pytest.mark.skipif(why_not() is not None, reason="no native engine here")


def logits(runtime: Any, ids: Any) -> Any:
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


@needs_native
@pytest.mark.parametrize("layout", ["interleave16", "rows"])
@pytest.mark.parametrize("fmt", LOW)
@pytest.mark.parametrize("name", sorted(ODD))
def test_native_reads_what_reference_reads(name: str, fmt: str, layout: str, tmp_path: Path) -> None:
    spec = ODD[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec, 1), fmt, layout=layout)
    assert {t.format for n, t in bundle.manifest.tensors.items() if n in spec.matrices} == {fmt}
    ids = np.random.default_rng(2).integers(0, spec.vocab_size, 19)
    native = open_runtime("native", bundle, RuntimeOptions(threads=1))
    expected = logits(open_runtime("reference", bundle), ids)
    found = logits(native, ids)
    # Both read the same weights; the engine rounds activations too, as it does for every integer format.
    assert np.abs(found - expected).max() <= 0.2 * np.abs(expected).max()
    if name != "least":
        floats = logits(open_runtime("reference", write_bundle(tmp_path / "f", spec, random_weights(spec, 1))), ids)
        assert np.abs(found - expected).max() < 0.7 * np.abs(found - floats).max()
    for n in (1, 2, 7):  # a row's logits depend on no other rows of the call
        cache, parts = native.new_cache(19), []
        for at in range(0, 19, n):
            rows = Rows.chain(ids[at : at + n], at)
            parts.append(logits_of(native, rows, cache))
            cache.commit(range(len(rows)))
        assert np.concatenate(parts).tobytes() == found.tobytes()


def written(folder: Path, spec: Any, fmt: Any, layout: Any, as_int4: bool, files: str = "ort") -> Bundle:
    """A bundle with graphs; its matrices rounded to `fmt` and stored so, or the same values in int4."""
    folder.mkdir()
    stored, read = ("int4" if as_int4 else fmt), random_weights(spec, 1)

    def kept(values: Any) -> Kept:
        data, scales = quantize(values, fmt, 32)
        codes = codes_of(data, fmt, values.shape[1])
        fours = packed_codes(codes + 4 if fmt == "int3" else 2 * codes + 5, "int4", 32) if as_int4 else data
        return Kept(stored, 32, lambda start, stop: (fours[start:stop], scales[start:stop], None))

    def fill(add: Any) -> Any:
        for name in spec.tensors():
            values = read(name)
            add(
                name, lambda start, stop, held=values: held[start:stop], kept(values) if name in spec.matrices else None
            )
        return {}

    formats: Any = dict.fromkeys(("body", "head", "embed"), stored)
    contents = Contents(folder.name, spec, Text(None), formats, 32, ("f32",), layout, runtimes=(files,))
    BundleWriter(folder, contents).write(fill)
    return Bundle.open(folder)


@pytest.mark.parametrize("fmt", LOW)
@pytest.mark.parametrize(
    ("name", "layout"), [("options", "interleave16"), ("options", "rows"), ("experts", "interleave16")]
)
def test_onnx_runtime_gives_what_it_gives_for_the_same_values_in_int4(
    name: str, fmt: str, layout: str, tmp_path: Path
) -> None:
    """To the byte: the planes become codes of int4 when a graph is loaded."""
    spec = MODELS[name]
    low, same = (written(tmp_path / str(four), spec, fmt, layout, four) for four in (False, True))
    assert {t.format for n, t in low.manifest.tensors.items() if n in spec.matrices} == {fmt}
    assert {t.format for n, t in same.manifest.tensors.items() if n in spec.matrices} == {"int4"}
    ids = np.random.default_rng(2).integers(0, spec.vocab_size, 19)
    found, expected = (logits(open_runtime("ort", one, RuntimeOptions(threads=1)), ids) for one in (low, same))
    assert found.tobytes() == expected.tobytes()
    reference = logits(open_runtime("reference", low), ids)
    assert np.median(np.abs(found - reference)) <= 0.05 * np.abs(reference).max()  # but where other experts are picked


@pytest.mark.parametrize("fmt", LOW)
def test_graphs_for_devices_hold_the_same_products(fmt: str, tmp_path: Path) -> None:
    import onnxruntime

    found = []
    for four in (False, True):
        bundle = written(tmp_path / str(four), MODELS["plain"], fmt, "interleave16", four, "devices")
        graph = onnxruntime.InferenceSession(bundle.path / "device_head.onnx", providers=["CPUExecutionProvider"])
        (given,) = graph.get_inputs()
        states = np.random.default_rng(0).standard_normal((1, 3, bundle.spec.hidden_size)).astype(np.float32)
        found.append(graph.run(None, {given.name: states})[0])
    assert found[0].std() > 0
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("fmt", LOW)
def test_both_layouts_hold_the_same_weights(fmt: str, tmp_path: Path) -> None:
    spec = ODD["plain"]
    one, other = (
        write_bundle(tmp_path / layout, spec, random_weights(spec), fmt, block=64, layout=layout)
        for layout in ("rows", "interleave16")
    )
    for name in spec.tensors():
        np.testing.assert_array_equal(one.rows(name), other.rows(name))
    picked = np.array([3, 0, 3])
    np.testing.assert_array_equal(one.gather("embed", picked), other.rows("embed")[picked])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    out = tmp_path_factory.mktemp("low") / "b"
    export(str(tiny_checkpoint), out, ExportOptions(weights="int3", check=False))
    return out


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from checkpoints import write_llama

    return write_llama(tmp_path_factory.mktemp("low-checkpoint") / "c")


def test_the_manifest_has_the_version_that_holds_it(exported: Path) -> None:
    bundle = Bundle.open(exported)
    assert bundle.manifest.version == WITH_ENCODERS == 8
    assert set(bundle.manifest.artifacts) == {"genai", "ort"}


def test_who_reads_none_says_so(exported: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(exported)
    assert unavailable_reason("tvm", bundle) == "reads no int3 weights; native, reference and ort do"
    assert unavailable_reason("paired", bundle, "auto") is None
    assert unavailable_reason("reference", bundle) is None
    assert unavailable_reason("ort", bundle) is None
    with pytest.raises(RuntimeUnavailable, match="engine tvm: reads no int3 weights"):
        edgedec.open(exported, engine="tvm")
    with pytest.raises(UsageError, match="runtime web: reads no int3 weights"):
        add_artifact(exported, "web")
    with pytest.raises(UsageError, match="--for web: reads no int2 weights"):
        export(str(tiny_checkpoint), tmp_path / "b", ExportOptions(weights="int2", runtimes=("web",), check=False))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "int5"}, "reads no int5 weights; native, reference and ort do"),
        ({"parts": 64}, "reads no weights with parts of scales, as of GGUF's K types; native, reference and ort do"),
        ({"offsets": 64}, "reads no weights with offsets, as of GGUF's K types; native, reference and ort do"),
    ],
)
def test_engines_of_gpus_say_what_of_other_files_they_do_not_read(
    exported: Path, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(exported)
    name = next(n for n, t in bundle.manifest.tensors.items() if t.format == "int3")
    monkeypatch.setitem(bundle.manifest.tensors, name, replace(bundle.manifest.tensors[name], **changes))
    for engine in ("cuda", "opencl"):
        assert (unavailable_reason(engine, bundle) or "").removesuffix(" (or --weights int4)") == said
    assert unavailable_reason("paired", bundle, "auto") is None


def test_what_no_bundle_may_say(exported: Path) -> None:
    text = (exported / MANIFEST).read_text("utf-8")
    data = json.loads(text)
    name = next(n for n, t in data["tensors"].items() if t["format"] == "int3")
    try:
        for key, value in (("block", 16), ("zeros", 64)):
            changed = {**data, "tensors": {**data["tensors"], name: {**data["tensors"][name], key: value}}}
            (exported / MANIFEST).write_text(json.dumps(changed), "utf-8")
            with pytest.raises(BundleCorrupt, match=f"tensor {name}"):
                Bundle.open(exported)
    finally:
        (exported / MANIFEST).write_text(text, "utf-8")


@needs_native
def test_drafts_do_not_change_its_text(exported: Path) -> None:
    model, prompt = edgedec.open(exported, engine="native"), "the thing and the other thing and the other"
    plain = "".join(model.session(speculate="off").generate(prompt, max_tokens=24, ignore_eos=True))
    session = model.session(speculate="copy:length=4,fixed=4")
    assert "".join(session.generate(prompt, max_tokens=24, ignore_eos=True)) == plain
    assert session.stats.proposed > 0
