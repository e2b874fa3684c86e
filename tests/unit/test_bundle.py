"""Bad bundles: every one is refused by name, whatever was done to it, and nothing else ever happens."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import MANIFEST, Manifest
from edgedec.bundle.packed import pack
from edgedec.cli._app import app
from edgedec.errors import (
    BundleCorrupt,
    BundleNotFound,
    BundleUnsafe,
    BundleVersion,
    EdgedecError,
    RuntimeUnavailable,
    SessionError,
)
from edgedec.runtime import open_runtime
from edgedec.storage.arrays import read_arrays
from edgedec.storage.serde import from_json, to_json

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

SHAPE = {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    checkpoint = write_llama(folder / "checkpoint", **SHAPE)
    export(str(checkpoint), folder / "bundle", ExportOptions(kv=("f32", "int8"), check=False))
    return folder / "bundle"


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "bundle"))


def read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_bytes()))


def write(folder: Path, manifest: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_good_one_opens(good: Path) -> None:
    bundle = Bundle.open(good, verify=True)
    assert bundle.digest == Bundle.open(good).digest
    assert bundle.rows("embed").shape == (bundle.spec.vocab_size, bundle.spec.hidden_size)
    assert from_json(Manifest, to_json(bundle.manifest), "again") == bundle.manifest


# ---- the manifest ------------------------------------------------------------------------------

HUGE = 10**30
SET: list[tuple[str, Any, type[EdgedecError], str]] = [
    # path in the manifest, value, error, words of its message
    ("format", "gguf", BundleCorrupt, "not a manifest of edgedec"),
    ("format", None, BundleCorrupt, "not a manifest of edgedec"),
    ("version", 10, BundleVersion, "format version 10, this edgedec reads 9; upgrade edgedec"),
    ("version", 3, BundleVersion, "format version 3 of an older edgedec; export the model again"),
    ("version", 1, BundleVersion, "version 1 of an older edgedec; export the model again"),
    ("version", HUGE, BundleVersion, "upgrade edgedec"),
    ("version", 0, BundleCorrupt, "0 is not a version"),
    ("version", -1, BundleCorrupt, "-1 is not a version"),
    ("version", True, BundleCorrupt, "True is not a version"),
    ("version", "1", BundleCorrupt, "'1' is not a version"),
    ("version", 1.0, BundleCorrupt, "1.0 is not a version"),
    ("version", None, BundleCorrupt, "None is not a version"),
    ("more", 1, BundleCorrupt, "unknown key 'more'"),
    ("spec.more", 1, BundleCorrupt, "spec: unknown key 'more'"),
    ("spec.layers.1.0.more", 1, BundleCorrupt, r"spec.layers\[1\]\[0\]: unknown key 'more'"),
    ("spec.ropes.0.more", 1, BundleCorrupt, r"spec.ropes\[0\]: unknown key 'more'"),
    ("tensors.embed.more", 1, BundleCorrupt, "tensors.embed: unknown key 'more'"),
    ("artifacts.ort.more", 1, BundleCorrupt, "artifacts.ort: unknown key 'more'"),
    ("text.more", 1, BundleCorrupt, "text: unknown key 'more'"),
    ("files.head~onnx.more", 1, BundleCorrupt, "unknown key 'more'"),
    ("kv_scales.int2", 1, BundleCorrupt, "kv_scales: unknown key 'int2'"),
    ("parity", {"text": "x"}, BundleCorrupt, "parity: missing key 'tokens'"),
    ("parity", 1, BundleCorrupt, "parity: expected an object, found int"),
    ("spec", [], BundleCorrupt, "spec: expected an object, found list"),
    ("spec.layers", {}, BundleCorrupt, "layers: expected a list, found dict"),
    ("spec.layers", [], BundleCorrupt, "n_layers: 0 is out of range"),
    ("spec.layers.0", None, BundleCorrupt, r"layers\[0\]: expected a list, found NoneType"),
    ("spec.layers.0", [], BundleCorrupt, r"layers\[0\]: has no blocks"),
    ("spec.layers.0.0", None, BundleCorrupt, r"layers\[0\]\[0\]: kind None is not one of"),
    (
        "spec.layers.0.0.kind",
        "pool",
        BundleCorrupt,
        "kind 'pool' is not one of 'attention', 'latent', 'power_law'",
    ),
    ("spec.layers.0.0.kind", "mlp", BundleCorrupt, r"layers\[0\]\[0\]: unknown key"),
    ("spec.vocab_size", "9", BundleCorrupt, "vocab_size: expected int, found str"),
    ("spec.vocab_size", 9.0, BundleCorrupt, "vocab_size: expected int, found float"),
    ("spec.vocab_size", True, BundleCorrupt, "vocab_size: expected int, found bool"),
    ("spec.tied", 1, BundleCorrupt, "tied: expected bool, found int"),
    ("spec.tied", None, BundleCorrupt, "tied: expected bool, found NoneType"),
    ("spec.architecture", 3, BundleCorrupt, "architecture: expected str, found int"),
    ("spec.layers.0.1.activation", "tanh", BundleCorrupt, "'tanh' is not one of 'silu', 'gelu_tanh'"),
    ("spec.layers.0.0.qk_norm", [], BundleCorrupt, "qk_norm"),
    ("spec.norm_eps", float("nan"), BundleCorrupt, "not a finite number"),
    ("spec.norm_eps", float("inf"), BundleCorrupt, "not a finite number"),
    ("spec.norm_eps", 10**400, BundleCorrupt, "norm_eps: inf is not a finite number"),
    ("spec.layers.0.0.scale", -(10**400), BundleCorrupt, "not a finite number"),
    ("spec.layers.0.0.scale", float("-inf"), BundleCorrupt, "not a finite number"),
    ("spec.ropes.0.inv_freq.0", float("nan"), BundleCorrupt, "not a finite number"),
    ("spec.ropes.0.inv_freq", [], BundleCorrupt, "rotates nothing"),
    ("spec.ropes.0.inv_freq", [1.0] * 9, BundleCorrupt, "rotates 18 of 16 dims"),
    ("spec.ropes", [], BundleCorrupt, r"layers\[0\]\[0\].rope: no rope 0"),
    ("spec.layers.0.0.rope", 1, BundleCorrupt, "no rope 1"),
    ("spec.layers.0.0.rope", -1, BundleCorrupt, "no rope -1"),
    ("spec.layers.0.0.window", 0, BundleCorrupt, "window: 0 is out of range"),
    ("spec.layers.0.0.n_kv_heads", 0, BundleCorrupt, "n_kv_heads: 0 is out of range"),
    ("spec.layers.0.0.n_heads", 3, BundleCorrupt, "weights are not those of the spec"),
    ("spec.layers.0.0.n_kv_heads", 3, BundleCorrupt, "do not share"),
    ("spec.hidden_size", 64, BundleCorrupt, "weights are not those of the spec"),
    ("spec.hidden_size", 1 << 60, BundleCorrupt, "out of range"),
    ("spec.vocab_size", -5, BundleCorrupt, "out of range"),
    ("spec.context_length", 1 << 24, BundleCorrupt, "rope 0 lies outside weights.bin"),
    ("spec.context_length", HUGE, BundleCorrupt, "out of range"),
    ("spec.tied", True, BundleCorrupt, "weights are not those of the spec"),
    ("spec.layers.1.0.qkv_bias", True, BundleCorrupt, "weights are not those of the spec"),
    ("tensors", {}, BundleCorrupt, "weights are not those of the spec"),
    ("tensors.extra", {"format": "f32", "shape": [1], "data": 0}, BundleCorrupt, "not those of the spec"),
    ("tensors.embed.shape", [32, 268], BundleCorrupt, "not those of the spec"),
    ("tensors.embed.shape", [HUGE, HUGE], BundleCorrupt, "not those of the spec"),
    ("tensors.embed.format", "int7", BundleCorrupt, "'int7' is not one of"),
    ("tensors.final_norm.format", "int8", BundleCorrupt, "tensor final_norm"),
    ("tensors.embed.data", -64, BundleCorrupt, "embed lies outside weights.bin or is not aligned"),
    ("tensors.embed.data", 1, BundleCorrupt, "embed lies outside weights.bin or is not aligned"),
    ("tensors.embed.data", 1 << 40, BundleCorrupt, "embed lies outside weights.bin"),
    ("tensors.embed.data", 64 * HUGE, BundleCorrupt, "embed lies outside weights.bin"),
    ("tensors.embed.scales", 32, BundleCorrupt, r"embed \(scales\) lies outside weights.bin or is not aligned"),
    ("tensors.embed.scales", -(1 << 64), BundleCorrupt, r"embed \(scales\) lies outside"),
    ("tensors.embed.zeros", 64, BundleCorrupt, "tensor embed: int4 with zero points in blocks of 32"),
    ("tensors.final_norm.zeros", 64, BundleCorrupt, "tensor final_norm: f32 with zero points"),
    (
        "tensors.final_norm.offsets",
        64,
        BundleCorrupt,
        "final_norm: f32 with zero points, offsets, parts or scales of rows",
    ),
    ("tensors.blocks~0~qkv.offsets", 32, BundleCorrupt, r"qkv \(offsets\) lies outside weights.bin or is not aligned"),
    ("tensors.blocks~0~qkv.offsets", 1 << 40, BundleCorrupt, r"qkv \(offsets\) lies outside weights.bin"),
    ("tensors.blocks~0~qkv.zeros", 32, BundleCorrupt, r"qkv \(zeros\) lies outside weights.bin or is not aligned"),
    ("tensors.blocks~0~qkv.zeros", 1 << 40, BundleCorrupt, r"qkv \(zeros\) lies outside weights.bin"),
    ("tensors.embed.block", 0, BundleCorrupt, "tensor embed: block 0"),
    ("tensors.embed.block", -32, BundleCorrupt, "tensor embed: block -32"),
    ("tensors.embed.block", 48, BundleCorrupt, "tensor embed: block 48"),
    ("ropes", [], BundleCorrupt, "not one table for each rope"),
    ("ropes.0", [0], BundleCorrupt, "a cos and a sin offset"),
    ("ropes.0.1", 1 << 40, BundleCorrupt, "rope 0 lies outside"),
    ("ropes.0.0", -64, BundleCorrupt, "rope 0 lies outside"),
    ("kv_scales", {}, BundleCorrupt, "kv_scales.int8: missing"),
    ("kv_scales.int8", 1 << 40, BundleCorrupt, "kv_scales.int8 lies outside"),
    ("kv_scales.int8", 4, BundleCorrupt, "kv_scales.int8 lies outside weights.bin or is not aligned"),
    ("kv_formats", [], BundleCorrupt, "names no KV format"),
    ("kv_formats", ["f64"], BundleCorrupt, "'f64' is not one of"),
    ("kv_formats", ["f32", "int4"], BundleCorrupt, "kv_scales.int4: missing"),
    ("kv_formats", "f32", BundleCorrupt, "expected a list, found str"),
    ("artifacts", [], BundleCorrupt, "artifacts: expected an object, found list"),
    ("artifacts.ort.files", ["elsewhere.onnx"], BundleCorrupt, "names 'elsewhere.onnx', which is not among its files"),
    ("artifacts.ort.files", ["../head.onnx"], BundleCorrupt, "not among its files"),
    ("artifacts.genai.files", "model.onnx", BundleCorrupt, "expected a list, found str"),
    ("artifacts.ort.facts", [], BundleCorrupt, "facts: expected an object, found list"),
    ("weights", "weights2.bin", BundleCorrupt, "not among its files"),
    ("text.tokenizer", "other.json", BundleCorrupt, "not among its files"),
    ("files.absent~onnx", {"size": 1, "sha256": "0" * 64}, BundleCorrupt, "absent.onnx: missing"),
    ("files.head~onnx.size", 1, BundleCorrupt, "the manifest says 1"),
    ("files.head~onnx.size", -1, BundleCorrupt, "the manifest says -1"),
    ("files.edgedec~json", {"size": 1, "sha256": ""}, BundleUnsafe, "not a plain file name"),
    *(
        (f"files.{name}", {"size": 0, "sha256": ""}, BundleUnsafe, "not a plain file name")
        for name in ("", "/", "/etc/passwd", "a/b", "a\\b", "C:x", "-rf", "a\n", "a\0b", "ü")
    ),
    *(
        (f"files.{name}", {"size": 0, "sha256": ""}, BundleUnsafe, "not a plain file name")
        for name in ("~", "~~", "~~/x", "~~/~~/etc/passwd", "x/~~/y", "~hidden")
    ),
]


@pytest.mark.parametrize(("path", "value", "error", "words"), SET, ids=[f"{p}={v!r:.20}" for p, v, *_ in SET])
def test_a_bad_manifest(bundle: Path, path: str, value: Any, error: type[EdgedecError], words: str) -> None:
    """~ stands for a dot in a key."""
    manifest = read(bundle)
    *way, last = path.split(".")
    data: Any = manifest
    for key in way:
        data = data[int(key)] if isinstance(data, list) else data[key.replace("~", ".")]
    data[int(last) if isinstance(data, list) else last.replace("~", ".")] = value
    write(bundle, manifest)
    refused(bundle, error, words)


def refused(bundle: Path, error: type[EdgedecError], words: str, verify: bool = False) -> None:
    """By this very kind of error, in one line, without much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=words) as caught:
            Bundle.open(bundle, verify=verify)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert caught.type is error
    assert "\n" not in str(caught.value)


