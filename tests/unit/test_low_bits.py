"""Bundles of int3 and int2: the same logits on native and reference, the same bytes alone and in any call; who reads
none says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, WITH_ENCODERS
from edgedec.errors import BundleCorrupt, RuntimeUnavailable, UsageError
from edgedec.export.amend import add_artifact
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime, unavailable_reason

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
    assert not bundle.manifest.artifacts  # no runtime with files reads it


def test_who_reads_none_says_so(exported: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(exported)
    for name in ("ort", "cuda", "opencl", "tvm"):
        assert unavailable_reason(name, bundle) == "reads no int3 weights; native and reference do"
    assert unavailable_reason("reference", bundle) is None
    with pytest.raises(RuntimeUnavailable, match="engine ort: reads no int3 weights"):
        edgedec.open(exported, engine="ort")
    with pytest.raises(UsageError, match="runtime ort: reads no int3 weights"):
        add_artifact(exported, "ort")
    with pytest.raises(UsageError, match="--for ort: reads no int2 weights"):
        export(str(tiny_checkpoint), tmp_path / "b", ExportOptions(weights="int2", runtimes=("ort",), check=False))
    assert not (tmp_path / "b").exists()


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
    session = model.session(speculate="copy:length=4")
    assert "".join(session.generate(prompt, max_tokens=24, ignore_eos=True)) == plain
    assert session.stats.proposed > 0
