"""Published draft checkpoints: which tensors they hold, and what they compute.

A head with attention is a small stack of blocks (`ModelSpec`), whose input is a state and whose readout is a vocabulary
of its own. What is dense around it is a `Merge` or a `Rung`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from edgedec.errors import CheckpointError
from edgedec.models import Source
from edgedec.plugins import Family, NoFacts
from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class Merge:
    """A dense network: a matrix ("": none) times its inputs side by side, each normed first if `norms` names its
    weight, and all of them through `layers`; plus a bias. Names are those of the checkpoint; norm_add: what is
    added to the weights of norms."""

    inputs: tuple[str, ...]
    matrix: str
    norms: tuple[str, ...] = ()
    bias: str = ""
    norm_add: float = 0.0
    layers: tuple[Residual, ...] = ()


@dataclass(frozen=True)
class Residual:
    """skip(x) + silu(matrix x + bias), with skip the identity if it has no matrix."""

    matrix: str
    bias: str = ""
    skip: str = ""
    skip_bias: str = ""


@dataclass(frozen=True)
class Rung:
    """The head of one depth: residual layers one after another, then a readout."""

    layers: tuple[Residual, ...]
    readout: str
    bias: str = ""


@dataclass(frozen=True)
class Velocity:
    """A low-rank adapter of a layer: names of its norms and matrices; residual_*: "" where no stream enters."""

    state_norm: str
    state: str
    out: str
    residual_norm: str = ""
    residual: str = ""


@dataclass(frozen=True)
class DraftPlan:
    """How a checkpoint is imported. spec: the layers (None: there are none), with the readout as their tied embedding;
    sources: of their tensors, None for the target's readout, nothing for zeros; merges: by use; rungs: of each depth,
    rung_reads: states that each reads side by side; features: blocks of the target that are read, normed: after its
    last norm; tokens: the tensor that is added to the number of a draft token to make it the target's ("": the same
    numbers); velocities: one a feature; feeds, depth: as in `DraftFacts`; embeddings: the tensor of trained ones; lstm:
    the prefix of a torch LSTM of two layers ("": none); block: tokens that a pass guesses together; ignored: regular
    expressions of tensors that are not needed."""

    depth: int
    features: tuple[int, ...]
    spec: ModelSpec | None = None
    sources: Mapping[str, Source | None] = field(default_factory=dict)
    merges: Mapping[str, Merge] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    rung_reads: int = 1
    velocities: tuple[Velocity, ...] = ()
    tokens: str = ""
    normed: bool = False
    feeds: Literal["state", "normed"] = "state"
    embeddings: str = ""
    lstm: str = ""
    block: int = 1
    ignored: tuple[str, ...] = ()


class DraftKind(Protocol):
    """What a file of this folder provides."""

    def matches(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        """Whether a checkpoint with this config and these tensor names is of this kind."""

    def plan(self, config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
        """How it is imported; CheckpointError if its config is not supported."""


FAMILY: Family[NoFacts] = Family("edgedec.models.drafts", "kind of draft checkpoint", error=CheckpointError)


def draft_kind(name: str) -> DraftKind:
    """The file of a kind."""
    return cast(DraftKind, FAMILY.file(name))


def known_kind(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """The kind of a checkpoint; None if it is unknown."""
    return next((name for name in FAMILY.names() if draft_kind(name).matches(config, names)), None)


def kind_of(config: Mapping[str, Any], names: Collection[str], where: str) -> str:
    """The kind of a checkpoint; CheckpointError if it is unknown."""
    if (kind := known_kind(config, names)) is not None:
        return kind
    some = ", ".join(sorted(names)[:3])
    raise CheckpointError(
        f"{where}: no draft checkpoint of a known kind ({', '.join(FAMILY.names())}); it holds {some}"
    )
