"""Checkpoints that are quantized already: values as the formats' own programs read them, and integers kept."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="quantized models are built with torch")
import hqq_models as h
import nvfp4_models as n
import quantized_models as q
import torch

from edgedec.bundle import Bundle
from edgedec.export.checkpoint import Checkpoint
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

# By name: how a module is stored, and the config; the format and block that keep its integers, None if none does.
Case = tuple[Any, Any, tuple[str, int] | None]
CASES: dict[str, Case] = {
    "gptq": (q.gptq(), q.gptq_settings(), ("int4", 64)),
    "gptq, symmetric, groups of 128": (q.gptq(4, 128, True), q.gptq_settings(4, 128, symmetric=True), ("int4", 128)),
    "gptq v2, 8 bits": (q.gptq(8, 32, v2=True), q.gptq_settings(8, 32, v2=True), ("int8", 32)),
    "gptq, 3 bits": (q.gptq(3, 32), q.gptq_settings(3, 32), ("int4", 32)),
    "gptq, 2 bits": (q.gptq(2, 32), q.gptq_settings(2, 32), ("int4", 32)),
    "gptq, by output": (q.gptq(4, -1), q.gptq_settings(4, -1), ("int4", 128)),
    "gptq, desc_act": (q.gptq(4, 32, act_order=True), q.gptq_settings(4, 32, act_order=True), None),
    "awq": (q.awq(), q.awq_settings(), ("int4", 64)),
    "fp8, blocks": (q.fp8(), q.fp8_settings(), None),
    "fp8, one scale": (q.fp8(None, ".weight_scale"), q.fp8_settings(None), None),
    "modelopt": (n.modelopt(), n.modelopt_settings(), ("int8", 16)),
    "modelopt, exact": (n.modelopt(even=True), n.modelopt_settings(), ("int8", 16)),
    "nvfp4": (n.of_compressor(), n.compressor_settings(), ("int8", 16)),
    "hqq": (h.hqq(), h.settings(), ("int4", 32)),
    "hqq, exact": (h.hqq(even=True), h.settings(), ("int4", 32)),
    "hqq, 8 bits, exact": (h.hqq(8, 128, even=True), h.settings(8, 128), ("int8", 32)),
    "hqq, 3 bits, exact": (h.hqq(3, 32, even=True), h.settings(3, 32), ("int4", 32)),
    "hqq, 2 bits in floats": (h.hqq(2, 64, as_floats=True), h.settings(2), ("int4", 32)),
    "hqq, 1 bit, bfloat16": (h.hqq(1, 32, dtype=torch.bfloat16), h.settings(1, 32), ("int4", 32)),
    "hqq, scales beside zero points": (h.hqq(together=True), h.settings(), ("int4", 32)),
    "hqq, axis 0": (h.hqq(axis=0), h.settings(axis=0), None),
    "hqq, 3 bits, axis 0": (h.hqq(3, axis=0), h.settings(3, axis=0), None),
    "hqq, groups of 16": (h.hqq(group=16), h.settings(group=16), None),
    "LLM.int8": (q.llm_int8(), {"quant_method": "bitsandbytes", "load_in_8bit": True}, ("int8", 128)),
}
# Stored and read back by the packages that define the formats: bits, group (None: by output), symmetric, format.
COMPRESSED: dict[str, tuple[tuple[Any, ...], tuple[str, int] | None]] = {
    "int4, zero points": ((4, 64, False, "pack-quantized"), ("int4", 64)),
    "int4, symmetric": ((4, 32, True, "pack-quantized"), ("int4", 32)),
    "int4, by output": ((4, None, False, "pack-quantized"), ("int4", 128)),
    "int8, zero points, packed": ((8, 128, False, "pack-quantized"), ("int8", 128)),
    "int8, by output": ((8, None, True, "int-quantized"), ("int8", 128)),
    "int8, zero points": ((8, 32, False, "int-quantized"), ("int8", 32)),
    "fp8, by output": ((8, None, True, "float-quantized"), None),
}
ADD_ONE = {4: 0x11111111, 8: 0x01010101}
EXACT = ExportOptions(head="f32", embed="f32", check=False, runtimes=("ort",))


def case(name: str) -> Case:
    """A case of either table, or one of bitsandbytes' 4-bit formats."""
    if name in CASES:
        return CASES[name]
    if name in COMPRESSED:
        how, kept = COMPRESSED[name]
        return q.compressed(*how), q.compressed_settings(*how), kept
    kind, double = name.split()[0], name.endswith("doubly")
    return q.four_bits(kind, double), q.four_bits_settings(kind, double), None


