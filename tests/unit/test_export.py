"""Exporting: what is refused and how, that nothing is left behind, and that the result is the same each time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import LLAMA, VOCAB, llama_shapes, write_llama

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BadTensor, BundleError, CheckpointError, EdgedecError, UnknownArchitecture, UsageError
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export import exporter
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.safetensors import elements, read_header
from edgedec.export.weights import ROW, rounded_rows

SHAPE: dict[str, Any] = {"head_dim": 16, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64}
QUICK = ExportOptions(check=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("good") / "checkpoint", **SHAPE)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One to spoil."""
    return write_llama(tmp_path / "in" / "checkpoint", **SHAPE)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder; bundles are made in it."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """A checkpoint's tensors in float32."""
    path = folder / "model.safetensors"
    return {n: elements(n, s, 0, int(np.prod(s.shape))).reshape(s.shape) for n, s in read_header(path).items()}


def write_tensors(path: Path, found: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """As a safetensors file; bf16 by its upper halves."""
    header, chunks, at = {}, [], 0
    for name, tensor in found.items():
        raw = {
            "F32": lambda t: t.tobytes(),
            "F16": lambda t: t.astype(np.float16).tobytes(),
            "BF16": lambda t: (t.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
        }[dtype](np.ascontiguousarray(tensor))
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        chunks.append(raw)
    head = json.dumps(header).encode()
    path.write_bytes(b"".join([len(head).to_bytes(8, "little"), head, *chunks]))


def shard(folder: Path) -> None:
    """A checkpoint in two files and an index."""
    found = tensors(folder)
    names = list(found)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in parts.items():
        write_tensors(folder / file, {name: found[name] for name in part})
    placed = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "model.safetensors").unlink()


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def change(name: str, to: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    """A spoiler: tensor `name` changed, or dropped where `to` gives None."""

    def spoil(folder: Path) -> None:
        found = tensors(folder)
        changed = to(found.pop(name, np.zeros(3, np.float32)))
        write_tensors(folder / "model.safetensors", found | ({} if changed is None else {name: changed}))

    return spoil


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: configure(folder, **changes)


def holed(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def to(tensor: np.ndarray) -> np.ndarray:
        tensor.flat[-1] = value
        return tensor

    return to


def _lose_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-2.safetensors").unlink()


def _cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)


DOWN, NORM, KEYS = "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "model.layers.0.self_attn.k_proj.weight"
BAD: dict[str, tuple[Callable[[Path], None], type[EdgedecError], str]] = {
    "architecture": (config(model_type="rwkv"), UnknownArchitecture, "model_type 'rwkv' .*is not one of"),
    "no architecture": (config(model_type=None), CheckpointError, "model_type must be a string"),
    "no config": (lambda f: (f / "config.json").unlink(), CheckpointError, "config.json: No such file"),
    "config": (lambda f: (f / "config.json").write_text("{"), CheckpointError, "config.json: not valid JSON"),
    "config size": (config(hidden_size=-1), CheckpointError, "hidden_size must be a whole number of at least 1"),
    "config huge": (config(vocab_size=1 << 40), EdgedecError, "vocab"),
    "head size": (config(head_dim=24), BadTensor, "expected"),
    "quantized config": (config(quantization_config={"bits": 4}), CheckpointError, "quant_method None is not one of"),
    "missing": (change(DOWN, lambda t: None), BadTensor, f"^{DOWN}: missing"),
    "extra": (change("model.layers.0.mlp.gate.weight", lambda t: t), BadTensor, "is not part of a llama model"),
    "misshapen": (change(DOWN, lambda t: t[:-1]), BadTensor, r"down_proj.weight: .*expected \(64, 48\)"),
    "flat": (change(DOWN, lambda t: t.ravel()), BadTensor, "down_proj.weight: .*expected"),
    "transposed": (change(DOWN, lambda t: t.T), BadTensor, "down_proj.weight: .*expected"),
    "NaN": (change(DOWN, holed(np.nan)), BadTensor, f"^{DOWN}: holds values that are not finite"),
    "NaN in a norm": (change(NORM, holed(np.nan)), BadTensor, f"^{NORM}: holds values that are not finite"),
    "infinity": (change(KEYS, holed(np.inf)), BadTensor, f"^{KEYS}: holds values that are not finite"),
    "beyond float16 scales": (change(DOWN, holed(1e9)), BadTensor, "beyond the"),
    "cut short": (_cut_short, CheckpointError, "download it again"),
    "lost shard": (_lose_a_shard, CheckpointError, "model-2.safetensors: No such file"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), CheckpointError, "no model.safetensors and no"),
    "not safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"PK"), CheckpointError, "truncated, or not"),
    "tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), EdgedecError, "not a tokenizer.json"),
    "tokenizer settings": (
        lambda f: (f / "tokenizer_config.json").write_text("["),
        CheckpointError,
        "tokenizer_config.json: not valid JSON",
    ),
    "tokenizer of another model": (config(vocab_size=100), EdgedecError, "expected|vocabulary"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_checkpoint(checkpoint: Path, place: Path, case: str) -> None:
    spoil, error, words = BAD[case]
    spoil(checkpoint)
    refused(checkpoint, place, ExportOptions(), error, words)


def refused(checkpoint: Path, place: Path, options: ExportOptions, error: type[EdgedecError], words: str) -> None:
    """In one line, and nothing is left behind."""
    before = sorted(place.iterdir())
    with pytest.raises(error, match=words) as caught:
        export(str(checkpoint), place / "bundle", options)
    assert "\n" not in str(caught.value)
    assert sorted(place.iterdir()) == before


def test_no_checkpoint_there(place: Path) -> None:
    refused(place / "nowhere", place, QUICK, CheckpointError, "neither a folder nor a GGUF file nor a Hub id")


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"weights": "int5"}, "^--weights int5: must be one of f32, f16, int8, int4, int3, int2$"),
    ({"weights": ""}, "^--weights"),
    ({"head": "q4"}, "^--head q4: must be one of"),
    ({"embed": "q4"}, "^--embed q4: must be one of"),
    ({"block": 16}, "^--block 16: must be 32, 64, 128, row$"),
    ({"block": ROW}, "^--block row: scales of whole rows are of int8; give --weights int8, f16 or f32$"),
    ({"block": ROW, "weights": "int4"}, "^--block row: .* give --weights int8"),
    ({"block": ROW, "weights": "int8", "head": "int4"}, "^--block row: .* give --head int8"),
    ({"block": ROW, "weights": "int8", "embed": "int3"}, "^--block row: .* give --embed int8"),
    ({"block": ROW, "weights": "int8", "passes": "gptq"}, "^--block row: passes round in blocks"),
    ({"block": ROW, "weights": "int8", "quality": "good"}, "^--block row: passes round in blocks"),
    ({"kv": ()}, "^--kv : must name some of f32, f16, int8, int4, each once$"),
    ({"kv": ("f64",)}, "^--kv f64"),
    ({"kv": ("f32", "f32")}, "^--kv f32,f32"),
    ({"target": "gpu"}, "^--target gpu: must be one of cpu, portable$"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ExportOptions(**options)


@pytest.mark.parametrize("name", ["gpu", "", "onnx"])
def test_a_runtime_that_does_not_exist(good: Path, place: Path, name: str) -> None:
    options = ExportOptions(runtimes=("native", name), check=False)
    known = "cuda, devices, genai, native, opencl, ort, reference, tvm, web"
    refused(good, place, options, UsageError, f"^--for {name}: no such runtime; there are: {known}$")


def test_a_runtime_that_cannot_run_the_model(tmp_path: Path, place: Path) -> None:
    odd = write_llama(tmp_path / "odd", **SHAPE | {"head_dim": 24})
    words = "cannot run this llama: head_dim 24 is not a multiple of 16"
    for name in ("ort", "genai"):
        refused(odd, place, ExportOptions(runtimes=(name,), check=False), UsageError, f"^--for {name}: {words}$")
    bundle = made(odd, place / "b", check=True)
    assert bundle.manifest.artifacts == {}
    assert bundle.manifest.parity is not None, "checked by a runtime that can run it"
    assert not [name for name in bundle.manifest.files if name.endswith(".onnx")]


@pytest.mark.parametrize(
    ("runtimes", "artifacts"), [(("native",), set()), (("reference", "genai"), {"genai"}), (("ort",), {"ort"})]
)
def test_only_the_files_of_the_runtimes_that_are_named(
    good: Path, place: Path, runtimes: tuple[str, ...], artifacts: set[str]
) -> None:
    bundle = made(good, place / "b", runtimes=runtimes)
    assert set(bundle.manifest.artifacts) == artifacts
    assert ("genai_config.json" in bundle.manifest.files) == ("genai" in artifacts)
    assert ("stack.f32.onnx" in bundle.manifest.files) == ("ort" in artifacts)
    assert sorted(os.listdir(bundle.path)) == sorted([*bundle.manifest.files, MANIFEST])
    assert np.isfinite(logits(bundle, "reference")).all()


@pytest.mark.parametrize("context", [0, -1, 65, 1 << 40])
def test_bad_contexts(good: Path, place: Path, context: int) -> None:
    refused(good, place, ExportOptions(context=context), EdgedecError, f"context of {context} is out of range")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "not a readable text file"),
        (b"\xff\xfe\x80", "not a readable text file"),
        (b"", "fewer than two tokens"),
    ],
)
def test_bad_calibration_texts(good: Path, place: Path, content: bytes | None, words: str) -> None:
    text = place.parent / "calibration.txt"
    if content is not None:
        text.write_bytes(content)
    refused(good, place, ExportOptions(kv=("int8",), calibrate=text), UsageError, f"^--calibrate .*{words}")


