"""ONNX Runtime sessions of one thread: no pool of threads that has to end with them."""

from __future__ import annotations

import onnxruntime


def session(model: str | bytes) -> onnxruntime.InferenceSession:
    """Of a file or of a model's bytes, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
