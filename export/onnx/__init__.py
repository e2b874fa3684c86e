"""ONNX graphs of a bundle, one file a kind of block: nodes that point into the one weights file."""

from edgedec.export.onnx.files import write_blocks, write_ends, write_whole_model
from edgedec.export.onnx.layout import unsupported, whole_model_reason
from edgedec.export.onnx.portable import unsupported_on_devices, write_portable

__all__ = [
    "unsupported",
    "unsupported_on_devices",
    "whole_model_reason",
    "write_blocks",
    "write_ends",
    "write_portable",
    "write_whole_model",
]
