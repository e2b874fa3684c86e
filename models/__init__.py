"""Architectures: from a Hugging Face config to a ModelSpec, and from its weight names to checkpoint tensors.

One file an architecture; the file's name is the `model_type` it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from edgedec.errors import CheckpointError, UnknownArchitecture
from edgedec.models._kinds import decoder, kind
from edgedec.plugins import Family
from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class Through:
    """A layer that rows of a tensor go through. rows: of its matrix `weight` [size, in], and of `bias` if it has one;
    norm: the weight and the bias of a LayerNorm before it, with `eps`."""

    weight: str
    rows: tuple[int, int]
    size: int
    bias: str = ""
    norm: tuple[str, str] | None = None
    eps: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Its tensors."""
        return tuple(name for name in (self.weight, self.bias, *(self.norm or ())) if name)

    def renamed(self, name: Callable[[str], str]) -> Through:
        norm = None if self.norm is None else (name(self.norm[0]), name(self.norm[1]))
        return replace(self, weight=name(self.weight), bias=name(self.bias) if self.bias else "", norm=norm)


@dataclass(frozen=True)
class Part:
    """A piece of a checkpoint tensor: its name, a range of its rows (None: all of them), and how a value x is read:
    times * x + add, with exp(x) for x if `exp` (Gemma stores norms less 1, Mamba log(-a)).

    `flat`: a tensor of more than two axes is read as the matrix [product of all but the last, last], such as experts
    [E, 2I, H] as [E * 2I, H], or a depthwise convolution [C, 1, K] as [C, K]; `vector`: as one of all its values.

    `transposed`: these rows are the columns of what is meant. `halves` (size, first, count): of each `size` rows of
    what is read, those from `first` to `first + count` are stored in pairs, a0 b0 a1 b1 .., and meant as halves, a0 a1
    .. b0 b1 ..: heads whose neighbouring channels turn together, or a gate and an up side by side. `in_turn` (groups,
    width): of each row the columns lie in pieces of `width`, the first of each group, then the second of each, and are
    meant group by group. `beside`: so many matrices lie side by side in it, and are meant one below another.

    `ones`: as many ones as a row has values, or as `rows` says: the weight of a norm that has none. `through`: a layer
    that the rows go through, whose outputs are meant.

    `plus`: the product of these two tensors is added (the low-rank adapter of one use of shared weights); `left`: this
    matrix is multiplied by it from the left (two matrices with nothing between them). `each`: the first row of this
    tensor is added to each row.
    """

    name: str
    rows: tuple[int, int] | None = None
    add: float = 0.0
    times: float = 1.0
    exp: bool = False
    flat: bool = False
    vector: bool = False
    transposed: bool = False
    halves: tuple[int, int, int] | None = None
    in_turn: tuple[int, int] | None = None
    beside: int = 1
    ones: bool = False
    through: Through | None = None
    plus: tuple[str, ...] = ()
    left: str = ""
    each: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that it is made of."""
        others = (*(self.through.names if self.through else ()), *self.plus, self.left, self.each)
        return (self.name, *(name for name in others if name))

    def renamed(self, name: Callable[[str], str]) -> Part:
        """The same of tensors under the names that `name` gives."""
        through = None if self.through is None else self.through.renamed(name)
        left, each = (name(one) if one else "" for one in (self.left, self.each))
        plus = tuple(map(name, self.plus))
        return replace(self, name=name(self.name), through=through, plus=plus, left=left, each=each)

    @property
    def moved(self) -> bool:
        """Whether rows or columns are read in another order than they are stored in."""
        return self.transposed or self.halves is not None or self.in_turn is not None or self.beside > 1

    @property
    def plain(self) -> bool:
        """Whether its rows are stored rows, but for a factor."""
        return not (self.add or self.exp or self.moved or self.ones or self.product)

    @property
    def multiplied(self) -> bool:
        """Whether a low-rank adapter of the tensor is none of the weight: other matrices multiply it."""
        return bool(self.left or self.through)

    @property
    def product(self) -> bool:
        """Whether products with other tensors make it."""
        return len(self.names) > 1


Source = tuple[Part, ...]
"""Parts stacked by rows: the checkpoint side of one weight of a bundle."""


@dataclass(frozen=True)
class Fills:
    """How the authors of a diffusion language model decode it (`DiffusionFacts` of the manifest). block: their usual
    size; block_key: the config's entry for another; mask: the token in their code, where neither config nor tokenizer
    names one."""

    shift: bool
    context: Literal["causal", "block", "full"]
    block: int
    block_key: str = ""
    mask: int | None = None


@dataclass(frozen=True)
class ArchitectureFacts:
    """What a file of this folder declares. ignored: regular expressions of checkpoint tensors that the model does not
    need; diffusion: of a diffusion language model; prefixes: of names in checkpoints that were saved with a head, where
    `weights` has none; encodes: it is of text encoders only; terms: the dense layer, the norm and the bias of its head
    over the vocabulary; renames: parts of names and what stands in a checkpoint that lacks the name; shown: tensors of
    a checkpoint, and the entries of its config that they make true."""

    ignored: tuple[str, ...] = ()
    diffusion: Fills | None = None
    prefixes: tuple[str, ...] = ()
    encodes: bool = False
    terms: tuple[str, str, str] | None = None
    renames: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()


# Names that configs have for a file: those with capitals, and one that other libraries use for LLaDA-MoE.
_ALIASES = {"Dream": "dream", "Fast_dLLM_Qwen": "fast_dllm_qwen", "lladamoe": "llada_moe"}
_ALIASES["modernbert-decoder"] = "modernbert_decoder"
_ALIASES["kimi_k2"] = "deepseek_v3"  # whose code it is
FAMILY = Family("edgedec.models", "model_type", facts=ArchitectureFacts, error=CheckpointError, aliases=_ALIASES)


class Architecture(Protocol):
    """What a file of this folder provides."""

    FACTS: ArchitectureFacts

    def spec(self, config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
        """The spec that `config` describes. `context`: another context length than the usual one, which is
        `max_position_embeddings`, or the original length if the rope has a short and a long form."""

    def weights(self, spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
        """Every name of `spec.tensors()` with the checkpoint tensors it is stacked from. Multipliers of the config that
        have no place in a spec are in the parts."""


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture file for `config["model_type"]`."""
    name = config.get("model_type")
    if name is None and config.get("architectures") == ["MiniCPMForCausalLM"]:
        name = "minicpm"  # configs of BlockFFN name the class alone
    if name == "bert" and config.get("position_embedding_type") == "alibi":
        name = "jina_bert_v2"  # whose configs have BERT's type
    if name == "llada" and config.get("num_experts"):
        name = "llada_moe"  # as its authors publish it
    if not isinstance(name, str):
        raise CheckpointError(f"config.json: model_type must be a string, found {name!r}")
    if name not in FAMILY:
        raise UnknownArchitecture(
            f"config.json: model_type {name!r} ({kind(config)}) is not one of {', '.join(FAMILY.names())}",
            decoder(config),
        )
    return cast(Architecture, FAMILY.file(name))
