"""Kernels written for edgedec. None yet: the `ort` runtime uses ONNX Runtime's own."""
