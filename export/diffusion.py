"""What a checkpoint's config says of diffusion decoding: the section `diffusion` of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.spec import ModelSpec
from edgedec.storage.serde import from_json

KEY = "diffusion"


def diffusion_facts(config: Mapping[str, Any], spec: ModelSpec) -> DiffusionFacts | None:
    """The facts under the key `diffusion` of config.json; None for an autoregressive model.

    {"diffusion": {"mask": 4096, "shift": true, "context": "causal", "block": 8}} is the one of nano-block
    """
    if config.get(KEY) is None:
        return None
    try:
        found = from_json(DiffusionFacts, config[KEY], f"config.json: {KEY}")
    except BundleCorrupt as error:
        raise CheckpointError(str(error)) from None
    if not 0 <= found.mask < spec.vocab_size or found.block < 1:
        raise CheckpointError(
            f"config.json: {KEY}: mask {found.mask}, block {found.block}: does not fit {spec.vocab_size} tokens"
        )
    return found