def test_an_existing_target_only_goes_with_force(good: Path, place: Path) -> None:
    (place / "bundle").mkdir()
    (place / "bundle" / "mine.txt").write_text("precious")
    refused(good, place, QUICK, UsageError, "exists already")
    assert (place / "bundle" / "mine.txt").read_text() == "precious"
    force = ExportOptions(check=False, force=True)
    refused(good, place, force, UsageError, "is not a bundle; --force replaces bundles only")
    (place / "bundle" / "mine.txt").unlink()
    export(str(good), place / "bundle", force)
    (place / "bundle" / "head.onnx").write_bytes(b"spoilt")
    export(str(good), place / "bundle", force)
    Bundle.open(place / "bundle", verify=True)
    assert os.listdir(place) == ["bundle"]


def test_a_failed_export_with_force_leaves_the_old_bundle(good: Path, checkpoint: Path, place: Path) -> None:
    export(str(good), place / "bundle", QUICK)
    digest = Bundle.open(place / "bundle").digest
    change(DOWN, holed(np.nan))(checkpoint)
    refused(checkpoint, place, ExportOptions(force=True), BadTensor, "not finite")
    assert Bundle.open(place / "bundle", verify=True).digest == digest


def test_a_target_that_cannot_be_written(good: Path, place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(BundleError, match="cannot be written") as caught:
        export(str(good), place / "file" / "bundle", QUICK)
    assert "\n" not in str(caught.value)
    assert os.listdir(place) == ["file"]


@pytest.mark.parametrize("when", ["weights", "graphs", "hashes", "parity"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_an_export_that_ends_early(good: Path, place: Path, when: str, error: BaseException) -> None:
    def progress(what: str, done: int, total: int) -> None:
        if what == when and done * 2 >= total:
            raise error

    expected = BundleError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match="no space left on the disk" if isinstance(error, OSError) else None):
        export(str(good), place / "bundle", ExportOptions(), progress)
    assert os.listdir(place) == []


FULL = """
import resource, signal, sys
from pathlib import Path
from edgedec.errors import BundleError
from edgedec.export.exporter import ExportOptions, export
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    export(sys.argv[1], Path(sys.argv[2]), ExportOptions(check=False))
except BundleError as error:
    print(error)
"""


def test_a_full_disk(good: Path, place: Path) -> None:
    """A real write that fails half-way: the limit is on the size of a file, in a process of its own."""
    pytest.importorskip("resource", reason="limits are of POSIX")
    command = [sys.executable, "-c", FULL, str(good), str(place / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{place / 'bundle'}: cannot be written: ")
    assert done.stdout.count("\n") == 1
    assert os.listdir(place) == []


# ---- what is written ---------------------------------------------------------------------------


def made(checkpoint: Path, out: Path, **options: Any) -> Bundle:
    return export(str(checkpoint), out, ExportOptions(**{"check": False, **options}))


def hashes(bundle: Bundle) -> dict[str, str]:
    return {name: file.sha256 for name, file in bundle.manifest.files.items()}


def test_every_file_is_listed_and_hashed(good: Path, place: Path) -> None:
    bundle = made(good, place / "b", kv=("f32", "f16", "int8", "int4"), check=True)
    assert sorted(os.listdir(bundle.path)) == sorted([*bundle.manifest.files, MANIFEST])
    assert set(bundle.manifest.artifacts) == {"ort", "genai"}
    for artifact in bundle.manifest.artifacts.values():
        assert set(artifact.files) < set(bundle.manifest.files)
    bundle.verify()
    assert (bundle.path.stat().st_mode & 0o777) == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("options", [{}, {"target": "cpu"}, {"weights": "int8", "kv": ("int8", "int4"), "check": True}])
def test_an_export_is_the_same_each_time(good: Path, place: Path, options: dict[str, Any]) -> None:
    one, two = (made(good, place / name / "bundle", **options) for name in ("one", "two"))
    assert hashes(one) == hashes(two)
    assert one.digest == two.digest


def test_shards_make_no_difference(checkpoint: Path, good: Path, place: Path) -> None:
    shard(checkpoint)
    assert hashes(made(checkpoint, place / "one")) == hashes(made(good, place / "two"))


@pytest.mark.parametrize("weights", ["f32", "int4"])
def test_neither_does_the_type_of_the_checkpoint(checkpoint: Path, place: Path, weights: str) -> None:
    """The same values, which all of the three types hold."""
    rounded = {n: (t.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, t in tensors(checkpoint).items()}
    rounded = {n: np.where(np.abs(t) < 1e-3, np.float32(0), t) for n, t in rounded.items()}
    found = []
    for dtype in ("F32", "BF16", "F16"):
        write_tensors(checkpoint / "model.safetensors", rounded, dtype)
        found.append(hashes(made(checkpoint, place / dtype, weights=weights)))
    assert found[0] == found[1] == found[2]


def logits(bundle: Bundle, engine: str = "ort") -> np.ndarray:
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1))
    ids = [3, 50, 200, 7, 7, 100]
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(8))


def test_a_tied_matrix_is_stored_once(tmp_path: Path, place: Path) -> None:
    tied = write_llama(tmp_path / "tied", **SHAPE, tie_word_embeddings=True)
    plain = {part: made(tied, place / part, weights="f32", **{part: "f32"}) for part in ("head", "embed")}
    whole = plain["head"].manifest
    assert "head" not in whole.tensors
    assert hashes(plain["head"]) == hashes(plain["embed"])
    weights = sum(int(np.prod(shape)) * 4 for shape in whole.spec.tensors().values())
    ropes = 2 * 4 * whole.spec.context_length * 8
    size = whole.files[whole.weights].size
    assert weights + ropes <= size < weights + ropes + 64 * (len(whole.tensors) + 4)


@pytest.mark.parametrize(("head", "embed"), [("int8", "int4"), ("f32", "int8"), ("f16", "f32"), ("int4", "f16")])
def test_a_tied_matrix_in_two_formats_is_stored_twice(tmp_path: Path, place: Path, head: str, embed: str) -> None:
    tied = write_llama(tmp_path / "tied", **SHAPE, tie_word_embeddings=True)
    bundle = made(tied, place / "b", weights="f32", head=head, embed=embed)
    assert not bundle.spec.tied
    assert (bundle.manifest.tensors["head"].format, bundle.manifest.tensors["embed"].format) == (head, embed)
    whole = logits(made(tied, place / "whole", weights="f32"))
    for engine in ("reference", "ort"):
        assert np.abs(logits(bundle, engine) - whole).mean() < 0.3 * whole.std()


def test_a_tied_matrix_follows_the_one_format_that_is_given(tmp_path: Path, place: Path) -> None:
    tied = write_llama(tmp_path / "tied", **SHAPE, tie_word_embeddings=True)
    bundle = made(tied, place / "b", embed="int8")
    assert bundle.spec.tied
    assert bundle.manifest.tensors["embed"].format == "int8"
    assert bundle.manifest.quantization == {"body": "int4", "head": "int8", "embed": "int8", "block": "32"}


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_blocks(good: Path, place: Path, weights: str, block: int) -> None:
    """48 and 64 inputs do not fill a block of 128; what fills it up must not count."""
    bundle = made(good, place / "b", weights=weights, block=block)
    assert {t.block for t in bundle.manifest.tensors.values()} == {0, block}
    expected = logits(bundle, "reference")
    assert np.abs(logits(bundle) - expected).mean() < 0.05 * expected.std()
    assert np.abs(expected - logits(made(good, place / "f32", weights="f32"))).mean() < 0.5 * expected.std()


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_scale_for_each_row(good: Path, place: Path, target: str) -> None:
    bundle = made(good, place / "b", weights="int8", block=ROW, head="f16", target=target)
    manifest = bundle.manifest
    assert manifest.quantization["block"] == "row"
    assert manifest.version == 9
    assert {t.row_scales for t in manifest.tensors.values() if t.format == "int8"} == {True}
    assert {t.row_scales for t in manifest.tensors.values() if t.format != "int8"} == {False}
    floats = made(good, place / "f32", weights="f32")
    name = next(name for name, t in manifest.tensors.items() if t.format == "int8" and name != "embed")
    whole, stored = floats.rows(name), bundle.rows(name)
    unit = np.abs(whole).max(1, keepdims=True) / 127
    assert np.abs(stored - whole).max() <= 0.51 * unit.max()
    steps = stored / unit
    assert np.abs(steps - np.rint(steps)).max() < 0.1, "of whole rows, not of blocks"
    expected = logits(bundle, "reference")
    for engine in ("native", "ort"):
        assert np.abs(logits(bundle, engine) - expected).mean() < 0.05 * expected.std()
    apart = replace(manifest, tensors={n: replace(t, row_scales=False) for n, t in manifest.tensors.items()})
    by_blocks = logits(Bundle(bundle.path, apart, digest=""), "native")
    assert (by_blocks != logits(bundle, "native")).any(), "rows of activations have one scale too"


def test_only_int8_has_scales_of_rows() -> None:
    """The matrices of a draft may be of another format than the model's."""
    values = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)
    for fmt in ("int8", "int4"):
        kept = rounded_rows(fmt, ROW, lambda start, stop: values[start:stop])  # type: ignore[arg-type]
        assert (kept.block, kept.row_scales) == (32, fmt == "int8")
        same = [len(set(row)) == 1 for row in kept.rows(0, 16)[1].tolist()]
        assert same == [fmt == "int8"] * 16


def test_a_shorter_context(good: Path, place: Path) -> None:
    short, long = made(good, place / "short", context=16, weights="f32"), made(good, place / "long", weights="f32")
    assert (short.spec.context_length, long.spec.context_length) == (16, 64)
    assert short.manifest.files["weights.bin"].size < long.manifest.files["weights.bin"].size
    np.testing.assert_array_equal(logits(short), logits(long))
    with pytest.raises(UsageError, match="from 1 to 16"):
        edgedec.open(short.path).session(context=17)
    assert json.loads((short.path / "genai_config.json").read_text())["model"]["context_length"] == 16


@pytest.mark.parametrize(
    ("weights", "kl", "refused"),
    [("f32", 0.5, True), ("f16", 0.02, True), ("f32", 0.001, False), ("int4", 0.5, False), ("int4", np.nan, True)],
)
def test_what_does_not_agree_is_not_written(
    good: Path, place: Path, monkeypatch: pytest.MonkeyPatch, weights: str, kl: float, refused: bool
) -> None:
    measured = exporter.parity

    def apart(*given: Any) -> Any:
        return replace(measured(*given), kl={"f32": kl})

    monkeypatch.setattr(exporter, "parity", apart)
    if not refused:
        assert made(good, place / "a", check=True, weights=weights).manifest.parity is not None
        return
    with pytest.raises(CheckpointError, match="with KV f32 the bundle does not compute what its checkpoint does"):
        made(good, place / "a", check=True, weights=weights)
    assert not (place / "a").exists()


def test_the_check_may_be_left_out(good: Path, place: Path) -> None:
    assert made(good, place / "a").manifest.parity is None
    parity = made(good, place / "b", check=True, kv=("f32", "int8"), weights="f32").manifest.parity
    assert parity is not None
    assert set(parity.kl) == set(parity.perplexity) == set(parity.top1) == {"f32", "int8"}
    assert abs(parity.kl["f32"]) < 1e-8 < parity.kl["int8"]
    assert parity.perplexity["f32"] == pytest.approx(parity.reference_perplexity, rel=1e-5)
    assert (parity.tokens, parity.text) == (64, "built-in text")  # as many as the context holds


def test_names(good: Path, place: Path) -> None:
    assert made(good, place / "folder-name").manifest.name == "folder-name"
    assert made(good, place / "b", name="Ünï code").manifest.name == "Ünï code"


def test_a_checkpoint_without_a_tokenizer(tmp_path: Path, place: Path) -> None:
    bare = write_llama(tmp_path / "bare", tokenizer=False, **SHAPE)
    bundle = made(bare, place / "b", check=True, kv=("int8",))
    assert bundle.manifest.text.tokenizer is None
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.text == "random tokens (no tokenizer)"
    assert bundle.manifest.text.eos == (VOCAB - 3,)


def test_a_calibration_text_is_used(good: Path, place: Path) -> None:
    text = place.parent / "calibration.txt"
    text.write_text("the thing and the king " * 50)
    one, two = made(good, place / "a", kv=("int4",)), made(good, place / "b", kv=("int4",), calibrate=text)
    assert hashes(one)["weights.bin"] != hashes(two)["weights.bin"]


def test_progress_ends_where_it_should(good: Path, place: Path) -> None:
    last: dict[str, tuple[int, int]] = {}
    export(str(good), place / "b", ExportOptions(), lambda what, done, total: last.update({what: (done, total)}))
    assert list(last) == ["weights", "graphs", "hashes", "parity"]
    assert all(done == total for done, total in last.values())


# ---- memory ------------------------------------------------------------------------------------

PEAK = """
import sys
from pathlib import Path
from edgedec.export.exporter import ExportOptions, export
import edgedec.runtimes.ort
def kib(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key + ":"))
before = kib("VmRSS")
export(sys.argv[1], Path(sys.argv[2]), ExportOptions(threads=1, check=sys.argv[3] == "check", target=sys.argv[4]))
print(before, kib("VmHWM"))
"""
LARGE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE |= {"num_key_value_heads": 4, "head_dim": 64}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads Linux's account of memory")
@pytest.mark.parametrize(("check", "target"), [("check", "portable"), ("check", "cpu"), ("plain", "cpu")])
def test_a_model_is_exported_in_less_memory_than_it_takes(large: Path, place: Path, check: str, target: str) -> None:
    command = [sys.executable, "-c", PEAK, str(large), str(place / "b"), check, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    before, peak = (int(n) * 1024 for n in done.stdout.splitlines()[-1].split())
    size = (large / "model.safetensors").stat().st_size
    assert size > 250e6
    assert (peak - before) / size < 0.4, ((peak - before) / 2**20, size / 2**20)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB of weights: one random megabyte over and over."""
    folder = tmp_path_factory.mktemp("large")
    settings = LLAMA | LARGE
    (folder / "config.json").write_text(json.dumps(settings))
    noise = (np.random.default_rng(0).standard_normal(1 << 18, np.float32) / 40).tobytes()
    header, at = {}, 0
    for name, shape in llama_shapes(settings).items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _ in range(at // len(noise)):
            file.write(noise)
        file.write(noise[: at % len(noise)])
    return folder