ALL = [*CASES, *COMPRESSED, "nf4", "nf4 doubly", "fp4"]


@pytest.fixture(params=ALL)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[q.Saved, tuple[str, int] | None]:
    store, settings, kept = case(request.param)
    return q.save(tmp_path / "checkpoint", store, settings), kept


def test_values_are_those_of_the_format(saved: tuple[q.Saved, Any], tmp_path: Path) -> None:
    """Bit for bit, whichever rows are read; and kept in the bundle where a format holds the integers."""
    model, kept = saved
    checkpoint = Checkpoint.open(model.folder)
    matrices = {name for name in checkpoint.names if not hasattr(checkpoint.tensors[name], "offset")}
    assert len(matrices) == 14
    for name, meant in model.floats.items():
        if name in matrices:
            n, k = meant.shape
            for start, stop in ((0, n), (3, n - 5), (n - 1, n)):
                found = checkpoint.tensors[name].values(name, start, (stop - start, k))
                np.testing.assert_array_equal(found, meant.numpy()[start:stop])
    bundle = export(str(model.folder), tmp_path / "bundle", EXACT)
    body = [t for name, t in bundle.manifest.tensors.items() if len(t.shape) == 2 and name not in ("embed", "head")]
    assert {(t.format, t.block) for t in body} == {kept or ("int8", 32)}
    assert bundle.manifest.source["kept"] == ({f"{kept[0]} in blocks of {kept[1]}": 8} if kept else {})
    version = 9 if any(t.offsets for t in body) else 5 if any(t.zeros for t in body) else 4
    assert bundle.manifest.version == version
    if kept:
        assert_same_weights(bundle, model, exact=not bundle.manifest.source["rounded_scales"])


def assert_same_weights(bundle: Bundle, model: q.Saved, exact: bool) -> None:
    for b, layer in enumerate(range(0, bundle.spec.n_blocks, 2)):
        of = f"model.layers.{b}"
        qkv = [model.floats[f"{of}.self_attn.{part}_proj.weight"].numpy() for part in "qkv"]
        meant = {f"blocks.{layer}.qkv": np.concatenate(qkv)}
        meant[f"blocks.{layer + 1}.down"] = model.floats[f"{of}.mlp.down_proj.weight"].numpy()
        for name, values in meant.items():
            # An offset is rounded too: it is eight steps of a weight at most, and these are smaller than the weights.
            near = 2**-11 * np.abs(values).max() if bundle.manifest.tensors[name].offsets else 0
            rtol, atol = (0, 0) if exact else (2**-11, near)
            np.testing.assert_allclose(bundle.rows(name), values, rtol, atol)


@pytest.mark.parametrize(
    ("kind", "name", "target"),
    [
        ("Llama", "gptq", "cpu"),
        ("Llama", "int4, zero points", "portable"),
        ("Llama", "int8, zero points", "cpu"),
        ("Qwen3", "awq", "cpu"),
        ("Qwen3", "gptq v2, 8 bits", "portable"),
        ("Mixtral", "awq", "portable"),
        ("Mixtral", "int4, symmetric", "cpu"),
        ("Llama", "modelopt, exact", "cpu"),
        ("Mixtral", "modelopt, exact", "portable"),
        ("Phi3", "modelopt, exact", "cpu"),
        ("Llama", "hqq, exact", "portable"),
        ("Qwen3", "hqq, 8 bits, exact", "cpu"),
        ("Gemma3", "hqq, 3 bits, exact", "cpu"),
        ("Mixtral", "hqq, exact", "cpu"),
        ("Gemma3", "gptq v2, 8 bits", "cpu"),
        ("Gemma3", "awq", "portable"),
        ("Phi3", "gptq", "cpu"),
        ("Phi3", "int8, zero points", "portable"),
    ],
)
def test_the_same_tokens_as_transformers(kind: str, name: str, target: str, tmp_path: Path) -> None:
    """On the kept integers in float arithmetic, 64 greedy ones; the engines round activations too, and stay close."""
    store, settings, kept = case(name)
    model = q.save(tmp_path / "checkpoint", store, settings, kind)
    options = ExportOptions(head="f32", embed="f32", target=target, check=False)
    bundle = export(str(model.folder), tmp_path / "bundle", options)
    assert sum(bundle.manifest.source["kept"].values()) == 8
    assert kept is not None
    wanted = model.greedy()
    assert len(set(wanted)) > 8
    assert greedy(bundle, "reference", 64) == wanted
    with torch.no_grad():
        exact = model.model(torch.tensor([q.PROMPT])).logits[0].numpy()
    native, ort = (logits(bundle, runtime) for runtime in ("native", "ort"))
    for found in (native, ort):
        assert kl(exact, found) < 0.02
    if kept[0] == "int8" or kept[1] == 32:  # ONNX Runtime rounds activations by the blocks of the weights, at least 32
        # The same integers; a value half way between two of an activation may be rounded either way.
        # ONNX graphs multiply offsets by sums of activations that are not rounded.
        plain = not any(tensor.offsets for tensor in bundle.manifest.tensors.values())
        assert kl(native, ort) < (1e-5 if plain and kept == ("int8", 32) else 0.02)


