"""Mamba-2: nothing but state-space blocks, so a text of any length has a state of one size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, finish
from edgedec.models._mamba import BACKBONE, IN_LAYERS, MAMBA, alone, in_mixer, step_limits
from edgedec.models._names import Names, named
from edgedec.spec import ModelSpec, Ssm

FACTS = ArchitectureFacts((r"lm_head\.weight",))
NAMES: Names = {"ssm": in_mixer(MAMBA)}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    common, length = alone(r, context, tied=False)
    r.value("time_step_rank", None)  # of Mamba-1
    found = ModelSpec(**common, context_length=length, layers=((_block(r),),) * r.whole("num_hidden_layers"))
    return finish(r, found)


def _block(r: ConfigReader) -> Ssm:
    heads, dim, groups = r.whole("num_heads", 128), r.whole("head_dim", 64), r.whole("n_groups", 8)
    inner, (low, high) = r.whole("expand", 2) * r.whole("hidden_size"), step_limits(r)
    if heads * dim != inner:
        raise r.fail("num_heads", f"{heads} heads of {dim} do not fill {inner} channels")
    return Ssm(
        n_heads=heads,
        head_dim=dim,
        state_size=r.whole("state_size", 128),
        n_groups=groups,
        conv_size=r.whole("conv_kernel", 4),
        dt_min=low,
        dt_max=high,
        norm_groups=groups,
        proj_bias=r.flag("use_bias", False),
    )


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=BACKBONE, layers=IN_LAYERS)
