"""A GGUF file is the model it was made from, to transformers, which made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ggufs
import numpy as np
import pytest
from gguf_models import MODELS
from ggufs import gguf
from numpy.typing import NDArray
from onnx_sessions import session as session_of
from readings import all_logits, greedy, kl, of_file, same_bytes_everywhere

from edgedec.errors import BadTensor, RuntimeUnavailable
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.opening import open_source
from edgedec.runtime import open_runtime

torch = pytest.importorskip("torch", reason="the models are built with torch")

Floats = NDArray[np.float32]
IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()
GREEDY = 64
BIG = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
QUANTIZED = ("Q4_0", "Q8_0")


def logits_by_torch(model: Any, ids: list[int]) -> Floats:
    torch.set_num_threads(1)  # so little work is done sooner by one
    with torch.no_grad():
        found: Floats = model(torch.tensor(ids)[None]).logits[0].numpy()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_file_is_the_one_that_wrote_it(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    path = ggufs.write(model, tmp_path / "m.gguf")
    assert np.abs(all_logits(of_file(path), IDS) - logits_by_torch(model, IDS)).max() < 1e-4
    bundle = export(str(path), tmp_path / "b", ExportOptions(weights="f32", check=False, runtimes=("native",)))
    n = min(GREEDY, bundle.spec.context_length - 8)  # beyond it Phi-3's rope is another
    found = greedy(open_runtime("native", bundle), IDS[:8], n)
    text = [*IDS[:8], *found]
    assert found == logits_by_torch(model, text)[7:-1].argmax(1).tolist()
    assert len(set(found)) > 1


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_tensor_for_each_expert(kind: str, tmp_path: Path) -> None:
    """As Mixtral's files had before llama.cpp stacked them: the same bundle, byte for byte."""
    options = ExportOptions(check=False, runtimes=("native",), name="m")
    found = []
    for apart in (False, True):
        path = ggufs.write(MODELS["mixtral"](), tmp_path / f"{apart}.gguf", kind, apart)
        source = open_source(path)
        assert any("ffn_gate.0.weight" in name for name in source.tensors) == apart
        bundle = export(str(path), tmp_path / f"bundle-{apart}", options)
        found.append((bundle.path / "weights.bin").read_bytes())
    assert found[0] == found[1]
    few = ggufs.write(MODELS["mixtral"](), tmp_path / "few.gguf", kind, True, **{"llama.expert_count": 6})
    with pytest.raises(BadTensor, match=r"ffn_gate\.5\.weight: missing"):
        export(str(few), tmp_path / "few", options)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_floats_are_read_as_they_are(kind: str, tmp_path: Path) -> None:
    model = MODELS["llama"]()
    path = ggufs.write(model, tmp_path / "m.gguf", kind)
    assert {t.tensor_type.name for t in gguf.GGUFReader(path).tensors} == {kind, "F32"}
    dtype = torch.float16 if kind == "F16" else torch.bfloat16
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(parameter.to(dtype).float())
    assert np.abs(all_logits(of_file(path), IDS) - logits_by_torch(model, IDS)).max() < 1e-4


