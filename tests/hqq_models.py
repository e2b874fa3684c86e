"""HQQ weights as hqq stores them in safetensors, rounded and packed here as the format is described, and the floats
that they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quantized_models import Store, Tensors

torch = pytest.importorskip("torch", reason="quantized models are built with torch")

# By bits: the packing's name, and how many codes share a number.
PACKINGS = {8: ("8bit_u8", 1), 4: ("4bit_u8", 2), 3: ("3bit_32", 10), 2: ("2bit_u8", 4), 1: ("1bit_u8", 8)}


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """codes [rows, columns] -> [rows / n, columns]: the first rows in the highest bits, then the next ones."""
    count = PACKINGS[bits][1]
    filled = np.pad(codes, ((0, -len(codes) % count), (0, 0)))
    found = np.zeros((len(filled) // count, codes.shape[1]), np.int64)
    for place in range(count):
        found |= filled[place * len(found) : (place + 1) * len(found)] << bits * (count - 1 - place)
    return found.astype(np.int32 if bits == 3 else np.uint8)


def text(words: str) -> Any:
    return torch.tensor([ord(letter) for letter in words], dtype=torch.uint8)


def hqq(
    bits: int = 4,
    group: int = 64,
    axis: int = 1,
    even: bool = False,
    dtype: Any = torch.float16,
    as_floats: bool = False,
    together: bool = False,
) -> Store:
    """even: scales are powers of two and zero points quarters, so that float16 has the offsets. as_floats, together:
    the codes are called floats; scales and zero points are one tensor."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        w = weight.numpy().reshape((-1, group) if axis == 1 else (group, -1))
        low, high, most = w.min(axis, keepdims=True), w.max(axis, keepdims=True), (1 << bits) - 1
        scale = (high - low) / most
        scale = torch.from_numpy(2.0 ** np.ceil(np.log2(scale)) if even else scale).to(dtype)
        zero = -low / scale.float().numpy()
        zero = torch.from_numpy(np.rint(zero * 4) / 4 if even else zero).to(dtype)
        steps, zeros = scale.float().numpy(), zero.float().numpy()
        codes = np.clip(np.rint(w / steps + zeros), 0, most).astype(np.int64)
        data = torch.from_numpy(packed(codes, bits))
        factors = {".zero_scale": torch.stack((zero, scale))} if together else {".scale": scale, ".zero": zero}
        facts = {"nbits": bits, "group_size": group, "axis": axis}
        flags = {"view_as_float": as_floats, "quant_scale": False, "quant_zero": False, "offload_meta": together}
        flags |= {"channel_wise": True, "optimize": True, "round_zero": bits == 4}
        parts = {
            ".W_q": data.view(dtype) if as_floats else data,
            **factors,
            ".shape": torch.tensor(weight.shape),
            ".packing": text(PACKINGS[bits][0]),
            ".unpack_view_dtype": text("torch.int32" if bits == 3 else "torch.uint8"),
            ".compute_dtype": text(str(dtype)),
            **{f".{key}": torch.tensor(value, dtype=torch.int32) for key, value in facts.items()},
            **{f".{key}": torch.tensor(int(value), dtype=torch.uint8) for key, value in flags.items()},
            ".encoded_state_dict": torch.tensor(1, dtype=torch.uint8),
            ".stores_quant_config": torch.tensor(1, dtype=torch.uint8),
        }
        return parts, torch.from_numpy(((codes - zeros) * steps).astype(np.float32).reshape(weight.shape))

    return store


def settings(bits: int = 4, group: int = 64, axis: int = 1) -> dict[str, Any]:
    params = {"nbits": bits, "group_size": group, "axis": axis, "channel_wise": True, "optimize": True}
    params |= {"round_zero": bits == 4, "view_as_float": False}
    of_all = {"weight_quant_params": params, "scale_quant_params": None, "zero_quant_params": None}
    return {"quant_method": "hqq", "quant_config": of_all, "skip_modules": ["lm_head"]}
