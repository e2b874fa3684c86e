"""Small random models saved as others save quantized ones, with the floats that those formats mean.

Integers are packed here one at a time, as the formats are described, or by the packages that define them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="quantized models are built with torch")
transformers = pytest.importorskip("transformers", reason="quantized models are built with transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

torch.set_num_threads(1)  # models this small wait for threads more than they gain
SIZES = {
    "vocab_size": 101,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 128}
PROMPT = [1, 7, 3, 99, 42, 42, 5, 63, 17, 88]
Tensors = dict[str, Any]


def model(kind: str = "Llama", seed: int = 0) -> Any:
    """A random float model, larger weights than usual, so that its likeliest tokens are clear."""
    torch.manual_seed(seed)
    more = EXPERTS if kind == "Mixtral" else {}
    name = "Gemma3Text" if kind == "Gemma3" else kind
    config = getattr(transformers, f"{name}Config")(**SIZES | more, initializer_range=0.15)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@dataclass
class Saved:
    """folder: the quantized checkpoint; floats: what its weights mean, by the names of the float checkpoint."""

    folder: Path
    floats: Tensors
    model: Any
    integers: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)

    def greedy(self, n: int = 64) -> list[int]:
        """The tokens of transformers on those floats."""
        ids, found = torch.tensor([PROMPT]), []
        with torch.no_grad():
            for _ in range(n):
                token = int(self.model(ids).logits[0, -1].argmax())
                found.append(token)
                ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
        return found


# A module's weight [out, in] -> the tensors that stand for it, by what follows its name, and the floats they mean.
Store = Callable[[Any], tuple[Tensors, Any]]


def save(
    folder: Path, store: Store, settings: dict[str, Any], kind: str = "Llama", seed: int = 0, skip: tuple[str, ...] = ()
) -> Saved:
    """The model `kind` in `folder`, its matrices but embedding, head, routers and `skip` stored by `store`."""
    made = model(kind, seed)
    made.save_pretrained(folder)  # the names that checkpoints have
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    floats, stored = dict(tensors), dict[str, Any]()
    for name, weight in tensors.items():
        module = name.removesuffix(".weight")
        if (
            weight.dim() != 2
            or name.startswith(("lm_head", "model.embed"))
            or module.endswith(".gate")
            or module in skip
        ):
            stored[name] = weight
            continue
        parts, floats[name] = store(weight)
        stored |= {module + part: value.contiguous() for part, value in parts.items()}
    (folder / "model.safetensors").unlink()
    save_file(floats, folder / "model.safetensors")
    meant = type(made).from_pretrained(folder, dtype=torch.float32).eval()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return Saved(folder, floats, meant)


def rounded(weight: Any, bits: int, group: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """weight [out, in] -> codes [out, in] from 0 on, zero points and float16 scales [out, groups]."""
    w = weight.numpy().reshape(len(weight), -1, group)
    most, low, high = (1 << bits) - 1, w.min(-1), w.max(-1)
    if symmetric:
        high = np.abs(w).max(-1)
        low = -high
    scales = ((high - low) / most).astype(np.float16)
    zeros = np.full(scales.shape, 1 << bits - 1) if symmetric else np.rint(-low / scales.astype(np.float32))
    zeros = np.clip(zeros, 0, most).astype(np.int64)
    codes = np.clip(np.rint(w / scales.astype(np.float32)[..., None]) + zeros[..., None], 0, most)
    return codes.reshape(weight.shape).astype(np.int64), zeros, scales


def values(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group: np.ndarray) -> Any:
    """(code - zero) * scale in float32, `group` the group of each input."""
    steps = (codes - zeros[:, group]).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(steps * scales[:, group].astype(np.float32)))


def words(codes: np.ndarray, bits: int) -> Any:
    """codes [rows, n] -> int32 [rows, n * bits / 32], bit by bit, the lowest first."""
    stream = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32))).reshape(len(codes), -1, 32)
    found = (stream.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32)
    return torch.from_numpy(found.view(np.int32))


def gptq(bits: int = 4, group: int = 64, symmetric: bool = False, v2: bool = False, act_order: bool = False) -> Store:
    """As AutoGPTQ packs a module."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        n, k = weight.shape
        size = k if group == -1 else group
        order = np.random.default_rng(n).permutation(k) if act_order else np.arange(k)
        codes, zeros, scales = rounded(weight[:, order], bits, size, symmetric)
        place = np.empty(k, np.int64)
        place[order] = np.arange(k) // size
        codes = codes[:, np.argsort(order)]
        stored_zeros = (zeros - (0 if v2 else 1)) & (1 << bits) - 1
        parts = {
            ".qweight": words(codes, bits).T,
            ".qzeros": words(stored_zeros.T, bits),
            ".scales": torch.from_numpy(scales.T.copy()),
            ".g_idx": torch.from_numpy(place.astype(np.int32)),
            ".bias": torch.zeros(n, dtype=torch.float16),
        }
        return parts, values(codes, zeros, scales, place)

    return store


