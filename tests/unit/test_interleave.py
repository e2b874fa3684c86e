"""Packed matrices: the bytes lie where a kernel expects them, mean what they meant, and run as before."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, write_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_sessions import session as session_of

from edgedec.bundle.folder import Bundle, dequantize
from edgedec.bundle.interleave import LANES, pack, packed_zeros, pick, unpack, zeros_by_row
from edgedec.bundle.manifest import MANIFEST, Tensor
from edgedec.errors import BundleCorrupt, EdgedecError
from edgedec.runtime import Rows, RuntimeOptions, choose_runtime, logits_of, open_runtime

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.quantize import Format, quantize
from edgedec.export.weights import packed

SHAPE: dict[str, Any] = {"head_dim": 16, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2}
FORMATS: tuple[Format, ...] = ("int4", "int8")
sizes, blocks, formats = st.integers(1, 70), st.sampled_from([16, 32, 64, 128, 256]), st.sampled_from(FORMATS)


# ---- the permutation ---------------------------------------------------------------------------


def test_the_example_of_the_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.bundle.interleave.LANES", 2)
    found = pack(np.array([[1, 2], [3, 4], [5, 6]]), 0)
    assert found.tolist() == [[[1, 3], [2, 4]], [[5, 0], [6, 0]]]
    assert unpack(found, 0, 3).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert pick(found, np.array([2, 0])).tolist() == [[5, 6], [1, 2]]


@given(n=sizes, width=st.integers(1, 20), data=st.data())
def test_rows_come_back(n: int, width: int, data: st.DataObject) -> None:
    rows = np.arange(n * width, dtype=np.uint32).reshape(n, width)
    lanes = pack(rows, 7)
    assert lanes.shape == (-(-n // LANES), width, LANES)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    np.testing.assert_array_equal(unpack(lanes, start, stop), rows[start:stop])
    wanted = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=9)), np.int64)
    np.testing.assert_array_equal(pick(lanes, wanted), rows[wanted])


@given(n=sizes, width=st.integers(1, 9), fmt=formats, layout=st.sampled_from(["rows", "interleave16"]), data=st.data())
def test_zero_points_come_back(n: int, width: int, fmt: Format, layout: Any, data: st.DataObject) -> None:
    tensor = Tensor(fmt, (n, 32 * width), 0, 64, 32, layout, 128)
    zeros = np.random.default_rng(n).integers(0, 16 if fmt == "int4" else 256, (n, width), np.uint8)
    stored = packed_zeros(zeros, tensor)
    assert stored.nbytes == tensor.zero_bytes
    np.testing.assert_array_equal(zeros_by_row(stored.ravel(), tensor), zeros)
    start = data.draw(st.integers(0, (n - 1) // LANES)) * (LANES if layout == "interleave16" else 1)
    part = tensor.part(start, n)
    at = stored.ravel()[part.zeros - tensor.zeros :]
    np.testing.assert_array_equal(zeros_by_row(at[: part.zero_bytes], part), zeros[start:])


@settings(deadline=None)
@given(n=sizes, k=st.integers(1, 300), block=blocks, fmt=formats, seed=st.integers(0, 9))
def test_every_byte_lies_where_the_format_says(n: int, k: int, block: int, fmt: Format, seed: int) -> None:
    data, scales = quantize(np.random.default_rng(seed).standard_normal((n, k), np.float32), fmt, block)
    words, half = packed(data, scales, fmt)
    tensor = Tensor(fmt, (n, k), 0, 0, block, "interleave16")
    assert (words.nbytes, half.nbytes) == (tensor.data_bytes, tensor.scale_bytes)
    groups, count = -(-n // 16), -(-k // block)
    found = words.view(np.uint8).reshape(groups, -1, 16, 4)
    flat = np.ascontiguousarray(data).reshape(n, -1)
    for row in {0, n // 2, n - 1}:
        g, lane = divmod(row, 16)
        for byte in {0, 3, 4 % flat.shape[1], flat.shape[1] - 1}:
            assert found[g, byte // 4, lane, byte % 4] == flat[row, byte]
        np.testing.assert_array_equal(half[g, :, lane], scales[row])
    # What fills up the last group is worth nothing, however it is read.
    lost = unpack(words, 0, groups * 16)[n:].view(np.uint8)
    assert (lost == (0x88 if fmt == "int4" else 128)).all()
    assert (unpack(half, 0, groups * 16)[n:] == 0).all()
    if len(lost):
        assert not dequantize(lost.reshape(len(lost), count, -1), np.ones((len(lost), count)), fmt, k).any()


# ---- bundles -----------------------------------------------------------------------------------


def made(folder: Path, target: str, **options: Any) -> Bundle:
    return export(str(folder / "in"), folder / target, ExportOptions(target=target, check=False, **options))


def both(folder: Path, *, tied: bool, **options: Any) -> tuple[Bundle, Bundle]:
    """One checkpoint in rows and packed. Its 268 words do not fill the last group, nor do its 72 gates' inputs
    fill a block."""
    write_llama(folder / "in", **SHAPE, tie_word_embeddings=tied)
    return made(folder, "portable", **options), made(folder, "cpu", **options)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    return both(tmp_path_factory.mktemp("pair"), tied=False, embed="int8", kv=("f32", "int8"))


def test_what_is_packed(pair: tuple[Bundle, Bundle]) -> None:
    rows, lanes = (bundle.manifest for bundle in pair)
    assert {t.layout for t in rows.tensors.values()} == {"rows"}
    assert '"layout"' not in (pair[0].path / MANIFEST).read_text()
    for name, tensor in lanes.tensors.items():
        assert tensor.layout == ("interleave16" if len(tensor.shape) == 2 else "rows"), name
    pair[1].verify()


@pytest.mark.parametrize("weights", ["f16", "f32"])
def test_floats_are_never_packed(tmp_path: Path, weights: str) -> None:
    rows, lanes = both(tmp_path, tied=True, weights=weights)
    assert rows.manifest.files == lanes.manifest.files
    assert {t.layout for t in lanes.manifest.tensors.values()} == {"rows"}


def test_large_matrices_are_packed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = both(tmp_path, tied=False)[1]
    monkeypatch.setattr("edgedec.export.weights._CHUNK", 48 * 40)  # 40 rows: no multiple of 16
    (tmp_path / "again").mkdir()
    pieces = both(tmp_path / "again", tied=False)
    assert pieces[1].manifest.files == whole.manifest.files


def test_weights_are_read_alike(pair: tuple[Bundle, Bundle]) -> None:
    rows, lanes = pair
    wanted = np.array([0, VOCAB - 1, 17, 17, 15, 16])
    for name, (n, *width) in rows.spec.tensors().items():
        np.testing.assert_array_equal(lanes.rows(name), rows.rows(name))
        for start, stop in ((0, 0), (5, 5), (3, 18), (16, 32), (n - 1, n), (7, n + 100), (n + 5, n + 9), (9, 2)):
            if width and start < min(stop, n):
                np.testing.assert_array_equal(lanes.rows(name, start, stop), rows.rows(name, start, stop))
    for name in ("embed", "head"):
        np.testing.assert_array_equal(lanes.gather(name, wanted), rows.gather(name, wanted))


@pytest.mark.parametrize("row", [VOCAB, VOCAB + 3, -1, 1 << 40])
def test_rows_that_fill_up_a_group_are_no_rows(pair: tuple[Bundle, Bundle], row: int) -> None:
    with pytest.raises(IndexError):
        pair[1].gather("embed", np.array([3, row]))


def test_a_lookup_reads_no_more_than_its_rows(tmp_path: Path) -> None:
    """A table of 4 MB, of which three rows take a few hundred bytes."""
    write_llama(tmp_path / "in", **SHAPE | {"vocab_size": 1 << 16}, tokenizer=False)
    bundle = made(tmp_path, "cpu", weights="int8")
    assert bundle.manifest.tensors["embed"].data_bytes == 4 << 20
    assert bundle.weights.size
    tracemalloc.start()
    try:
        bundle.gather("embed", np.array([5, 1 << 15, (1 << 16) - 1]))
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def logits(bundle: Bundle, engine: str, kv: str = "f32") -> list[np.ndarray]:
    """Of a prompt, of single rows after it, and of the whole-model graph."""
    ids = [3, 50, VOCAB - 1, 7, 16, 100]
    runtime = open_runtime(choose_runtime(bundle, engine), bundle, RuntimeOptions(threads=1, kv=kv))
    found, cache = [], runtime.new_cache(16)
    for part in (ids, [15], [267]):
        chain = Rows.chain(part, cache.length)
        found.append(logits_of(runtime, chain, cache, len(part) - 1))
        cache.commit(range(len(part)))
    again = runtime.new_cache(16)
    return [*found, logits_of(runtime, Rows.chain(ids, 0), again)]


@pytest.mark.parametrize("engine", ["ort", "reference", "auto"])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("weights", FORMATS)
def test_logits_are_the_same_bit_for_bit(tmp_path: Path, weights: str, tied: bool, block: int, engine: str) -> None:
    rows, lanes = both(tmp_path, tied=tied, weights=weights, block=block)
    for expected, found in zip(logits(rows, engine), logits(lanes, engine), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_so_are_those_of_mixed_formats(pair: tuple[Bundle, Bundle], kv: str) -> None:
    for expected, found in zip(*(logits(bundle, "ort", kv) for bundle in pair), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_graph_looks_tokens_up_alike(pair: tuple[Bundle, Bundle]) -> None:
    ids = np.arange(VOCAB)[None]
    rows, lanes = (session_of(str(b.file("embed.onnx"))).run(None, {"input_ids": ids})[0] for b in pair)
    np.testing.assert_array_equal(lanes, rows)
    np.testing.assert_array_equal(lanes[0], pair[1].rows("embed"))


def test_matrices_are_unpacked_once_and_not_in_every_call(pair: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    """ONNX Runtime folds the nodes that unpack: what it runs are the nodes of the bundle in rows."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    kinds = []
    for at, bundle in enumerate(pair):
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{at}.onnx")
        ort.InferenceSession(str(bundle.file("stack.f32.onnx")), options)
        kinds.append([node.op_type for node in onnx.load(tmp_path / f"{at}.onnx", load_external_data=False).graph.node])
    assert kinds[0] == kinds[1]
    assert "MatMulNBits" in kinds[1]


