"""What a text encoder has besides blocks: what enters the first block, and what becomes of the rows after the last. A
decoder may have the first: GPT-2's learned positions, BLOOM's norm.

Of an encoder the host computes both in float32 (`edgedec.encoding`), so every runtime that runs the blocks runs the
encoder: a text is rows given by their embeddings, and its result the hidden state after the last block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, norm_tensors, require_sizes
from edgedec.spec.relative import LONGEST

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec

Squash = Literal["none", "tanh", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "softmax"]


@dataclass(frozen=True)
class EncoderEntry:
    """What enters the first block: norm(embed[token] + positions[position] + types[type]), and times a matrix with a
    bias if the embedding is narrower than the state. positions, types: rows of the learned tables, 0: none; width: of
    the embedding, 0: as the state.

    conv: a convolution beside the first layer, over so many rows with the row's own in the middle (0: none; DeBERTa-v2
    xlarge): of what enters, e, and the state x after that layer it makes norm(x + activation(conv(e))), a LayerNorm.
    conv_groups: channels read those of their own group."""

    positions: int = 0
    types: int = 0
    norm: Norm = "none"
    width: int = 0
    conv: int = 0
    conv_groups: int = 1
    conv_activation: Squash = "tanh"

    @property
    def by_token(self) -> bool:
        """Whether what enters of a token is known by the token and its position alone, if its type is 0."""
        return not (self.width or self.conv)

    def tensors(self, hidden: int) -> Shapes:
        """Its tensors besides `embed`."""
        width = self.width or hidden
        shapes: Shapes = {"positions": (self.positions, width)} if self.positions else {}
        if self.types:
            shapes["types"] = (self.types, width)
        shapes |= norm_tensors(self.norm, "entry_norm", width)
        if self.width:
            shapes |= {"entry": (hidden, width), "entry_bias": (hidden,)}
        if self.conv:
            shapes |= {"conv": (hidden * hidden // self.conv_groups, self.conv), "conv_bias": (hidden,)}
            shapes |= norm_tensors("layer", "conv_norm", hidden)
        return shapes


@dataclass(frozen=True)
class Dense:
    """A layer of an output: norm(activation(W x + b))."""

    size: int
    bias: bool = True
    activation: Squash = "none"
    norm: Norm = "none"


def squash_of(activation: Activation) -> Squash:
    """The activation of a block as that of an output's layer."""
    if activation == "relu2" or activation == "xielu":
        raise BundleCorrupt(f"an output whose layer has the activation {activation}")
    return activation


@dataclass(frozen=True)
class Output:
    """What becomes of the rows of a text after the final norm.

    kind: "vector", an embedding; "vectors", one a row (late interaction); "terms", a weight of each token of the
    vocabulary (SPLADE); "duplex", `cls` values of the first row, then the weights of the `top` terms of the other rows,
    which are `share` of a product of two (DupMAE); "score", logits of `labels`. pool: the row or the mean of rows that
    goes on; "rows": each. The layers `dense` follow, then, of terms, the embedding's own matrix with a bias; vectors
    are scaled to length 1 if `normalize`. squash: of the logits of a score.
    """

    kind: Literal["vector", "vectors", "terms", "duplex", "score"] = "vector"
    pool: Literal["mean", "cls", "last", "max", "rows"] = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    labels: tuple[str, ...] = ()
    squash: Squash = "none"
    cls: int = 0
    top: int = 0
    share: float = 0.0

    @property
    def of_terms(self) -> bool:
        """Whether the rows become weights of the vocabulary."""
        return self.kind in ("terms", "duplex")

    def width(self, hidden: int) -> int:
        """Values of a vector, or logits."""
        return self.dense[-1].size if self.dense else hidden

    def tensors(self, hidden: int, vocabulary: int) -> Shapes:
        """Its tensors; matrices are (out, in)."""
        shapes: Shapes = {}
        state = hidden
        for i, layer in enumerate(self.dense):
            shapes[f"dense.{i}"] = (layer.size, hidden)
            if layer.bias:
                shapes[f"dense.{i}_bias"] = (layer.size,)
            shapes |= norm_tensors(layer.norm, f"dense.{i}_norm", layer.size)
            hidden = layer.size
        if self.of_terms:
            shapes["terms_bias"] = (vocabulary,)
        return shapes | ({"cls": (self.cls, state), "cls_bias": (self.cls,)} if self.kind == "duplex" else {})