def gptq_settings(bits: int = 4, group: int = 64, **more: Any) -> dict[str, Any]:
    v2 = more.get("v2")
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": bool(more.get("act_order")),
        "sym": bool(more.get("symmetric")),
        **({"checkpoint_format": "gptq_v2"} if v2 else {}),
    }


def awq(group: int = 64) -> Store:
    """As AutoAWQ packs a module for `gemm`."""

    def packed(codes: np.ndarray) -> Any:
        found = np.zeros((len(codes), codes.shape[1] // 8), np.int64)
        for i, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            found |= codes[:, output::8] << 4 * i
        return torch.from_numpy(found.astype(np.uint32).view(np.int32))

    def store(weight: Any) -> tuple[Tensors, Any]:
        codes, zeros, scales = rounded(weight, 4, group, False)
        parts = {
            ".qweight": packed(codes.T),
            ".qzeros": packed(zeros.T),
            ".scales": torch.from_numpy(scales.T.copy()),
        }
        return parts, values(codes, zeros, scales, np.arange(weight.shape[1]) // group)

    return store


def awq_settings(group: int = 64) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}


def fp8(block: tuple[int, int] | None = (128, 128), name: str = ".weight_scale_inv") -> Store:
    """E4M3 with a scale a block, or one for all."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        rows, width = block or weight.shape
        n, k = weight.shape
        scale = torch.empty(-(-n // rows), -(-k // width))
        spread = torch.empty_like(weight)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = (slice(i * rows, (i + 1) * rows), slice(j * width, (j + 1) * width))
                scale[i, j] = weight[at].abs().max() / 448
                spread[at] = scale[i, j]
        stored = (weight / spread).to(torch.float8_e4m3fn)
        scales = scale if block else scale.reshape(())
        return {".weight": stored, name: scales}, stored.float() * spread

    return store


def fp8_settings(block: tuple[int, int] | None = (128, 128)) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": block and [*block],
    }


def compressed(bits: int = 4, group: int | None = 64, symmetric: bool = False, form: str = "pack-quantized") -> Store:
    """By the package compressed-tensors: it rounds, packs and unpacks. group None: by output."""
    ct = pytest.importorskip("compressed_tensors.quantization", reason="compared with compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor

    kind = "float" if form == "float-quantized" else "int"
    args = ct.QuantizationArgs(
        num_bits=bits,
        type=kind,
        symmetric=symmetric,
        group_size=group,
        strategy="channel" if group is None else "group",
    )
    scheme = ct.QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.load_from_registry(form)

    def store(weight: Any) -> tuple[Tensors, Any]:
        from compressed_tensors.quantization.utils import calculate_qparams

        w = weight.reshape(len(weight), -1, group or weight.shape[1])
        scale, zero = calculate_qparams(w.amin(-1), w.amax(-1), args)
        if kind == "int":
            scale = scale.to(torch.bfloat16).to(torch.float32)
        state = {"weight": weight, "weight_scale": scale}
        if not symmetric:
            state["weight_zero_point"] = zero
        done = compressor.compress(dict(state), scheme)
        meant = compressor.decompress(dict(done), scheme)["weight"]
        if kind == "int":
            done["weight_scale"] = scale.to(torch.bfloat16)
        return {f".{name}": value for name, value in done.items()}, meant.float()

    return store


def compressed_settings(
    bits: int = 4, group: int | None = 64, symmetric: bool = False, form: str = "pack-quantized"
) -> Any:
    weights = {"num_bits": bits, "type": "float" if form == "float-quantized" else "int", "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def four_bits(kind: str = "nf4", double: bool = True) -> Store:
    """By the package bitsandbytes."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="compared with bitsandbytes")

    def store(weight: Any) -> tuple[Tensors, Any]:
        data, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=double, quant_type=kind)
        meant = functional.dequantize_4bit(data, state)
        return {".weight": data} | {f".weight.{k}": v for k, v in state.as_dict(packed=True).items()}, meant.float()

    return store


def four_bits_settings(kind: str = "nf4", double: bool = True) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": double,
    }


def llm_int8() -> Store:
    """int8 with the largest weight of an output at 127."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        top = weight.abs().amax(1)
        codes = torch.round(weight * (127 / top)[:, None]).to(torch.int8)
        return {".weight": codes, ".SCB": top}, codes.float() * (top / 127)[:, None]

    return store


def every(bundle: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every matrix of a bundle with its values."""
    for name in sorted(bundle.spec.matrices & set(bundle.manifest.tensors)):
        yield name, bundle.rows(name)
