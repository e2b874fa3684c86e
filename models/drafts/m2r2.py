"""M2R2 (Mixture of Multi-rate Residuals): a second, accelerated residual stream along the first layers.

A layer moves the residual h to h + f(h). At layer l a low-rank adapter adds the further movement of the stream p, so
that p after E layers approximates h after all layers:

    p_1 = h_1 + out_1 silu(state_1 n(h_1))
    p_l = p_(l-1) + (h_l - h_(l-1)) + out_l silu(residual_l n(p_(l-1)) + state_l n(h_l)),  n: a norm of its own

The target's last norm and head read p_E. It sees attention only through h, so it needs no keys and values of its own.

Layout: edgedec's, no weights are published (`accelerators.N.*`, `exit_layer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan, Velocity
from edgedec.spec import ModelSpec

_DEPTH = 6


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "accelerators.0.out_proj.weight" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader(config)
    if (hidden := r.whole("hidden_size")) != target.hidden_size:
        raise CheckpointError(f"config.json: hidden_size is {hidden}, the target's {target.hidden_size}")
    layer = r.whole("exit_layer")
    if not 1 <= layer < target.n_layers:
        raise CheckpointError(f"config.json: exit_layer is {layer}, the target has {target.n_layers} layers")
    return DraftPlan(
        depth=_DEPTH,
        features=tuple(target.span(0, n).stop - 1 for n in range(1, layer + 1)),
        velocities=tuple(_velocity(f"accelerators.{i}.", i > 0) for i in range(layer)),
    )


def _velocity(prefix: str, later: bool) -> Velocity:
    """The adapter of one layer; no second stream enters the first one."""
    state, residual = f"{prefix}state_", f"{prefix}residual_" if later else ""
    return Velocity(
        f"{state}norm.weight",
        f"{state}proj.weight",
        f"{prefix}out_proj.weight",
        residual and f"{residual}norm.weight",
        residual and f"{residual}proj.weight",
    )