def quantized(kind: str | dict[str, str], path: Path) -> Path:
    """A Llama all of whose matrices are whole blocks."""
    import zoo

    model = zoo._causal("Llama", **BIG, rms_norm_eps=1e-5, rope_parameters=zoo.LLAMA3)()
    return ggufs.write(model, path, kind)


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_integers_are_kept(kind: str, target: str, tmp_path: Path) -> None:
    """The bundle's floats are those that the package gguf finds in the file, to the bit; q and k in our order."""
    path = quantized(kind, tmp_path / "m.gguf")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, target=target, runtimes=("native",)))
    fmt = {"Q4_0": "int4", "Q8_0": "int8"}[kind]
    assert bundle.manifest.quantization == {"body": fmt, "head": fmt, "embed": fmt, "block": "32"}
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    assert np.array_equal(bundle.rows("embed"), theirs["token_embd.weight"])
    assert np.array_equal(bundle.rows("blocks.1.down"), theirs["blk.0.ffn_down.weight"])
    gate_up = np.concatenate([theirs["blk.0.ffn_gate.weight"], theirs["blk.0.ffn_up.weight"]])
    assert np.array_equal(bundle.rows("blocks.1.gate_up"), gate_up)
    q = theirs["blk.0.attn_q.weight"].reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    assert np.array_equal(bundle.rows("blocks.0.qkv")[:256], q)
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - all_logits(of_file(path), IDS)).max() < 1e-4


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_least_values_are_kept(kind: str, target: str, tmp_path: Path) -> None:
    """A scale and an offset in float16 are within their rounding of the file's scale and least value; every engine that
    has them computes with these."""
    path = quantized(kind, tmp_path / "m.gguf")
    options = ExportOptions(check=False, target=target, runtimes=("native", "ort"))
    bundle = export(str(path), tmp_path / "b", options)
    tensors = {name: t for name, t in bundle.manifest.tensors.items() if name in bundle.spec.matrices}
    assert {t.format for t in tensors.values()} == {"int4"}
    assert all(t.offsets and not t.zeros for t in tensors.values())
    assert bundle.manifest.version == 9
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    for name, found in (("embed", "token_embd"), ("blocks.1.down", "blk.0.ffn_down"), ("head", "output")):
        values = theirs[f"{found}.weight"]
        assert np.abs(bundle.rows(name) - values).max() <= np.abs(values).max() * 2.0**-9
        assert np.abs(bundle.gather(name, np.array([40, 3])) - values[[40, 3]]).max() <= np.abs(values).max() * 2.0**-9
    q = theirs["blk.0.attn_q.weight"].reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    assert np.abs(bundle.rows("blocks.0.qkv")[:256] - q).max() <= np.abs(q).max() * 2.0**-9
    exact = all_logits(of_file(path), IDS)
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - exact).max() < 5e-3 * exact.std()
    for engine in ("native", "ort"):  # which round activations to 8 bits
        found = all_logits(open_runtime(engine, bundle), IDS)
        assert np.sqrt(np.mean((found - exact) ** 2)) < 0.1 * exact.std()
    with pytest.raises(RuntimeUnavailable, match="reads no weights with offsets"):
        open_runtime("opencl", bundle)


# Of each type its format here, its block, and whether its scales have parts.
OWN = {
    "Q2_K": ("uint2", 16, True),
    "Q3_K": ("int3", 16, True),
    "Q6_K": ("int6", 16, True),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), ("int5", 32, False)),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), ("nl4", 32, False)),
    "MXFP4": ("mx4", 32, False),
}
# A factor or an offset of their blocks becomes one float16.
NEARLY = ("Q5_1", "Q5_K", "IQ4_XS")


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("kind", OWN)
def test_types_that_only_gguf_has_are_kept(kind: str, target: str, tmp_path: Path) -> None:
    """The values that the package gguf finds, at the file's size; every engine that has them computes with these."""
    path = quantized(kind, tmp_path / "m.gguf")
    options = ExportOptions(check=False, target=target, runtimes=("native", "ort"))
    bundle = export(str(path), tmp_path / "b", options)
    tensors = {name: t for name, t in bundle.manifest.tensors.items() if name in bundle.spec.matrices}
    assert {(t.format, t.block, t.parts > 0) for t in tensors.values()} == {OWN[kind]}
    assert bundle.manifest.version == 9
    read = gguf.GGUFReader(path)
    of_matrices = sum(int(t.n_bytes) for t in read.tensors if len(t.shape) > 1)
    assert sum(t.stored_bytes for t in tensors.values()) < 1.15 * of_matrices
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in read.tensors}
    q = theirs["blk.0.attn_q.weight"].reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    wanted = {"embed": theirs["token_embd.weight"], "blocks.1.down": theirs["blk.0.ffn_down.weight"]}
    for name, values in {**wanted, "blocks.0.qkv": q}.items():
        near = np.abs(values).max() * (2.0**-9 if kind in NEARLY else 0.0)
        assert np.abs(bundle.rows(name, 0, len(values)) - values).max() <= near
        assert np.abs(bundle.gather(name, np.array([40, 3])) - values[[40, 3]]).max() <= near
    embed = session_of(str(bundle.file("embed.onnx"))).run(None, {"input_ids": np.array([IDS])})[0][0]
    np.testing.assert_allclose(embed, bundle.gather("embed", np.array(IDS)), atol=1e-6 * np.abs(embed).max())
    exact = all_logits(of_file(path), IDS)
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - exact).max() < 5e-3 * exact.std()
    eight = export(str(path), tmp_path / "8", ExportOptions(check=False, weights="int8", runtimes=("native",)))
    assert {t.format for n, t in eight.manifest.tensors.items() if n in tensors} == {"int8"}
    near = kl(exact, all_logits(open_runtime("native", eight), IDS))
    # Activations are rounded to 8 bits; ONNX Runtime multiplies offsets by what they were before.
    for engine, share in (("native", 1.2), ("ort", 2.5)):
        assert kl(exact, all_logits(open_runtime(engine, bundle), IDS)) < share * near + 1e-6
    unread = "weights with parts of scales" if kind == "Q3_K" else f"{OWN[kind][0]} weights"
    with pytest.raises(RuntimeUnavailable, match=f"reads no {unread}.*; native, reference and ort do"):
        open_runtime("opencl", bundle)


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("kind", OWN)
def test_kept_types_give_the_same_bytes_in_any_call_on_any_machine(kind: str, target: str, tmp_path: Path) -> None:
    path = quantized(kind, tmp_path / "m.gguf")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, target=target, runtimes=("native",)))
    same_bytes_everywhere(bundle, IDS)


