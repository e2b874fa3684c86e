"""GGUF files: every type against the package gguf, and damaged or hostile files refused by name with little memory."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ggufs import add_tensor, add_value, finish, gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import alphabet

from edgedec.errors import BadTensor, CheckpointError, EdgedecError, UnknownArchitecture
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.gguf.checkpoint import GgufCheckpoint
from edgedec.export.gguf.dequantize import dequantize
from edgedec.export.gguf.file import GgufFile
from edgedec.export.gguf.tensor import GgufTensor, paired
from edgedec.export.gguf.types import OTHERS, READABLE
from edgedec.export.gguf.write import interleaved, nibbles
from edgedec.export.opening import open_source

H, VOCAB = 32, 300
LLAMA: dict[str, Any] = {
    "general.name": "tiny",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": H,
    "llama.feed_forward_length": H,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*alphabet(), "ab", *(f"<{i}>" for i in range(257, VOCAB))],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 299,
}
SHAPES = {
    "token_embd.weight": (VOCAB, H),
    "blk.0.attn_norm.weight": (H,),
    "blk.0.attn_q.weight": (H, H),
    "blk.0.attn_k.weight": (H // 2, H),
    "blk.0.attn_v.weight": (H // 2, H),
    "blk.0.attn_output.weight": (H, H),
    "blk.0.ffn_norm.weight": (H,),
    "blk.0.ffn_gate.weight": (H, H),
    "blk.0.ffn_up.weight": (H, H),
    "blk.0.ffn_down.weight": (H, H),
    "output_norm.weight": (H,),
}


def tensors(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) * 0.2 for name, shape in SHAPES.items()}


def write(path: Path, kind: str = "Q8_0", metadata: dict[str, Any] = LLAMA, **changed: Any) -> Path:
    """A tiny Llama; a tensor that is None is left out."""
    writer = gguf.GGUFWriter(path, changed.pop("arch", "llama"))
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, values in (tensors() | changed).items():
        if values is not None:
            add_tensor(writer, name, values, kind)
    finish(writer)
    return path


def everything(path: Path, folder: Path) -> None:
    """Open, check and read all of a file, as an export does before it writes."""
    source = open_source(path)
    spec = source.spec()
    parts = source.weights(spec)
    for part in parts.values():
        source.read(part, 0, source.shape(part)[0])
    source.copy_text(folder)


# Types


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5), blocks=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_any_bytes_mean_what_the_package_gguf_says(kind: Any, seed: int, n: int, blocks: int) -> None:
    """Not a number and infinity included."""
    number = gguf.GGMLQuantizationType[kind.name]
    assert (number.value, gguf.GGML_QUANT_SIZES[number]) == (kind.number, (kind.block, kind.size))
    raw = np.random.default_rng(seed).integers(0, 256, (n, blocks * kind.size), np.uint8)
    with np.errstate(all="ignore"):
        floats = {"F32": np.float32, "F16": np.float16}
        expected = gguf.quants.dequantize(raw.view(floats[kind.name]) if kind.name in floats else raw, number)
        assert np.array_equal(dequantize(kind, raw), expected.astype(np.float32), equal_nan=True)


def test_types_are_numbered_as_ggml_numbers_them() -> None:
    known = {number.value: number.name for number in gguf.GGMLQuantizationType}
    ours = {kind.number: kind.name for kind in READABLE} | OTHERS
    assert {number: ours.get(number) for number in known} == known


def test_nibbles_and_paired_undo_each_other() -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (5, 3, 16), np.uint8)
    assert np.array_equal(paired(nibbles(blocks)), blocks)


@given(start=st.integers(0, 47), n=st.integers(0, 48))
@settings(max_examples=40, deadline=None)
def test_rows_of_heads_come_in_order(start: int, n: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """32 rows are two heads whose channels lie in pairs, the others lie as they are."""
    rows = np.arange(48 * 4, dtype=np.float32).reshape(48, 4)
    path = tmp_path_factory.getbasetemp() / "rows.bin"
    stored = np.concatenate([rows[:32][interleaved(2, 16)], rows[32:]])
    stored.tofile(path)
    tensor = GgufTensor(path, "F32", (48, 4), 0, stored.nbytes, turned=32, head_dim=16)
    n = min(n, 48 - start)
    assert np.array_equal(tensor.values("t", start, (n, 4)), rows[start : start + n])
    vector = GgufTensor(path, "F32", (192,), 0, stored.nbytes)
    assert np.array_equal(vector.values("t", start, (n,)), stored.ravel()[start : start + n])


# Whole files


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_tensor_is_found(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", kind)
    found = GgufFile.open(path)
    assert {name: t.shape for name, t in found.tensors.items()} == SHAPES
    for theirs in gguf.GGUFReader(path).tensors:
        ours = found.tensors[theirs.name]
        expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        assert np.array_equal(ours.values(theirs.name, 0, ours.shape), expected)
    assert found.metadata["llama.context_length"] == 64
    assert found.metadata["tokenizer.ggml.tokens"] == LLAMA["tokenizer.ggml.tokens"]


def test_an_unquantized_file_gets_the_usual_format(tmp_path: Path) -> None:
    for kind, fmt in (("F16", "int4"), ("Q5_1", "int8"), ("Q4_1", "int4")):
        options = ExportOptions(check=False, runtimes=("native",))
        bundle = export(str(write(tmp_path / f"{kind}.gguf", kind)), tmp_path / kind, options)
        assert bundle.manifest.quantization["body"] == fmt


def test_version_2_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    path.write_bytes(raw)
    everything(path, tmp_path)


# Split files


def split(folder: Path, counts: tuple[int, ...] = (4, 3, 4), **facts: Any) -> list[Path]:
    """A tiny Llama in three files."""
    items, paths, at = list(tensors().items()), [], 0
    for i, n in enumerate(counts):
        path = folder / f"m-{i + 1:05}-of-{len(counts):05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in (LLAMA if i == 0 else {}).items():
            add_value(writer, key, value)
        writer.add_uint16("split.no", facts.get(f"no{i}", i))
        writer.add_uint16("split.count", len(counts))
        writer.add_int32("split.tensors.count", facts.get("total", sum(counts)))
        for name, values in items[at : at + n]:
            add_tensor(writer, name, values, "Q8_0")
        at += n
        finish(writer)
        paths.append(path)
    return paths


@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_split_model_is_opened_by_any_of_its_parts(named: int, tmp_path: Path) -> None:
    paths = split(tmp_path)
    found, whole = GgufFile.open(paths[named]), GgufFile.open(write(tmp_path / "whole.gguf"))
    assert found.metadata["llama.context_length"] == 64
    assert {n: t.shape for n, t in found.tensors.items()} == SHAPES
    assert len({t.file for t in found.tensors.values()}) == 3
    for name, tensor in found.tensors.items():
        assert np.array_equal(tensor.values(name, 0, tensor.shape), whole.tensors[name].values(name, 0, tensor.shape))
    everything(paths[named], tmp_path)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for i, facts in enumerate(({"no1": 2}, {"no0": 1}, {"total": 12})):
        folder = tmp_path / str(i)
        folder.mkdir()
        with pytest.raises(CheckpointError, match=r"says that it is part|parts hold 11 tensors, not 12"):
            GgufFile.open(split(folder, **facts)[0])
    paths = split(tmp_path)
    with pytest.raises(CheckpointError, match=r"its name must be NAME-00001-of-00003.gguf"):
        GgufFile.open(paths[0].rename(tmp_path / "other.gguf"))
    split(tmp_path)
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf: is missing"):
        GgufFile.open(paths[0])
    paths[1].symlink_to(paths[1].name)  # to itself
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf: is missing"):
        GgufFile.open(paths[0])
    paths[1].unlink()
    paths[1].symlink_to(paths[0].name)
    with pytest.raises(CheckpointError, match="says that it is part 0 of 3, not 1"):
        GgufFile.open(paths[0])


# Files that are refused


def head(tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def string(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


def entry(name: bytes, sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 1 << 62
DAMAGED: list[tuple[bytes, str]] = [
    (b"", "is not a GGUF file, or cut short"),
    (b"GGUF", "is not a GGUF file"),
    (head(magic=b"ggml"), "is not a GGUF file"),
    (head(version=1), "version 1 is not supported; known: 2 and 3"),
    (head(version=3 << 24), "of a big-endian machine"),
    (head(tensors=HUGE), f"says that it has {HUGE} tensors"),
    (head(keys=HUGE), "metadata keys: damaged"),
    (head(keys=1) + string(b"k", HUGE) + bytes(64), "longer than the 65536"),
    (head(keys=1) + string(b"\xff\xfe") + bytes(64), "a metadata key is not UTF-8"),
    (head(keys=1) + string(b"k") + struct.pack("<I", 99) + bytes(64), "of type 99, which is not known"),
    (head(keys=1) + string(b"k") + struct.pack("<I", 8) + string(b"", HUGE) + bytes(9), "damaged, or longer"),
    (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(9), "strings in metadata 'k': damaged"),
    (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 6, 1 << 23) + bytes(9), "numbers in metadata 'k': damaged"),
    (head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 6, 9) + bytes(9), "are missing at byte"),
    (head(keys=1) + string(b"k") + struct.pack("<II", 9, 9) + bytes(64), "an array of arrays"),
    (head(keys=2) + (string(b"k") + struct.pack("<IB", 7, 1)) * 2 + bytes(9), "'k' occurs twice"),
    (head(keys=1) + string(b"general.alignment") + struct.pack("<II", 4, 3) + bytes(9), "3 is not a power of two"),
    (head(tensors=1) + string(b"t", HUGE) + bytes(64), "a tensor's name of"),
    (head(tensors=1) + entry(b"t", ()) + bytes(64), "t: in .* has 0 axes"),
    (head(tensors=1) + entry(b"t", (1,) * 5) + bytes(64), "has 5 axes"),
    (head(tensors=1) + entry(b"t", (0, 2)) + bytes(64), "sizes .* are out of range"),
    (head(tensors=1) + entry(b"t", (1 << 40, 1 << 40)) + bytes(64), "are out of range"),
    (head(tensors=1) + entry(b"t", (32,), kind=17) + bytes(64), "type IQ2_XS is not supported; known: F32"),
    (head(tensors=1) + entry(b"t", (32,), kind=999) + bytes(64), "type 999 is not supported"),
    (head(tensors=1) + entry(b"t", (33,), kind=2) + bytes(640), "rows of 33 are not whole blocks of 32"),
    (head(tensors=1) + entry(b"t", (32,), offset=1) + bytes(640), "do not fit a file of"),
    (head(tensors=1) + entry(b"t", (32,), offset=HUGE) + bytes(640), "do not fit a file of"),
    (head(tensors=1) + entry(b"t", (1 << 30,)) + bytes(640), "cut short"),
    (head(tensors=2) + entry(b"t", (4,)) * 2 + bytes(640), "names a tensor twice"),
    (head(tensors=2) + entry(b"t", (16,)) + entry(b"u", (16,), 0, 32) + bytes(640), "overlaps the tensor before it"),
]


@pytest.mark.parametrize(("content", "why"), DAMAGED)
def test_damaged_files_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=why) as caught:
        open_source(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert peak < 1 << 20


def test_a_small_file_cannot_ask_for_much(tmp_path: Path) -> None:
    """A sparse file of terabytes, and counts that fit it."""
    path = tmp_path / "m.gguf"
    content = head(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 40)
    path.write_bytes(content)
    os.truncate(path, 1 << 42)
    with pytest.raises(CheckpointError, match="strings in metadata 'k': damaged, or more than there can be"):
        open_source(path)


UNSUITABLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"arch": "rwkv6"}, UnknownArchitecture, r"architecture 'rwkv6' \(a recurrent .*\) is not one of llama, qwen2"),
    ({"llama.block_count": None}, CheckpointError, "llama.block_count is missing"),
    ({"llama.block_count": 2}, BadTensor, "blk.1.attn_q.weight: missing from"),
    ({"llama.block_count": 0}, CheckpointError, "must be a whole number from 1 to 11"),
    ({"llama.embedding_length": 64}, CheckpointError, "16 rows, not whole heads of 32"),
    ({"llama.feed_forward_length": 64}, BadTensor, "has shape"),
    ({"llama.embedding_length": "x"}, CheckpointError, "must be a whole number"),
    ({"llama.attention.head_count": 3}, CheckpointError, "whole heads of 10"),
    ({"llama.attention.value_length": 8}, CheckpointError, "is not 16, the length of keys"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, CheckpointError, "must be a number"),
    ({"llama.rope.scaling.type": "odd"}, CheckpointError, "'odd' is not supported; known: none, linear"),
    ({"llama.rope.dimension_count": 8}, CheckpointError, r"m.gguf.*partial_rotary_factor"),
    ({"token_embd.weight": None}, CheckpointError, "token_embd.weight is missing"),
    ({"output_norm.weight": None}, BadTensor, "output_norm.weight: missing from"),
    ({"more.weight": np.zeros((3, 32), np.float32)}, BadTensor, "more.weight: .* is not part of a llama model"),
    ({"rope_freqs.weight": np.zeros(8, np.float32)}, CheckpointError, "must be a list of positive numbers"),
    ({"blk.0.ffn_norm.weight": np.full(32, np.nan, np.float32)}, BadTensor, "not finite"),
]


@pytest.mark.parametrize(("changed", "kind", "why"), UNSUITABLE)
def test_models_that_cannot_be_are_refused(changed: dict[str, Any], kind: type, why: str, tmp_path: Path) -> None:
    changed = dict(changed)
    facts = {key: changed.pop(key) for key in list(changed) if key.startswith("llama.")}
    metadata = {key: value for key, value in (LLAMA | facts).items() if value is not None}
    path = write(tmp_path / "m.gguf", "F32", metadata, **changed)
    with pytest.raises(kind, match=why) as caught:
        everything(path, tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_is_left_of_an_export_that_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "F32", **{"blk.0.ffn_down.weight": np.full((H, H), np.inf, np.float32)})
    with pytest.raises(BadTensor, match="not finite"):
        export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


def test_folders_of_gguf_files_are_pointed_at(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"holds GGUF files and no config.json; name the file: .*m.gguf"):
        open_source(tmp_path)
    assert isinstance(open_source(path), GgufCheckpoint)
    with pytest.raises(CheckpointError, match="No such file"):
        open_source(tmp_path / "n.gguf")


# Fuzzing


def mutated(raw: bytes, rng: random.Random, where: int) -> bytes:
    """Some of: bytes changed, numbers made large, pieces cut out or doubled, the end cut off."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(where, len(data)) or 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 255, 1 << 31, 1 << 40, (1 << 64) - 1]))
            case 2:
                data[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 8, 9, 30, 99, (1 << 32) - 1]))
            case 3:
                del data[at : at + rng.randint(1, 40)]
            case 4:
                data[at:at] = data[at : at + rng.randint(1, 40)]
            case _:
                del data[at + rng.randrange(len(data)) :]
    return bytes(data)