# ---- what is refused ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoilt(pair: tuple[Bundle, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(pair[1].path, tmp_path_factory.mktemp("spoilt") / "bundle"))


def change(bundle: Bundle, folder: Path, tensor: str, **values: Any) -> None:
    manifest = json.loads((bundle.path / MANIFEST).read_bytes())
    manifest["tensors"][tensor] |= values
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("tensor", "values", "words"),
    [
        ("embed", {"layout": "lanes8"}, "'lanes8' is not one of 'rows', 'interleave16'"),
        ("embed", {"layout": None}, "layout: None is not one of"),
        ("embed", {"layout": ["rows"]}, "is not one of"),
        ("embed", {"format": "f16"}, "tensor embed: f16 in the layout interleave16"),
        ("final_norm", {"layout": "interleave16"}, "tensor final_norm: f32 in the layout interleave16"),
        (
            "final_norm",
            {"layout": "interleave16", "format": "int4", "block": 32},
            "tensor final_norm: block 32 of shape",
        ),
        ("head", {"data": 1}, "head lies outside weights.bin or is not aligned"),
        ("head", {"scales": -64}, r"head \(scales\) lies outside"),
        ("head", {"block": 24}, "tensor head: block 24"),
    ],
)
def test_a_bad_tensor(
    pair: tuple[Bundle, Bundle], spoilt: Path, tensor: str, values: dict[str, Any], words: str
) -> None:
    change(pair[1], spoilt, tensor, **values)
    with pytest.raises(BundleCorrupt, match=words):
        Bundle.open(spoilt)