def check_encoder(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for facts of an encoder that do not fit each other."""
    entry, output = spec.entry, spec.output
    if entry is not None:
        require_sizes(f"{where}.entry", {"positions": entry.positions, "types": entry.types, "width": entry.width}, 0)
        if 0 < entry.positions < spec.context_length:
            raise BundleCorrupt(f"{where}.entry.positions: {entry.positions} of a context of {spec.context_length}")
    if entry is not None and entry.conv:
        _check_conv(spec, entry, where)
    if output is not None:
        _check_output(spec, output, where)
    if output is None and not spec.causal:
        raise BundleCorrupt(f"{where}.output: is missing; the model encodes texts")
    if output is None and entry is not None and (entry.types or entry.width or spec.paired):
        raise BundleCorrupt(f"{where}.entry: a decoder has positions and a norm there, no types and no other width")
    if spec.head_bias and output is not None:
        raise BundleCorrupt(f"{where}.head_bias: belongs to a decoder")
    paired = any(block.paired for block in spec.attention.values())
    if any(block.branch for block in spec.blocks) and (output is not None or paired):
        raise BundleCorrupt(f"{where}.branch: belongs to a decoder that reads states only")
    if not spec.causal and (set(spec.kinds) - {"attention", "mlp", "moe"} or spec.original_length):
        raise BundleCorrupt(f"{where}.causal: rows that see later ones in a model of {', '.join(spec.kinds)} blocks")
    if not spec.causal and any(block.sinks for block in spec.attention.values()):
        raise BundleCorrupt(f"{where}.causal: a window with sinks in an encoder")
    if not spec.causal and any(block.sink_logit for block in spec.attention.values()):
        raise BundleCorrupt(f"{where}.causal: a score of no token in an encoder")
    if spec.causal and any(block.distances for block in spec.attention.values()):
        raise BundleCorrupt(f"{where}.causal: scores by distance in a decoder")
    if any(block.relative for block in spec.attention.values()) and (spec.causal or spec.context_length > LONGEST):
        raise BundleCorrupt(f"{where}: disentangled attention in a decoder, or of texts of more than {LONGEST} tokens")


def _check_conv(spec: ModelSpec, entry: EncoderEntry, where: str) -> None:
    require_sizes(f"{where}.entry", {"conv": entry.conv, "conv_groups": entry.conv_groups})
    if entry.conv % 2 == 0 or spec.hidden_size % entry.conv_groups:
        raise BundleCorrupt(f"{where}.entry.conv: {entry.conv} rows, or {entry.conv_groups} groups of channels")
    if spec.causal or entry.conv_activation in ("sigmoid", "softmax"):
        raise BundleCorrupt(f"{where}.entry.conv: in a decoder, or with the activation {entry.conv_activation}")


def _check_output(spec: ModelSpec, output: Output, where: str) -> None:
    for layer in output.dense:
        require_sizes(f"{where}.output.dense", {"size": layer.size})
    if (output.kind == "vectors" or output.of_terms) != (output.pool == "rows"):
        raise BundleCorrupt(f"{where}.output.pool: {output.pool} of {output.kind}")
    if output.kind == "score" and len(output.labels) != output.width(spec.hidden_size):
        raise BundleCorrupt(f"{where}.output.labels: {len(output.labels)} of {output.width(spec.hidden_size)} logits")
    width = (spec.entry.width if spec.entry else 0) or spec.hidden_size
    if output.of_terms and output.width(spec.hidden_size) != width:
        raise BundleCorrupt(f"{where}.output.dense: not as wide as the embedding")
    if output.kind != "duplex" and (output.cls or output.top or output.share):
        raise BundleCorrupt(f"{where}.output: cls, top or share of {output.kind}")
    if output.kind == "duplex":
        fit = 0 < output.cls <= spec.hidden_size and 0 < output.top < spec.vocab_size and 0 <= output.share <= 1
        if not fit:
            raise BundleCorrupt(f"{where}.output: cls {output.cls}, top {output.top}, share {output.share}")