def logits(bundle: Bundle, runtime: str) -> np.ndarray:
    opened = open_runtime(runtime, bundle, RuntimeOptions(threads=1))
    return logits_of(opened, Rows.chain(q.PROMPT, 0), opened.new_cache(64))


def greedy(bundle: Bundle, runtime: str, n: int) -> list[int]:
    opened = open_runtime(runtime, bundle, RuntimeOptions(threads=1))
    cache, rows, found = opened.new_cache(128), Rows.chain(q.PROMPT, 0), list[int]()
    for _ in range(n):
        found.append(int(logits_of(opened, rows, cache)[-1].argmax()))
        cache.commit(range(len(rows)))
        rows = Rows.chain(found[-1:], cache.length)
    return found


def kl(p: np.ndarray, other: np.ndarray) -> float:
    """Mean nats a row from the distribution of logits p to that of the others."""
    a, b = (torch.from_numpy(x.astype(np.float64)).log_softmax(-1) for x in (p, other))
    return float((a.exp() * (a - b)).sum(-1).mean())


def test_formats_that_are_asked_for(tmp_path: Path) -> None:
    """--weights decides; int4 codes are kept in int8 too."""
    model = q.save(tmp_path / "checkpoint", q.gptq(), q.gptq_settings())
    for weights, kept in (("int8", {"int8 in blocks of 64": 8}), ("f32", {}), ("int4", {"int4 in blocks of 64": 8})):
        options = ExportOptions(weights=weights, head="f32", embed="f32", check=False, runtimes=("native",))
        bundle = export(str(model.folder), tmp_path / weights, options)
        assert bundle.manifest.source["kept"] == kept
        assert_same_weights(bundle, model, exact=True)
    eight = q.save(tmp_path / "eight", q.gptq(8, 32), q.gptq_settings(8, 32))
    bundle = export(str(eight.folder), tmp_path / "four", ExportOptions(weights="int4", runtimes=("native",)))
    assert bundle.manifest.source["kept"] == {}
    assert bundle.manifest.quantization["body"] == "int4"


def test_a_module_left_in_floats_is_rounded_beside_the_others(tmp_path: Path) -> None:
    left = "model.layers.0.self_attn.k_proj"
    model = q.save(tmp_path / "checkpoint", q.awq(), q.awq_settings(), skip=(left,))
    bundle = export(str(model.folder), tmp_path / "bundle", EXACT)
    assert sum(bundle.manifest.source["kept"].values()) == 8
    found, meant = bundle.rows("blocks.0.qkv"), model.floats
    np.testing.assert_array_equal(found[:128], meant["model.layers.0.self_attn.q_proj.weight"])
    np.testing.assert_array_equal(found[192:], meant["model.layers.0.self_attn.v_proj.weight"])
    floats = meant[f"{left}.weight"].numpy()
    assert 0 < np.abs(found[128:192] - floats).max() < np.abs(floats).max() / 5


