"""Check of the manifest's section `diffusion`."""

from __future__ import annotations

from edgedec.bundle.manifest import Manifest
from edgedec.errors import BundleCorrupt


def check_diffusion(manifest: Manifest, where: str) -> None:
    """BundleCorrupt unless the facts of a diffusion model fit its layers and its text."""
    facts, spec = manifest.diffusion, manifest.spec
    if facts is None:
        return
    if not 0 <= facts.mask < spec.vocab_size:
        raise BundleCorrupt(f"{where}: diffusion.mask: token {facts.mask} is outside the vocabulary")
    if facts.mask in manifest.text.eos:
        raise BundleCorrupt(f"{where}: diffusion.mask: token {facts.mask} also ends a text")
    if not 1 <= facts.block <= spec.context_length:
        raise BundleCorrupt(f"{where}: diffusion.block: {facts.block} is out of range; 1 to {spec.context_length}")
    if spec.recurrent:
        raise BundleCorrupt(f"{where}: diffusion: a recurrent block has no state of rows that see each other")
