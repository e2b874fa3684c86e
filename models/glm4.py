"""GLM-4 (0414) and GLM-Z1: GLM with norms after each block too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED
from edgedec.models._names import Names
from edgedec.models.glm import NAMES, glm, paired
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(IGNORED)
POSTS: Names = {
    "attention": NAMES["attention"] | {"post_norm": ("post_self_attn_layernorm.weight",)},
    "mlp": NAMES["mlp"] | {"post_norm": ("post_mlp_layernorm.weight",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return glm(config, context, "rms")


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return paired(spec, POSTS)
