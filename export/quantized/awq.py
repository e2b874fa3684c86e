"""AWQ (Lin et al. 2023), as AutoAWQ stores it for its kernel `gemm`.

`qweight` int32 [in, out / 8] and `qzeros` int32 [groups, out / 8] hold eight outputs in a word, in the order 0 2 4 6 1
3 5 7; `scales` float16 [groups, out]. Values are (code - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._matrix import Codes, IntegerMatrix
from edgedec.export.quantized._reading import columns, floats, require_shape, tensor, unpacked
from edgedec.export.quantized.gptq import SUFFIX, nothing_added
from edgedec.export.safetensors import Array, Stored

# Where in its word the code of each of eight outputs is.
PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every module that has a qweight."""
    version = str(settings.get("version") or "gemm").lower()
    if version != "gemm":
        raise CheckpointError(f"config.json: version {version!r:.40} of AWQ is not supported, only gemm")
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits != 4:
        raise CheckpointError(f"config.json: AWQ of {bits!r:.40} bits is not supported, only of 4")
    found, used, spare = dict[str, QuantizedMatrix](), set[str](), set[str]()
    for name in tensors:
        if name.endswith(SUFFIX):
            module = name.removesuffix(SUFFIX)
            found[f"{module}.weight"] = _matrix(module, tensors)
            used |= {f"{module}.{part}" for part in ("qweight", "qzeros", "scales")}
            spare |= nothing_added(module, tensors)
    return Found(found, frozenset(used), frozenset(spare))


def _matrix(module: str, tensors: Mapping[str, Stored]) -> QuantizedMatrix:
    qweight = tensor(tensors, f"{module}.qweight", "I32", 2)
    qzeros = tensor(tensors, f"{module}.qzeros", "I32", 2)
    scales = tensor(tensors, f"{module}.scales", "F16 BF16 F32", 2)
    (k, packed), groups = qweight.shape, scales.shape[0]
    require_shape(f"{module}.scales", scales, (groups, packed * 8))
    require_shape(f"{module}.qzeros", qzeros, (groups, packed))
    if not groups or k % groups:
        raise BadTensor(f"{module}.qweight: {k} inputs are not {groups} groups")
    size = k // groups
    return AwqMatrix(qweight.file.name, (packed * 8, k), "AWQ int4", 4, size, module, qweight, qzeros, scales)


@dataclass(frozen=True, eq=False)
class AwqMatrix(IntegerMatrix):
    """One module."""

    module: str
    qweight: Stored
    qzeros: Stored
    stored_scales: Stored

    def codes(self, start: int, stop: int) -> Codes:
        return self._outputs("qweight", self.qweight, start, stop)

    def scales(self, start: int, stop: int) -> Array:
        return floats(f"{self.module}.scales", self.stored_scales)[:, start:stop].T

    def zeros(self, start: int, stop: int) -> Codes:
        return self._outputs("qzeros", self.qzeros, start, stop)

    def _outputs(self, part: str, stored: Stored, start: int, stop: int) -> Codes:
        """The codes of outputs start to stop-1, a row each."""
        first = start // 8
        words = columns(f"{self.module}.{part}", stored, first, -(-stop // 8))
        in_order = unpacked(words, 4).reshape(len(words), -1, 8)[:, :, PLACES].reshape(len(words), -1)
        return np.ascontiguousarray(in_order[:, start - 8 * first : stop - 8 * first].T)