def _keys(data: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every required key of a manifest."""
    found = []
    for key, item in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        found += [(*way, key), *_keys(item, (*way, key))]
    return found


def test_every_key_left_out_is_missed(good: Path, bundle: Path) -> None:
    """Or has a default: then the bundle opens, or its other facts no longer fit."""
    whole = read(good)
    missed = 0
    for way in _keys(whole):
        manifest = copy.deepcopy(whole)
        data: Any = manifest
        for key in way[:-1]:
            data = data[key]
        del data[way[-1]]
        write(bundle, manifest)
        missed += _opens(bundle) is None
    assert missed > 100


def _opens(folder: Path, verify: bool = False) -> Bundle | None:
    """None if it is refused; any error but ours goes up."""
    try:
        return Bundle.open(folder, verify=verify)
    except EdgedecError:
        return None


RAW: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"null", "not a manifest of edgedec"),
    (b"[]", "not a manifest of edgedec"),
    (b"{}", "not a manifest of edgedec"),
    (b'"edgedec-bundle"', "not a manifest of edgedec"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"\x00" * 100, "not JSON"),
    (b"[" * 200_000, "not JSON"),
    (b'{"a":' * 100_000, "not JSON"),
    (b"9" * 10_000, "not JSON"),
    (b'{"format": "edgedec-bundle", "version": 4}', "missing key"),
]


@pytest.mark.parametrize(("raw", "words"), RAW)
def test_a_manifest_that_is_none(bundle: Path, raw: bytes, words: str) -> None:
    (bundle / MANIFEST).write_bytes(raw)
    with pytest.raises(BundleCorrupt, match=words) as caught:
        Bundle.open(bundle)
    assert "\n" not in str(caught.value)


def test_a_manifest_that_is_too_long_is_not_read(bundle: Path) -> None:
    with (bundle / MANIFEST).open("r+b") as file:
        file.truncate(1 << 36)  # a hole: it takes no room on the disk
    refused(bundle, BundleCorrupt, "larger than any manifest")


FACTS: list[tuple[str, Any, str]] = [
    ("more", 1, "facts: unknown key 'more'"),
    ("head", "elsewhere.onnx", "names 'elsewhere.onnx', which is not among its files"),
    ("blocks", {"f32": ["block_001.onnx"]}, "the graphs of KV f32 are not those of 4 blocks"),
    ("stack", {}, "the graphs of KV f32 are not those of 4 blocks"),
    ("model", 3, "facts.model: expected str, found int"),
]


@pytest.mark.parametrize(("key", "value", "words"), FACTS)
def test_facts_of_an_artifact_are_checked_by_its_runtime(bundle: Path, key: str, value: Any, words: str) -> None:
    """Who does not open that runtime has no use for them."""
    manifest = read(bundle)
    manifest["artifacts"]["ort"]["facts"][key] = value
    write(bundle, manifest)
    opened = Bundle.open(bundle)
    open_runtime("reference", opened)
    with pytest.raises(BundleCorrupt, match=words) as caught:
        open_runtime("ort", opened)
    assert "\n" not in str(caught.value)


def test_a_runtime_without_its_files_says_how_to_add_them(bundle: Path) -> None:
    manifest = read(bundle)
    del manifest["artifacts"]["ort"]
    write(bundle, manifest)
    with pytest.raises(
        RuntimeUnavailable, match="engine ort: the bundle has no files for it; add them with `edgedec add ort"
    ):
        open_runtime("ort", Bundle.open(bundle))


# ---- the folder --------------------------------------------------------------------------------


def _no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def _folder_as_manifest(folder: Path) -> None:
    _no_manifest(folder)
    (folder / MANIFEST).mkdir()


def _missing(folder: Path) -> None:
    (folder / "head.onnx").unlink()


def _folder_as_file(folder: Path) -> None:
    _missing(folder)
    (folder / "head.onnx").mkdir()


def _shorter(folder: Path) -> None:
    os.truncate(folder / "weights.bin", (folder / "weights.bin").stat().st_size - 1)


def _longer(folder: Path) -> None:
    with (folder / "weights.bin").open("ab") as file:
        file.write(b"\0")


def _flipped(folder: Path) -> None:
    with (folder / "weights.bin").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


def _link_out(folder: Path) -> None:
    outside = folder.parent / "weights.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)


def _link_nowhere(folder: Path) -> None:
    _missing(folder)
    (folder / "head.onnx").symlink_to(folder / "gone.onnx")


def _link_in_a_circle(folder: Path) -> None:
    _missing(folder)
    (folder / "head.onnx").symlink_to("head.onnx")


def _link_to_a_link_out(folder: Path) -> None:
    outside = folder.parent / "head.onnx"
    (folder / "head.onnx").rename(outside)
    (folder / "middle.onnx").symlink_to(outside)
    (folder / "head.onnx").symlink_to("middle.onnx")


FOLDERS: list[tuple[Callable[[Path], None], type[EdgedecError], str, bool]] = [
    (_no_manifest, BundleNotFound, "no edgedec.json there", False),
    (_folder_as_manifest, BundleNotFound, "no edgedec.json there", False),
    (shutil.rmtree, BundleNotFound, "no edgedec.json there", False),
    (_missing, BundleCorrupt, "head.onnx: missing", False),
    (_folder_as_file, BundleCorrupt, "head.onnx: missing", False),
    (_shorter, BundleCorrupt, "bytes, the manifest says", False),
    (_longer, BundleCorrupt, "bytes, the manifest says", False),
    (_flipped, BundleCorrupt, "weights.bin: content differs from its hash", True),
    (_link_out, BundleUnsafe, "a link out of the bundle", False),
    (_link_nowhere, BundleCorrupt, "missing", False),
    (_link_in_a_circle, BundleCorrupt, "missing", False),
    (_link_to_a_link_out, BundleUnsafe, "a link out of the bundle", False),
]


@pytest.mark.parametrize(("spoil", "error", "words", "verify"), FOLDERS)
def test_a_bad_folder(
    bundle: Path, spoil: Callable[[Path], None], error: type[EdgedecError], words: str, verify: bool
) -> None:
    spoil(bundle)
    if verify:
        Bundle.open(bundle)  # sizes alone do not tell
    refused(bundle, error, words, verify)


def test_a_link_within_the_folder_is_fine(bundle: Path) -> None:
    (bundle / "weights.bin").rename(bundle / "real.bin")
    (bundle / "weights.bin").symlink_to("real.bin")
    Bundle.open(bundle, verify=True)


def test_a_file_of_ours_that_is_not_listed_is_not_given(good: Path) -> None:
    with pytest.raises(BundleCorrupt, match=r"does not list 'edgedec.json'"):
        Bundle.open(good).file(MANIFEST)


# ---- fuzz --------------------------------------------------------------------------------------

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([HUGE, -HUGE, 64]),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(st.text(max_size=8), item, max_size=3),
    max_leaves=5,
)


@FUZZ
@given(data=st.data())
def test_any_bytes_of_a_manifest(good: Path, fuzzed: Path, data: st.DataObject) -> None:
    raw = bytearray((good / MANIFEST).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.integers(0, 9)) == 0:
            del raw[at + 1 :]
        else:
            raw[at] = data.draw(st.integers(0, 255))
    (fuzzed / MANIFEST).write_bytes(raw)
    survives(fuzzed)


@FUZZ
@given(data=st.data())
def test_any_value_in_a_manifest(good: Path, fuzzed: Path, data: st.DataObject) -> None:
    manifest = read(good)
    way = data.draw(st.sampled_from(_keys(manifest)))
    part: Any = manifest
    for key in way[:-1]:
        part = part[key]
    if data.draw(st.booleans()) or isinstance(part, list):
        part[way[-1]] = data.draw(JSON)
    else:
        part[data.draw(st.text(max_size=12))] = part.pop(way[-1])
    write(fuzzed, manifest)
    survives(fuzzed)


@pytest.fixture(scope="module")
def fuzzed(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(good, tmp_path_factory.mktemp("fuzzed") / "bundle"))


def survives(folder: Path) -> None:
    """Refused, or it opens and all of its weights can be read: no other end, and no great appetite."""
    tracemalloc.start()
    try:
        bundle = _opens(folder)
        if bundle is not None:
            for name, shape in bundle.spec.tensors().items():
                assert bundle.rows(name).shape == shape
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_any_byte_of_any_file_is_caught_by_its_hash(good: Path, fuzzed: Path, data: st.DataObject) -> None:
    (fuzzed / MANIFEST).write_bytes((good / MANIFEST).read_bytes())
    path = fuzzed / data.draw(st.sampled_from(sorted(read(good)["files"])))
    raw = path.read_bytes()
    at, by = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(1, 255))
    try:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ by]) + raw[at + 1 :])
        with pytest.raises(BundleCorrupt, match=f"{path.name}: content differs from its hash"):
            Bundle.open(fuzzed, verify=True)
    finally:
        path.write_bytes(raw)


OPEN_MUTATED = """
import sys, numpy as np
from pathlib import Path
from edgedec.bundle.folder import Bundle
from edgedec.errors import EdgedecError
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
rng, refused, ran = np.random.default_rng(seed), 0, 0
path = folder / "stack.f32.onnx"
good = path.read_bytes()
for _ in range(100):
    raw = bytearray(good)
    for at in rng.integers(0, len(raw), rng.integers(1, 4)):
        raw[at] = rng.integers(0, 256)
    path.write_bytes(raw)
    try:
        runtime = open_runtime("ort", Bundle.open(folder), RuntimeOptions(threads=1))
        logits_of(runtime, Rows.chain([1, 2, 3], 0), runtime.new_cache(8))
        ran += 1
    except EdgedecError as error:
        assert "\\n" not in str(error), str(error)
        refused += 1
print(refused, ran)
"""


def test_a_broken_graph_is_refused_by_the_runtime(bundle: Path) -> None:
    """Without `verify`: a graph whose bytes were changed is refused, or runs; the process goes on."""
    for seed in (0, 1):
        done = subprocess.run(
            [sys.executable, "-c", OPEN_MUTATED, str(bundle), str(seed)], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        # ONNX Runtime prints on its own, too.
        turned_away, ran = map(int, done.stdout.splitlines()[-1].split())
        assert turned_away > 10, (turned_away, ran)


def test_noise_for_a_graph(bundle: Path) -> None:
    path = bundle / "model.onnx"
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    with pytest.raises(BundleCorrupt, match=r"model.onnx: not an ONNX graph, or damaged") as caught:
        open_runtime("ort", Bundle.open(bundle)).load()
    assert "\n" not in str(caught.value)


def test_a_packed_bundle_is_verified_itself(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was unpacked of it; and one that was never unpacked is named by its own path."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "nano.edb"
    pack(Bundle.open(nano), file)
    assert CliRunner().invoke(app, ["verify", str(file)]).exit_code == 0
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    for name in ("nano.edb", "other.edb", "blob"):
        (tmp_path / name).write_bytes(raw)
        told = CliRunner().invoke(app, ["verify", str(tmp_path / name)])
        assert told.exit_code == 1
        assert f"{name}: " in told.stderr
        assert "content differs" in told.stderr
        assert "partial" not in told.stderr


def test_a_large_file_that_is_no_session_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(SessionError, match="not a saved session"):
        read_arrays(tmp_path / "large", b"EDGESESS", "a saved session", SessionError)
