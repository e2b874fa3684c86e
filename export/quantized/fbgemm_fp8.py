"""FP8 as FBGEMM stores it: `weight` E4M3 [out, in] times `weight_scale`, one for each output."""

from edgedec.export.quantized.fp8 import matrices

__all__ = ["matrices"]