def test_the_rows_that_fill_up_a_group_must_lie_in_the_file(pair: tuple[Bundle, Bundle], spoilt: Path) -> None:
    """At the end of the file, where the matrix would fit in rows."""
    offset = pair[1].manifest.files["weights.bin"].size - pair[0].manifest.tensors["head"].data_bytes
    change(pair[1], spoilt, "head", data=offset // 64 * 64, layout="rows")
    Bundle.open(spoilt)
    change(pair[1], spoilt, "head", data=offset // 64 * 64)
    with pytest.raises(BundleCorrupt, match=r"head lies outside weights.bin"):
        Bundle.open(spoilt)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_of_any_tensor(pair: tuple[Bundle, Bundle], spoilt: Path, data: st.DataObject) -> None:
    """Refused, or it opens and every weight can be read."""
    name = data.draw(st.sampled_from(sorted(pair[1].manifest.tensors)))
    size = pair[1].manifest.files["weights.bin"].size
    offsets = st.integers(-2, size // 64 + 2).map(lambda at: 64 * at) | st.integers(-9, size + 9)
    values = {
        "format": st.sampled_from(["int4", "int8", "f16", "f32"]),
        "layout": st.sampled_from(["rows", "interleave16", "lanes", ""]),
        "block": st.sampled_from([0, 4, 8, 16, 32, 64, 128, 256, 512]),
        "data": offsets,
        "scales": offsets,
    }
    keys = data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3, unique=True))
    change(pair[1], spoilt, name, **{key: data.draw(values[key]) for key in keys})
    try:
        bundle = Bundle.open(spoilt)
    except EdgedecError:
        return
    with np.errstate(all="ignore"):  # bytes that were no scales may be infinite
        assert bundle.rows(name).shape == bundle.spec.tensors()[name]
        if len(bundle.spec.tensors()[name]) == 2:
            assert len(bundle.gather(name, np.array([0, 5]))) == 2
