"""Kernels written for edgedec: `cpu` is the native CPU engine."""
