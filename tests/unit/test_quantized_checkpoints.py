"""Quantized checkpoints that are damaged, odd or unknown: refused by name, or read as what they say."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="quantized models are built with torch")
import hqq_models as h
import nvfp4_models as n
import quantized_models as q

from edgedec.errors import BadTensor, CheckpointError, EdgedecError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.quantized._float8 import float8_values
from edgedec.export.quantized._reading import unpacked
from edgedec.export.safetensors import ITEM_BYTES

# name -> dtype, shape, bytes.
Raw = dict[str, tuple[str, list[int], bytes]]
MODELS: dict[str, Callable[[Path], q.Saved]] = {
    "gptq": lambda folder: q.save(folder, q.gptq(), q.gptq_settings()),
    "awq": lambda folder: q.save(folder, q.awq(), q.awq_settings()),
    "fp8": lambda folder: q.save(folder, q.fp8(), q.fp8_settings()),
    "modelopt": lambda folder: q.save(folder, n.modelopt(), n.modelopt_settings()),
    "nvfp4": lambda folder: q.save(folder, n.of_compressor(), n.compressor_settings()),
    "hqq": lambda folder: q.save(folder, h.hqq(), h.settings()),
    "hqq, axis 0": lambda folder: q.save(folder, h.hqq(3, 64, 0), h.settings(3, 64, 0)),
    "packed": lambda folder: q.save(folder, q.compressed(), q.compressed_settings()),
    "int8": lambda folder: q.save(
        folder, q.compressed(8, 32, False, "int-quantized"), q.compressed_settings(8, 32, False, "int-quantized")
    ),
    "nf4": lambda folder: q.save(folder, q.four_bits(), q.four_bits_settings()),
}
for package, names in {"compressed_tensors": ("packed", "int8"), "bitsandbytes": ("nf4",)}.items():
    if find_spec(package) is None:  # which writes them
        for name in names:
            MODELS.pop(name)


class Parts:
    """A checkpoint in pieces, to be changed and written again."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        raw = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header, base = json.loads(raw[8 : 8 + length]), 8 + length
        header.pop("__metadata__", None)
        self.raw: Raw = {
            name: (one["dtype"], one["shape"], raw[base + one["data_offsets"][0] : base + one["data_offsets"][1]])
            for name, one in header.items()
        }

    def write(self, folder: Path, raw: Raw, quantization: Any) -> Path:
        folder.mkdir(exist_ok=True)
        header, at = dict[str, Any](), 0
        for name, (dtype, shape, data) in raw.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        data = b"".join(data for _, _, data in raw.values())
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (folder / "config.json").write_text(json.dumps(self.config | {"quantization_config": quantization}))
        return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Parts]:
    made: dict[str, Parts] = {}

    def of(name: str) -> Parts:
        if name not in made:
            made[name] = Parts(MODELS[name](tmp_path_factory.mktemp(name)).folder)
        return made[name]

    return of


def read_all(folder: Path) -> int:
    """Every tensor that an export reads, as floats and as stored; how many could be kept."""
    checkpoint = Checkpoint.open(folder)
    spec, kept = checkpoint.spec(), 0
    for name, source in checkpoint.weights(spec).items():
        checkpoint.read(source, 0, checkpoint.shape(source)[0])
        fmt = checkpoint.suggested([source]) or "int8"
        if name in spec.matrices and (stored := checkpoint.kept(source, fmt, 32, own=True)):
            stored.rows(0, checkpoint.shape(source)[0])
            kept += 1
    return kept


def test_what_is_fuzzed_is_good(parts: Callable[[str], Parts], tmp_path: Path) -> None:
    kept = {"gptq": 8, "awq": 8, "fp8": 0, "packed": 8, "int8": 8, "nf4": 0}
    kept |= {"modelopt": 8, "nvfp4": 8, "hqq": 8, "hqq, axis 0": 0}
    for name in MODELS:
        made, count = parts(name), kept[name]
        assert read_all(made.write(tmp_path / name, made.raw, made.config["quantization_config"])) == count