@pytest.mark.parametrize("kind", ["Llama", "Gemma3", "Phi3"])
@pytest.mark.parametrize(
    ("how", "config"), [("blocks", "FineGrainedFP8Config"), ("int4", "CompressedTensorsConfig")], ids=["fp8", "int4"]
)
def test_values_as_transformers_loads_them(kind: str, how: str, config: str, tmp_path: Path) -> None:
    """By its own loader, which leaves floats: FP8 to the bit, compressed-tensors in bfloat16, as it computes them."""
    store, settings, _ = case({"blocks": "fp8, blocks", "int4": "int4, zero points"}[how])
    model = q.save(tmp_path / "checkpoint", store, settings, kind)
    load = q.transformers.AutoModelForCausalLM.from_pretrained
    asked = getattr(q.transformers, config)(dequantize=True)
    theirs = load(model.folder, dtype=torch.float32, quantization_config=asked).state_dict()
    checkpoint = Checkpoint.open(model.folder)
    matrices = {name for name in checkpoint.names if not hasattr(checkpoint.tensors[name], "offset")}
    assert len(matrices) == (8 if kind == "Phi3" else 14)
    for name in matrices:
        found = checkpoint.tensors[name].values(name, 0, theirs[name].shape)
        np.testing.assert_allclose(found, theirs[name].numpy(), rtol=0 if how == "blocks" else 2**-8, atol=0)


@pytest.mark.parametrize("name", ["gptq", "gptq v2, 8 bits", "gptq, desc_act"])
def test_gptq_as_gptqmodel_unpacks_it(name: str, tmp_path: Path) -> None:
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch", reason="compared with gptqmodel").TorchLinear
    store, settings, _ = case(name)
    model = q.save(tmp_path / "checkpoint", store, settings)
    from safetensors.torch import load_file

    stored, checkpoint = load_file(model.folder / "model.safetensors"), Checkpoint.open(model.folder)
    module, bits, group = "model.layers.1.mlp.up_proj", settings["bits"], settings["group_size"]
    theirs = linear(
        bits=bits, group_size=group, sym=False, desc_act=settings["desc_act"], in_features=128, out_features=256,
        bias=False, pack_dtype=torch.int32, register_buffers=True,
    )  # fmt: skip
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        getattr(theirs, part).data = stored[f"{module}.{part}"]
    theirs.qzeros.data = theirs.qzeros + (
        0 if settings.get("checkpoint_format") else ADD_ONE[bits]
    )  # as its loader does
    wanted = theirs.dequantize_weight().T.float().numpy()
    found = checkpoint.tensors[f"{module}.weight"].values(module, 0, (256, 128))
    np.testing.assert_allclose(found, wanted, rtol=2**-10, atol=0)


def test_awq_as_autoawq_unpacks_it(tmp_path: Path) -> None:
    theirs = _file_of("awq", "utils/packing_utils.py")
    model = q.save(tmp_path / "checkpoint", q.awq(32), q.awq_settings(32))
    from safetensors.torch import load_file

    stored, checkpoint = load_file(model.folder / "model.safetensors"), Checkpoint.open(model.folder)
    module = "model.layers.1.mlp.up_proj"
    parts = [stored[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales")]
    wanted = theirs.dequantize_gemm(parts[0], parts[1], parts[2].float(), 4, 32).T.numpy()
    found = checkpoint.tensors[f"{module}.weight"].values(module, 0, (256, 128))
    np.testing.assert_array_equal(found, wanted)


def _file_of(package: str, path: str) -> Any:
    """A file of an installed package without the rest of it, which may need a GPU."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    where = Path(next(iter(found.submodule_search_locations))) / path
    spec = importlib.util.spec_from_file_location(where.stem, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_says_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgedec.cli import main

    model = q.save(tmp_path / "checkpoint", q.awq(), q.awq_settings())
    act = q.save(tmp_path / "act", q.gptq(act_order=True), q.gptq_settings(act_order=True))
    out = str(tmp_path / "bundle")
    assert main(["export", str(model.folder), "-o", out, "--no-check", "--for", "native"]) == 0
    kept = "awq: the integers of 8 matrices kept (8 int4 in blocks of 64), their scales as they were"
    assert kept in capsys.readouterr().out
    assert main(["inspect", out]) == 0
    assert "the integers of 8 matrices kept" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(act.folder), "-o", out, "--force", "--no-check", "--for", "native"]) == 0
    assert "gptq: 8 matrices rounded anew" in capsys.readouterr().out
