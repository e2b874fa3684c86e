"""Checkpoints on disk: every way a file can lie, and reads of a few rows."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.safetensors import read_header
from edgedec.models import Part


def pack(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


A = np.arange(6, dtype=np.float32).reshape(3, 2) - 2.5
B = np.array([[1.5, -2.0], [0.25, 1e-3]], np.float16)
C = np.array([0x3F80, 0xC000, 0x0001], np.uint16)  # bfloat16 1, -2 and the smallest denormal
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": entry("F32", [3, 2], 0, 24),
    "b": entry("F16", [2, 2], 24, 32),
    "c": entry("BF16", [3], 32, 38),
}
GOOD = pack(HEADER, A.tobytes() + B.tobytes() + C.tobytes())


def folder(tmp_path: Path, content: bytes = GOOD, name: str = "model.safetensors") -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_bytes(content)
    return tmp_path


def test_rows_of_parts_are_stacked_converted_and_shifted(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder(tmp_path))
    source = (Part("a", rows=(1, 3)), Part("b", add=1.0), Part("a"))
    whole = np.concatenate([A[1:3], B.astype(np.float32) + 1, A])
    assert checkpoint.shape(source) == (7, 2)
    for start in range(8):
        for stop in range(start, 8):
            found = checkpoint.read(source, start, stop)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, whole[start:stop])
    np.testing.assert_array_equal(checkpoint.read((Part("c"),), 1, 3), np.array([-2, 2.0**-133], np.float32))
    assert checkpoint.names == ("a", "b", "c")


def test_rows_are_scaled_and_exponentiated(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder(tmp_path))
    a = (Part("a", exp=True, times=-2.0, add=0.5), Part("a", times=0.25))
    expected = np.concatenate([np.float32(-2) * np.exp(A) + np.float32(0.5), A * np.float32(0.25)])
    np.testing.assert_allclose(checkpoint.read(a, 0, 6), expected, rtol=1e-6)
    np.testing.assert_array_equal(checkpoint.read(a, 2, 4), checkpoint.read(a, 0, 6)[2:4])


CUBE = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
CUBE_FILE = pack({"e": entry("F32", [3, 4, 2], 0, 96)}, CUBE.tobytes())


def test_a_flat_part_is_a_matrix_of_the_last_axis(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder(tmp_path, CUBE_FILE))
    flat = (Part("e", flat=True, rows=(2, 12)), Part("e", flat=True))
    assert checkpoint.shape(flat) == (22, 2)
    whole = np.concatenate([CUBE.reshape(12, 2)[2:], CUBE.reshape(12, 2)])
    for start in range(0, 22, 3):
        np.testing.assert_array_equal(checkpoint.read(flat, start, 22), whole[start:])
    assert checkpoint.shape((Part("e"),)) == (3, 4, 2)
    np.testing.assert_array_equal(checkpoint.read((Part("e"),), 1, 3), CUBE[1:])
    with pytest.raises(BadTensor, match="e: has 12 rows, not 0 to 13"):
        checkpoint.shape((Part("e", flat=True, rows=(0, 13)),))


def test_an_exponential_that_overflows_is_refused_by_name(tmp_path: Path) -> None:
    data = np.array([1, 200], np.float32).tobytes()
    checkpoint = Checkpoint.open(folder(tmp_path, pack({"w": entry("F32", [2], 0, 8)}, data)))
    with pytest.raises(BadTensor, match="w: holds values that are not finite"):
        checkpoint.read((Part("w", exp=True),), 0, 2)


@pytest.mark.parametrize(
    ("source", "start", "stop", "message"),
    [
        ((Part("a"),), 0, 4, "a: rows 0 to 4 of 3 do not exist"),
        ((Part("a"),), -1, 2, "a: rows -1 to 2 of 3"),
        ((Part("a", rows=(2, 4)),), 0, 1, "a: has 3 rows, not 2 to 4"),
        ((Part("a"), Part("c")), 0, 1, "c: shape (3,) does not stack under (3, 2)"),
        ((Part("z"),), 0, 1, "z: missing from"),
    ],
)
def test_reads_that_cannot_be(tmp_path: Path, source: Any, start: int, stop: int, message: str) -> None:
    with pytest.raises(BadTensor) as caught:
        Checkpoint.open(folder(tmp_path)).read(source, start, stop)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float) -> None:
    data = np.array([1, value], np.float32).tobytes()
    checkpoint = Checkpoint.open(folder(tmp_path, pack({"w": entry("F32", [2], 0, 8)}, data)))
    assert checkpoint.read((Part("w"),), 0, 1) == [1]
    with pytest.raises(BadTensor, match="w: holds values that are not finite"):
        checkpoint.read((Part("w"),), 0, 2)


BAD_FILES = {
    "empty": (b"", "truncated"),
    "header longer than the file": (struct.pack("<Q", 1 << 60) + b"{}", "truncated"),
    "header longer than allowed": (struct.pack("<Q", 2**64 - 1) + b"{}", "truncated"),
    "data cut off": (GOOD[:-1], "bytes long, its header describes"),
    "data left over": (GOOD + b"x", "bytes long, its header describes"),
    "not JSON": (pack(b"{nope}"), "not valid JSON"),
    "not UTF-8": (pack(b'{"\xff": 1}'), "not valid JSON"),
    "too deep": (pack(b"[" * 100_000), "not valid JSON"),
    "not an object": (pack([1]), "expected a JSON object"),
    "a name twice": (pack(b'{"a": 1, "a": 2}'), "a key occurs twice"),
    "entry not an object": (pack({"w": 3}), "expected dtype, shape and data_offsets"),
    "a key too many": (
        pack({"w": {**entry("F32", [0], 0, 0), "x": 1}}),
        "expected dtype, shape and data_offsets",
    ),
    "unknown dtype": (pack({"w": entry("F4", [2], 0, 1)}, b"x"), "dtype 'F4' is not known"),
    "dtype not a string": (pack({"w": entry([], [2], 0, 1)}, b"x"), "is not known"),  # type: ignore[arg-type]
    "negative size": (pack({"w": entry("U8", [-1], 0, 1)}, b"x"), "not a list of sizes"),
    "fractional size": (pack({"w": entry("U8", [1.0], 0, 1)}, b"x"), "not a list of sizes"),  # type: ignore[list-item]
    "true is no size": (pack({"w": entry("U8", [True], 0, 1)}, b"x"), "not a list of sizes"),
    "offsets reversed": (pack({"w": entry("U8", [1], 1, 0)}, b"x"), "takes 1 bytes"),
    "shape and bytes differ": (pack({"w": entry("F32", [2], 0, 4)}, b"1234"), "takes 8 bytes"),
    "sizes that overflow": (pack({"w": entry("U8", [1 << 40, 1 << 40, 0], 0, 0)}), "is out of range"),
    "offset past the end": (pack({"w": entry("U8", [1], 5, 6)}, b"x"), "leaves a hole"),
    "overlap": (pack({"v": entry("U8", [2], 0, 2), "w": entry("U8", [2], 1, 3)}, b"123"), "overlaps"),
    "same bytes twice": (pack({"v": entry("U8", [2], 0, 2), "w": entry("U8", [2], 0, 2)}, b"12"), "overlaps"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_files_that_lie(tmp_path: Path, case: str) -> None:
    content, message = BAD_FILES[case]
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder(tmp_path, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_double_precision_is_refused_when_needed(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder(tmp_path, pack({"w": entry("F64", [1], 0, 8)}, bytes(8))))
    with pytest.raises(BadTensor, match="w: F64 is not supported; save it as one of F32, F16, BF16"):
        checkpoint.read((Part("w"),), 0, 1)


def test_a_file_cut_after_opening_is_noticed(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(folder(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(GOOD[:-4])
    with pytest.raises(BadTensor, match=r"c: .* is shorter than its header says"):
        checkpoint.read((Part("c"),), 0, 3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_fail_by_name_or_read_right(tmp_path: Path, data: st.DataObject) -> None:
    """Flips anywhere and a cut: an error of ours, or tensors that lie within the file."""
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    try:
        checkpoint = Checkpoint.open(folder(tmp_path, bytes(content)))
        for name, stored in checkpoint.tensors.items():
            assert stored.offset + stored.size <= len(content)
            assert checkpoint.read((Part(name),), 0, stored.shape[0]).nbytes <= 8 * len(content)
    except CheckpointError:
        pass  # which one, and its one line, is for the table above


def sharded(tmp_path: Path, weight_map: Any, **shards: bytes) -> Path:
    for name, content in shards.items():
        folder(tmp_path, content, f"{name}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


ONE = pack({"v": entry("F32", [1], 0, 4)}, np.float32(1).tobytes())
TWO = pack({"w": entry("F32", [1], 0, 4)}, np.float32(2).tobytes())


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    place = sharded(tmp_path, {"v": "x.safetensors", "w": "y.safetensors"}, x=ONE, y=TWO)
    found = Checkpoint.open(place).read((Part("w"), Part("v")), 0, 2)
    assert found.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"v": "../x.safetensors"}, "'../x.safetensors' is not a plain file name"),
        ({"v": "/etc/x.safetensors"}, "is not a plain file name"),
        ({"v": "..\\x.safetensors"}, "is not a plain file name"),
        ({"v": "x.bin"}, "is not a plain file name"),
        ({"v": 3}, "weight_map must give a file"),
        (None, "weight_map must give a file"),
        ({"v": "z.safetensors"}, "No such file"),
        ({"v": "x.safetensors", "u": "y.safetensors"}, "u: not in y.safetensors, where the index places it"),
        (
            {"v": "x.safetensors", "w": "x.safetensors", "u": "y.safetensors"},
            "w: in y.safetensors, though the index",
        ),
    ],
)
def test_indexes_that_lie(tmp_path: Path, weight_map: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(sharded(tmp_path, weight_map, x=ONE, y=TWO))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_places_that_hold_no_checkpoint(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config.json: No such file"):
        open_checkpoint(tmp_path)
    config.write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: not valid JSON"):
        open_checkpoint(tmp_path)
    config.write_text("{}")
    for name, advice in (
        (None, "expected a Hugging Face"),
        ("w.bin", "save_pretrained"),
        ("w.gguf", "name the file itself"),
    ):
        if name:
            (tmp_path / name).touch()
        with pytest.raises(CheckpointError, match=advice):
            open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="neither a folder nor a GGUF file nor a Hub id"):
        open_checkpoint(config)
    with pytest.raises(CheckpointError, match="neither a folder nor a GGUF file nor a Hub id"):
        open_checkpoint("../../nothing/here")


def test_headers_are_those_of_the_safetensors_package(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="compares with the safetensors package")
    arrays = {
        "x": np.ones((2, 3), np.float32),
        "y": np.arange(5, dtype=np.int64),
        "z": np.zeros((4,), np.float16),
    }
    safetensors.save_file(arrays, tmp_path / "m.safetensors")
    found = read_header(tmp_path / "m.safetensors")
    assert {name: stored.shape for name, stored in found.items()} == {n: a.shape for n, a in arrays.items()}
