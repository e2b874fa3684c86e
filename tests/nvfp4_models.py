"""NVFP4 weights as llm-compressor and NVIDIA's Model Optimizer store them, and the floats that they mean.

Rounded and packed here, as the formats are described, or by the package compressed-tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quantized_models import Store, Tensors

torch = pytest.importorskip("torch", reason="quantized models are built with torch")

POSITIVE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
SIGNED = np.array(POSITIVE + [-value for value in POSITIVE], np.float32)


def rounded(weight: Any, whole: np.float32) -> tuple[np.ndarray, Any]:
    """weight [out, in] -> codes [out, in] and E4M3 scales [out, in / 16], which are times `whole`."""
    blocks = weight.numpy().reshape(len(weight), -1, 16)
    scales = torch.from_numpy(np.abs(blocks).max(-1) / 6 / whole).to(torch.float8_e4m3fn)
    steps = blocks / np.maximum(scales.float().numpy() * whole, 1e-30)[..., None]
    codes = np.abs(steps[..., None] - SIGNED).argmin(-1)
    return codes.reshape(weight.shape), scales


def bytes_of(codes: np.ndarray) -> Any:
    """Two codes a byte, the first in the lower bits."""
    return torch.from_numpy((codes[:, 0::2] + 16 * codes[:, 1::2]).astype(np.uint8))


def meant(codes: np.ndarray, scales: np.ndarray) -> Any:
    """Codes times the scale of their block, each a float32."""
    return torch.from_numpy(SIGNED[codes] * np.repeat(scales, 16, axis=1))


def modelopt(even: bool = False) -> Store:
    """As Model Optimizer stores a module. even: the scale of all is a power of two, so that float16 has their
    products."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        whole = np.float32(weight.abs().max() / (6 * 448))
        whole = np.float32(2 ** np.ceil(np.log2(whole))) if even else whole
        codes, scales = rounded(weight, whole)
        parts = {
            ".weight": bytes_of(codes),
            ".weight_scale": scales,
            ".weight_scale_2": torch.tensor(whole),
            ".input_scale": torch.tensor(0.01),
        }
        return parts, meant(codes, scales.float().numpy() * whole)

    return store


def modelopt_settings(**more: Any) -> dict[str, Any]:
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quant_method": "modelopt",
    } | more


def of_compressor() -> Store:
    """As llm-compressor stores a module: what divides the scales, and codes under another name."""

    def store(weight: Any) -> tuple[Tensors, Any]:
        divisor = np.float32(6 * 448 / weight.abs().max())
        codes, scales = rounded(weight, np.float32(1) / divisor)
        parts = {
            ".weight_packed": bytes_of(codes),
            ".weight_scale": scales,
            ".weight_global_scale": torch.tensor([divisor]),
            ".input_global_scale": torch.tensor([3.0]),
        }
        return parts, meant(codes, scales.float().numpy() / divisor)

    return store


def by_compressed_tensors() -> Store:
    """By the package: it rounds, packs and unpacks."""
    presets = pytest.importorskip("compressed_tensors.quantization.quant_scheme", reason="by compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = presets.NVFP4A16["weights"]
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.load_from_registry("nvfp4-pack-quantized")

    def store(weight: Any) -> tuple[Tensors, Any]:
        whole = generate_gparam(weight.amin(), weight.amax())
        blocks = weight.reshape(len(weight), -1, 16)
        scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, whole)
        state = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
        done = compressor.compress(dict(state), scheme)
        codes = unpack_fp4_from_uint8(done["weight_packed"], *weight.shape, dtype=torch.float32)
        found = dequantize(codes, done["weight_scale"].float(), None, args, torch.float32, whole)
        return {f".{name}": value for name, value in done.items()}, found

    return store


def compressor_settings(**more: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    } | more