HOSTILE = [key for key, value in LLAMA.items() if isinstance(value, int)]


@pytest.mark.parametrize("key", [*HOSTILE, "llama.attention.key_length", "llama.expert_count", "general.alignment"])
@pytest.mark.parametrize("value", [0, 3, 1 << 20, 1 << 24, (1 << 32) - 1])
def test_no_number_costs_memory(key: str, value: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", metadata=LLAMA | {"llama.expert_used_count": 1} | {key: value})
    assert "\n" not in tried(path, tmp_path)


def tried(path: Path, folder: Path) -> str:
    """What is said of a file, the empty string if it is a good one; little memory is used to find out."""
    said = ""
    tracemalloc.start()
    try:
        everything(path, folder)
    except EdgedecError as error:
        said = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
    return said


def head_size(path: Path) -> int:
    return min(t.offset for t in GgufFile.open(path).tensors.values())


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=int(os.environ.get("EDGEDEC_FUZZ", "300")), deadline=None)
def test_damage_anywhere_is_an_error_with_a_name(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    whole = folder / "whole.gguf"
    if not whole.exists():
        write(whole)
    path, rng = folder / "m.gguf", random.Random(seed)
    path.write_bytes(mutated(whole.read_bytes(), rng, head_size(whole)))
    said = tried(path, folder)
    assert "\n" not in said
    assert len(said) < 2000
