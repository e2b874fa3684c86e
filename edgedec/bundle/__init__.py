"""A bundle: a folder with a manifest, weights, a tokenizer, and artifacts of runtimes."""

from edgedec.bundle.folder import ALIGN, Bundle
from edgedec.bundle.manifest import MANIFEST, Manifest

__all__ = ["ALIGN", "MANIFEST", "Bundle", "Manifest"]
