"""SDAR (arXiv:2510.06303), and TDAR and TraDo, which are trained on from it: Qwen3 in blocks. Unshifted.

The rows of a block see each other and earlier blocks. Rests on the authors' code. The mask is the tokenizer's mask
token; blocks are of four unless the config says `block_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source, qwen3
from edgedec.models._diffusion import base_config
from edgedec.spec import ModelSpec

# Settings of training that published configs contain.
TRAINING = ("block_size", "debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep")
FACTS = ArchitectureFacts(
    qwen3.FACTS.ignored, Fills(shift=False, context="block", block=4, block_key="block_size", mask=151669)
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen3.spec(base_config(config, *TRAINING), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3.weights(spec, config)
