"""Checkpoint -> bundle. Needs the `export` extra (onnx)."""