def reshaped(draw: Callable[..., Any], dtype: str, shape: list[int], data: bytes) -> tuple[str, list[int], bytes]:
    """The same bytes under another dtype and shape, or fewer of them."""
    other = draw(st.sampled_from(sorted(ITEM_BYTES)))
    count = len(data) // ITEM_BYTES[other]
    data = data[: count * ITEM_BYTES[other]]
    rows = draw(st.sampled_from([1, 2, 8, *shape]))
    fits = rows and count % rows == 0
    how = draw(st.sampled_from(["flat", "matrix", "transposed", "shorter"]))
    if how == "matrix" and fits:
        return other, [rows, count // rows], data
    if how == "transposed":
        return dtype, shape[::-1], data[: prod(shape) * ITEM_BYTES[dtype]].ljust(prod(shape) * ITEM_BYTES[dtype], b"\1")
    if how == "shorter" and shape and shape[0] > 1:
        width = prod(shape[1:]) * ITEM_BYTES[dtype]
        data = data.ljust(shape[0] * width, b"\1")
        return dtype, [shape[0] - 1, *shape[1:]], data[: (shape[0] - 1) * width]
    return other, [count], data


ODD = st.sampled_from(
    [None, 0, -1, 3, 4, 8, 2**40, 1.5, True, "", "gptq_v2", "marlin", "gemv", [], [1], [0, 0], [64, 64], {}]
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(MODELS)), data=st.data())
def test_a_damaged_checkpoint_is_refused_by_name(
    parts: Callable[[str], Parts], tmp_path: Path, name: str, data: st.DataObject
) -> None:
    made = parts(name)
    raw, quantization = dict(made.raw), dict(made.config["quantization_config"])
    of_quantized = sorted(n for n in raw if "layers.0" in n and not n.endswith("norm.weight"))
    for _ in range(data.draw(st.integers(1, 2))):
        target = data.draw(st.sampled_from(of_quantized))
        how = data.draw(st.sampled_from(["drop", "rename", "reshape", "bytes", "config"]))
        if target not in raw:
            continue
        dtype, shape, content = raw[target]
        if how == "drop":
            del raw[target]
        elif how == "rename":
            raw[f"{target}.old"] = raw.pop(target)
        elif how == "reshape":
            raw[target] = reshaped(data.draw, dtype, shape, content)
        elif how == "bytes":
            value = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
            raw[target] = (dtype, shape, bytes([value]) * len(content))
        else:
            quantization[data.draw(st.sampled_from([*quantization, "version", "sparsity_config"]))] = data.draw(ODD)
    said = ""
    try:
        read_all(made.write(tmp_path, raw, quantization))
    except (CheckpointError, BadTensor) as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gptq", {"quant_method": "aqlm"}, "quant_method 'aqlm' is not one of awq, bitsandbytes, compressed_tensors"),
    ("gptq", {"quant_method": None}, "quant_method None"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' of GPTQ is not supported"),
    ("gptq", {"quant_method": "awq"}, r"down_proj\.scales: has shape \[4, 128\], expected \[4, 1024\]"),
    ("awq", {"version": "gemv"}, "version 'gemv' of AWQ is not supported, only gemm"),
    ("awq", {"bits": 8}, "AWQ of 8 bits"),
    ("fp8", {"weight_block_size": [64, 64]}, "scales for a weight of"),
    ("fp8", {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
    ("packed", {"format": "mxfp4-pack-quantized"}, "format 'mxfp4-pack-quantized' of compressed-tensors is not one of"),
    ("packed", {"format": "nvfp4-pack-quantized"}, "down_proj: holds no 4-bit floats, and config.json has the format"),
    ("nvfp4", {"format": "pack-quantized"}, "holds 4-bit floats with a global scale, and config.json has the format"),
    ("modelopt", {"quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ' of all modules is not one of NVFP4, W4A16_NVFP4"),
    ("modelopt", {"quant_algo": None}, "quant_algo None of all modules"),
    ("modelopt", {"group_size": 32}, "group_size 32 of all modules; NVFP4 has scales for 16 weights"),
    ("modelopt", {"quantization": []}, r"quantization must be an object, found \[\]"),
    (
        "modelopt",
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"m.q_proj": {"quant_algo": "W4A16_AWQ"}}},
        r"quant_algo 'W4A16_AWQ' of m\.q_proj is not one of",
    ),
    ("hqq", h.settings(8), "down_proj: its nbits is 4, and config.json says 8"),
    ("hqq", h.settings(4, 128), "its group_size is 64, and config.json says 128"),
    ("hqq", h.settings(4, 64, 0), "its axis is 1, and config.json says 0"),
    ("hqq", {"quant_config": [4]}, r"quant_config of .*down_proj must be an object, found \[4\]"),
    ("packed", {"sparsity_config": {"format": "sparse-24"}}, "sparse weights"),
    ("packed", {"transform_config": {"config_groups": {"u": {}}}}, "transforms at run time"),
    ("fp8", {"quant_method": "awq"}, "no awq weights, though the config says that it is quantized"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED, ids=[words[:30] for _, _, words in REFUSED])
def test_what_is_not_supported(
    parts: Callable[[str], Parts], tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    if name not in MODELS:
        pytest.skip("the package that writes such a checkpoint is not installed")
    made = parts(name)
    folder = made.write(tmp_path, made.raw, made.config["quantization_config"] | change)
    with pytest.raises(EdgedecError, match=words) as caught:
        read_all(folder)
    assert "\n" not in str(caught.value)


def test_a_bias_that_is_not_zero_is_refused_where_the_model_has_none(
    parts: Callable[[str], Parts], tmp_path: Path
) -> None:
    made, name = parts("gptq"), "model.layers.0.mlp.up_proj.bias"
    dtype, shape, data = made.raw[name]
    raw = made.raw | {name: (dtype, shape, b"\0\x3c" + data[2:])}
    with pytest.raises(BadTensor, match=f"{name}: .* is not part of a llama model"):
        read_all(made.write(tmp_path, raw, made.config["quantization_config"]))


def test_settings_in_a_file_of_their_own(parts: Callable[[str], Parts], tmp_path: Path) -> None:
    made = parts("gptq")
    folder = made.write(tmp_path, made.raw, None)
    with pytest.raises(BadTensor, match=r"q_proj\.weight: missing"):
        read_all(folder)
    (folder / "quantize_config.json").write_text('{"bits": 4, "group_size": 64, "desc_act": false}')
    assert read_all(folder) == 8


def test_scales_that_float16_does_not_hold_are_rounded_anew(parts: Callable[[str], Parts], tmp_path: Path) -> None:
    if "packed" not in MODELS:
        pytest.skip("compressed-tensors is not installed")
    made, name = parts("packed"), "model.layers.0.mlp.down_proj.weight_scale"
    dtype, shape, data = made.raw[name]
    assert dtype == "BF16"
    tiny = np.full(len(data) // 2, 0x3301, np.uint16).tobytes()  # about 3e-8: a float16 of one bit
    folder = made.write(tmp_path, made.raw | {name: (dtype, shape, tiny)}, made.config["quantization_config"])
    assert read_all(folder) == 7


def test_the_example_of_the_docstring() -> None:
    assert unpacked(np.array([0x76543210], np.uint32), 4).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@given(bits=st.sampled_from([2, 3, 4, 8]), codes=st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_packed_integers_come_back(bits: int, codes: list[int]) -> None:
    wanted = np.array(codes, np.int64)[None] & (1 << bits) - 1
    wanted = np.pad(wanted, ((0, 0), (0, -wanted.shape[1] % 32)))
    found = unpacked(q.words(wanted, bits).numpy().view(np.uint32), bits)
    np.testing.assert_array_equal(found[0], wanted[0])


def test_float8_as_torch_reads_it() -> None:
    import torch

    wanted = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(float8_values(), wanted)
