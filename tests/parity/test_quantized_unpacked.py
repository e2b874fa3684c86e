"""GPTQ and AWQ as packages unpack them that nobody here wrote; and how near what is rounded anew stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="quantized models are built with torch")
import quantized_models as q
import readings as r
import torch
from safetensors.torch import load_file, save_file

from edgedec.export.checkpoint import Checkpoint
from edgedec.runtime import RuntimeOptions, open_runtime

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

KINDS = ("Llama", "Qwen3", "Gemma3", "Phi3", "Mixtral")
PARTS = (".qweight", ".qzeros", ".scales", ".g_idx", ".bias")
Tensors = dict[str, Any]
# The tensors of a module, by the ends of their names, and the settings -> its floats [out, in].
Unpack = Callable[[Tensors, dict[str, Any]], Any]


def by_genai(parts: Tensors, settings: dict[str, Any]) -> Any:
    """GPTQ by the loader of onnxruntime-genai's model builder: integers and zero points, by input."""
    loaders = pytest.importorskip("onnxruntime_genai.models.loaders.gptq", reason="compared with onnxruntime-genai")
    from onnxruntime_genai.models.loaders.base import QuantizedTensorModule

    module, loader = QuantizedTensorModule(), loaders.GPTQModel.__new__(loaders.GPTQModel)
    for name in ("qweight", "qzeros", "scales", "g_idx"):
        setattr(module, name, parts[f".{name}"])
    module.bits, module.group_size = settings["bits"], settings["group_size"]
    loader.set_quantized_tensor_properties(module)
    if settings.get("checkpoint_format") != "gptq_v2":
        loader.handle_qzeros(module)
    loader.unpack_qzeros(module)
    loader.unpack_qweight(module)
    groups = module.g_idx.long()
    return ((module.qweight - module.qzeros[groups]).float() * module.scales.float()[groups]).T


def by_compressed_tensors(parts: Tensors, settings: dict[str, Any]) -> Any:
    """AWQ by compressed-tensors: its converter of AutoAWQ's layout, then its own unpacking of what that wrote."""
    found = pytest.importorskip(
        "compressed_tensors.entrypoints.convert.converters.autoawq", reason="compared with compressed-tensors"
    )
    from compressed_tensors.compressors import BaseCompressor

    converter = found.AutoAWQConverter.from_autoawq_config(settings)
    floats = {f"m{name}": part.float() if name == ".scales" else part for name, part in parts.items()}
    done = {name.removeprefix("m."): part for name, part in converter.process(floats).items()}
    scheme = converter._build_quant_config().config_groups["config_group_0"]
    return BaseCompressor.load_from_registry("pack-quantized").decompress(done, scheme)["weight"].float()


CASES: dict[str, tuple[Any, dict[str, Any], Unpack]] = {
    "gptq": (q.gptq(), q.gptq_settings(), by_genai),
    "gptq, symmetric, groups of 128": (q.gptq(4, 128, True), q.gptq_settings(4, 128, symmetric=True), by_genai),
    "gptq v2, 8 bits": (q.gptq(8, 32, v2=True), q.gptq_settings(8, 32, v2=True), by_genai),
    "gptq, 2 bits": (q.gptq(2, 32), q.gptq_settings(2, 32), by_genai),
    "gptq, desc_act": (q.gptq(4, 32, act_order=True), q.gptq_settings(4, 32, act_order=True), by_genai),
    "awq": (q.awq(), q.awq_settings(), by_compressed_tensors),
    "awq, groups of 32": (q.awq(32), q.awq_settings(32), by_compressed_tensors),
}


def unpacked(folder: Path, settings: dict[str, Any], unpack: Unpack) -> Tensors:
    """Every tensor of a checkpoint as floats, its quantized modules by another program."""
    stored = load_file(folder / "model.safetensors")
    modules = [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]
    packed = {module: {end: stored.pop(module + end) for end in PARTS if module + end in stored} for module in modules}
    return stored | {f"{module}.weight": unpack(parts, settings) for module, parts in packed.items()}