def test_a_type_is_kept_unless_another_format_is_asked_for(tmp_path: Path) -> None:
    """As embedding and head, too, which may have types of their own."""
    path = quantized({"token_embd": "Q6_K", "output": "Q8_0", "": "IQ4_NL"}, tmp_path / "m.gguf")

    def formats(**options: Any) -> tuple[str, str, str]:
        made = ExportOptions(check=False, runtimes=("native",), force=True, **options)
        tensors = export(str(path), tmp_path / "b", made).manifest.tensors
        return tensors["embed"].format, tensors["head"].format, tensors["blocks.1.down"].format

    assert formats() == ("int6", "int8", "nl4")
    assert formats(weights="int4") == ("int4", "int4", "int4")
    assert formats(embed="int8", head="int4") == ("int8", "int4", "nl4")
    assert formats(block=64) == ("int8", "int8", "int4")


def test_a_matrix_of_types_with_formats_of_their_own_is_rounded_to_8_bits(tmp_path: Path) -> None:
    path = quantized({"attn_v": "Q3_K", "": "Q2_K"}, tmp_path / "m.gguf")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    assert bundle.manifest.tensors["blocks.0.qkv"].format == "int8"
    assert bundle.manifest.tensors["blocks.0.o"].format == "uint2"


def test_a_matrix_of_several_types_takes_the_finest(tmp_path: Path) -> None:
    """As in files Q4_K_M, in which some of v are Q6_K: q and k keep their numbers, and v is rounded to 8 bits."""
    kinds = {"attn_v": "Q8_0", "": "Q4_K"}
    path = quantized(kinds, tmp_path / "m.gguf")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    formats = {name: bundle.manifest.tensors[name].format for name in ("blocks.0.qkv", "blocks.0.o", "blocks.1.down")}
    assert formats == {"blocks.0.qkv": "int8", "blocks.0.o": "int4", "blocks.1.down": "int4"}
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    v = theirs["blk.0.attn_v.weight"]
    assert np.array_equal(bundle.rows("blocks.0.qkv")[-len(v) :], v)  # kept too, with offsets of zero
    exact = all_logits(of_file(path), IDS)
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - exact).max() < 5e-3 * exact.std()


def test_another_block_or_format_is_quantized_anew(tmp_path: Path) -> None:
    path = quantized("Q4_0", tmp_path / "m.gguf")
    for weights, block in (("int8", 32), ("int4", 64)):
        options = ExportOptions(weights=weights, block=block, runtimes=("native",), check=True)
        bundle = export(str(path), tmp_path / f"{weights}{block}", options)
        assert bundle.manifest.quantization["body"] == weights
        assert bundle.manifest.parity is not None
        assert 0 < bundle.manifest.parity.kl["f32"] < (0.05 if weights == "int8" else 2.0)


def test_a_factor_goes_to_the_scales(tmp_path: Path) -> None:
    """Granite multiplies what a block adds: the integers stay, their scales take the factor."""
    import zoo

    config = zoo.GRANITE | {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 32}
    path = ggufs.write(zoo._causal("GraniteMoe", **config)(), tmp_path / "m.gguf", "Q8_0")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - all_logits(of_file(path), IDS)).max() < 2e-2
