"""Runtimes: each file or folder runs a bundle's blocks in its own way; its name is its registry key.

A file has `FACTS`, `unavailable_reason(bundle, device)` and `open(bundle, options)`.
"""

from edgedec.runtime.registry import RUNTIMES as FAMILY

__all__ = ["FAMILY", "PREFERRED"]

# What "auto" means: the first of these that can open a bundle here. The order is not among the facts of the files: to
# read it, all of them and the libraries that they need would be imported whenever a model is opened.
PREFERRED = ("native", "ort", "reference", "graph")
