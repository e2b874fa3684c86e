"""Runtimes: each file or folder runs a bundle's blocks in its own way; its name is its registry key.

A module has `unavailable_reason(bundle)` and `open(bundle, options)`.
"""

# What "auto" means: the first of these that can open a bundle here.
PREFERRED = ("native", "ort", "reference", "graph")
