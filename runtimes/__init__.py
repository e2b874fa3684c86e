"""Runtimes: what runs the blocks of a bundle, on a CPU, a GPU or through another library.

A file has `FACTS`, `unavailable_reason(bundle, device)` and `open(bundle, options)`.
"""

from edgedec.runtime.registry import RUNTIMES as FAMILY

__all__ = ["FAMILY", "PREFERRED"]

# The order in which "auto" tries runtimes: the first that can open the bundle is used. The order is kept here and not
# in the files, because reading it there would import every runtime and its libraries at each opening.
PREFERRED = ("native", "ort", "reference", "graph")
