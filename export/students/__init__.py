"""Draft models in training: torch modules whose parameters have the names of the published checkpoints.

One file a kind; file name = kind. Row t of a text stands for: the model has read token t. Guess k of row t predicts the
model's token after token t + k + `ahead`, given the tokens up to that one: ahead is 1 where the next token itself comes
from the model (the default), 0 of a kind that follows an early layer (`early`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.plugins import Family
from edgedec.runtime.checks import check_bare_head
from edgedec.spec import Attention, Mlp, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from edgedec.export.students._student import Student


@dataclass(frozen=True)
class StudentShape:
    """Sizes of a draft model for its target. kept: tokens of its vocabulary; depth: guesses in a row that are trained;
    blocks: of a Hydra++ head, how many in a row; layer: of the target, after which an early kind reads; width: 0
    for the usual."""

    hidden: int
    inner: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    theta: float
    eps: float
    vocab: int
    kept: int
    depth: int
    context: int
    n_layers: int
    softcap: float = 0.0
    blocks: int = 1
    layer: int = 0
    width: int = 0


@dataclass(frozen=True)
class Features:
    """The target's features of a text of T tokens: tokens [T], the embedding of each [T, H], hidden states after
    some of its layers [T, H] each, the last one, the token that it predicts after each [T], and the position of each
    [T]."""

    tokens: Tensor
    embeddings: Tensor
    states: tuple[Tensor, ...]
    last: Tensor
    said: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class StudentTarget:
    """The frozen end of the target: its last norm [H], the rows of its head that a draft model keeps [kept, H], and
    which tokens they are [kept], ascending; bundle: all of it, for kinds that run it."""

    norm: Tensor
    readout: Tensor
    ids: Tensor
    bundle: Bundle | None = None


@dataclass(frozen=True)
class StudentFacts:
    """What a file of this folder declares. ahead: see above; early: does the kind follow an early layer? trimmed: can
    its vocabulary be a part of the target's? wide: does it have an inner width to choose? anchors: how many first
    tokens of a training row stay at their positions, while the others stand further on (0: none is moved); length:
    tokens of a row of training text at most (0: any number); sure: a guess is learned where the target gives its
    token and all before it, from the next one on, this probability at least (0: everywhere)."""

    ahead: int = 1
    early: bool = False
    trimmed: bool = False
    wide: bool = False
    anchors: int = 0
    length: int = 0
    sure: float = 0.0


FAMILY = Family(
    "edgedec.export.students",
    "draft model to train",
    facts=StudentFacts,
    aliases={"hydra++": "hydrapp", "hydra_plus": "hydrapp", "hidden-transfer": "hiddentransfer"},
)


def student_class(kind: str) -> type[Student]:
    """The class of the draft models of a kind."""
    found: type[Student] = FAMILY.file(kind).STUDENT
    return found


def shape_of(spec: ModelSpec, kept: int, depth: int, width: int = 0, blocks: int = 1, layer: int = 0) -> StudentShape:
    """A draft layer like one of the target's."""
    attention = next((b for b in spec.blocks if isinstance(b, Attention)), None)
    inner = next((b.inner_size for b in spec.blocks if isinstance(b, Mlp)), 3 * spec.hidden_size)
    if attention is None or spec.final_norm != "rms" or not spec.ropes:
        why = "a draft model with attention needs a target with rotary attention and a last RMS norm"
        raise UsageError(f"{spec.architecture}: {why}; train hydra or medusa for it")
    check_bare_head(spec, "training")
    return StudentShape(
        hidden=spec.hidden_size,
        inner=width or inner,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        theta=_theta(spec.ropes[0].inv_freq),
        eps=spec.norm_eps,
        vocab=spec.vocab_size,
        kept=kept,
        depth=depth,
        context=spec.context_length,
        n_layers=spec.n_layers,
        softcap=spec.final_softcap,
        blocks=blocks,
        layer=layer,
        width=width,
    )


def _theta(inv_freq: tuple[float, ...]) -> float:
    """The base of a rope from its second frequency, which no long-context scaling changes."""
    return float(f"{inv_freq[1] ** -len(inv_freq):.6g}") if len(inv_freq) > 1 else 10000.0