def model_of(saved: q.Saved, floats: Tensors, folder: Path) -> Any:
    """transformers' model of those floats."""
    shutil.copytree(saved.folder, folder)
    save_file({name: value.contiguous() for name, value in floats.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return type(saved.model).from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", CASES)
def test_values_as_another_program_unpacks_them(name: str, tmp_path: Path) -> None:
    store, settings, unpack = CASES[name]
    saved = q.save(tmp_path / "checkpoint", store, settings)
    theirs = unpacked(saved.folder, settings, unpack)
    checkpoint = Checkpoint.open(saved.folder)
    matrices = {name for name in checkpoint.names if not hasattr(checkpoint.tensors[name], "offset")}
    assert len(matrices) == 14
    for matrix in matrices:
        found = checkpoint.tensors[matrix].values(matrix, 0, tuple(theirs[matrix].shape))
        np.testing.assert_array_equal(found, theirs[matrix].numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_the_same_tokens_on_what_another_program_unpacks(kind: str, name: str, tmp_path: Path) -> None:
    """64 greedy ones: transformers on its floats, edgedec on the integers that it kept."""
    store, settings, unpack = CASES[name]
    saved = q.save(tmp_path / "checkpoint", store, settings, kind)
    saved.model = model_of(saved, unpacked(saved.folder, settings, unpack), tmp_path / "floats")
    options = ExportOptions(head="f32", embed="f32", check=False, runtimes=("native",))
    bundle = export(str(saved.folder), tmp_path / "bundle", options)
    assert sum(bundle.manifest.source["kept"].values()) == 8
    wanted = saved.greedy()
    assert len(set(wanted)) > 8
    reference, native = (open_runtime(name, bundle, RuntimeOptions(threads=1)) for name in ("reference", "native"))
    assert r.greedy(reference, q.PROMPT, 64) == wanted
    assert r.kl(logits_of(saved), r.all_logits(native, q.PROMPT)) < 0.02  # which rounds activations too


# What becomes int8, and nats a token of it and of int4 beside the format's own floats; measured: docs/export.md.
ROUNDED: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp8, blocks": (q.fp8(), q.fp8_settings()),
    "fp8, one scale": (q.fp8(None, ".weight_scale"), q.fp8_settings(None)),
    "gptq, desc_act": (q.gptq(4, 32, act_order=True), q.gptq_settings(4, 32, act_order=True)),
}
BITSANDBYTES = ("nf4", "fp4")


@pytest.mark.parametrize("name", [*ROUNDED, *BITSANDBYTES])
def test_what_is_rounded_anew_stays_near(name: str, tmp_path: Path) -> None:
    store, settings = ROUNDED[name] if name in ROUNDED else (q.four_bits(name), q.four_bits_settings(name))
    saved, far = q.save(tmp_path / "checkpoint", store, settings), {}
    for weights in ("int8", "int4"):
        asked = None if weights == "int8" else weights  # int8 is what becomes of it
        options = ExportOptions(weights=asked, check=False, runtimes=("native",))
        bundle = export(str(saved.folder), tmp_path / weights, options)
        assert bundle.manifest.quantization["body"] == weights
        assert bundle.manifest.source["kept"] == {}
        native = open_runtime("native", bundle, RuntimeOptions(threads=1))
        far[weights] = r.kl(logits_of(saved), r.all_logits(native, q.PROMPT))
    print(f"{name}: KL {far['int8']:.4f} in int8, {far['int4']:.4f} in int4")
    assert far["int8"] < 0.02
    assert far["int8"] < far["int4"] < 0.5


def logits_of(saved: q.Saved) -> Any:
    """transformers' [n, vocab_size]"""
    with torch.no_grad():
        return saved.model(torch.tensor([q.PROMPT])).logits[0].numpy()
