"""Velocity adapters of a draft checkpoint (`models/drafts/m2r2.py`): checked, and written as one graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edgedec.errors import BadTensor
from edgedec.export.drafts.files import DraftCheckpoint
from edgedec.export.drafts.networks import VelocityWeights, velocity_graph
from edgedec.models.drafts import Velocity
from edgedec.spec import ModelSpec


def check_velocities(checkpoint: DraftCheckpoint, velocities: Sequence[Velocity], target: ModelSpec) -> None:
    """Refuse adapters of other sizes than the target's, or of two ranks."""
    for velocity in velocities:
        hidden, rank = target.hidden_size, _shape(checkpoint, velocity.out)[-1]
        expected = {
            velocity.out: (hidden, rank),
            velocity.state_norm: (hidden,),
            velocity.state: (rank, hidden),
            velocity.residual_norm: (hidden,),
            velocity.residual: (rank, hidden),
        }
        for name, shape in expected.items():
            if name and (found := _shape(checkpoint, name)) != shape:
                raise BadTensor(f"{name}: {found}, expected {shape} beside a target of {hidden} ({checkpoint.folder})")


def velocity_file(
    folder: Path,
    prefix: str,
    checkpoint: DraftCheckpoint,
    velocities: Sequence[Velocity],
    eps: float,
    matrices: Literal["f32", "int8"],
) -> str:
    """Write the graph of the adapters into a folder -> its name."""
    weights = [_weights(checkpoint, velocity) for velocity in velocities]
    (folder / (name := f"{prefix}velocity.onnx")).write_bytes(velocity_graph(weights, eps, matrices))
    return name


def _weights(checkpoint: DraftCheckpoint, velocity: Velocity) -> VelocityWeights:
    whole = checkpoint.whole
    found = VelocityWeights(whole(velocity.state_norm), whole(velocity.state), whole(velocity.out))
    if not velocity.residual:
        return found
    return VelocityWeights(
        found.state_norm, found.state, found.out, whole(velocity.residual_norm), whole(velocity.residual)
    )


def _shape(checkpoint: DraftCheckpoint, name: str) -> tuple[int, ...]:
    if name not in checkpoint.tensors:
        raise BadTensor(f"{name}: missing from {checkpoint.folder}")
    return tuple(checkpoint.tensors[name].shape)
