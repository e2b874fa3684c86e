"""ModelSpec: the computation of a model, as explicit facts for every runtime.

A model is an embedding, a stack of layers and a head. A layer is a tuple of blocks; a block is a frozen dataclass of
one kind (one file each here) that owns its dimensions and its tensors. The blocks of all layers are numbered in
order, so a slice of the stack is an ascending sequence of block numbers: `spec.span(3, 5)` are the blocks of layers 3
and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, norm_tensors, require_sizes
from edgedec.spec.altup import AltUp, check_streams
from edgedec.spec.attention import Attention
from edgedec.spec.branches import check_branches
from edgedec.spec.conv import Conv
from edgedec.spec.delta import Delta
from edgedec.spec.encoder import Dense, EncoderEntry, Output, check_encoder
from edgedec.spec.gmu import Gmu, check_memories
from edgedec.spec.head import HeadLayer, check_head
from edgedec.spec.latent import LatentAttention
from edgedec.spec.laurel import Laurel
from edgedec.spec.lookup import Lookup, check_lookups
from edgedec.spec.mlp import Mlp
from edgedec.spec.moe import LANES, Moe
from edgedec.spec.opaque import Opaque
from edgedec.spec.power_law import PowerLaw
from edgedec.spec.pre_router import PreRouter, check_given
from edgedec.spec.rope import Rope, check_ropes
from edgedec.spec.rwkv7 import ChannelMix, Rwkv7, check_rwkv
from edgedec.spec.s6 import S6
from edgedec.spec.shared_attention import SharedAttention, check_shared
from edgedec.spec.ssm import Ssm

__all__ = [
    "KV_FORMATS",
    "OUTER",
    "S6",
    "WEIGHT_FORMATS",
    "Activation",
    "AltUp",
    "Attention",
    "Block",
    "ChannelMix",
    "Conv",
    "Delta",
    "Dense",
    "EncoderEntry",
    "Gmu",
    "HeadLayer",
    "LatentAttention",
    "Laurel",
    "Lookup",
    "Mlp",
    "ModelSpec",
    "Moe",
    "Norm",
    "Opaque",
    "Output",
    "PowerLaw",
    "PreRouter",
    "Rope",
    "Rwkv7",
    "Shapes",
    "SharedAttention",
    "Ssm",
    "Stateful",
    "scales_state",
]

KV_FORMATS = ("f32", "f16", "int8", "int4")
# The matrices outside blocks: the first and the last are only looked up, a row a token.
OUTER = frozenset(("embed", "head", "head_layer", "lookup"))
WEIGHT_FORMATS = ("f32", "f16", "int8", "int4", "int3", "int2")
# A union in a manifest is told apart by `kind`.
_Slotted = Attention | LatentAttention | PowerLaw | PreRouter | SharedAttention
_Keeping = _Slotted | ChannelMix | Conv | Delta | Rwkv7 | S6 | Ssm
Block = _Keeping | AltUp | Gmu | Laurel | Lookup | Mlp | Moe | Opaque
# Blocks that keep a state of fixed size: the last inputs of a convolution, and a matrix a head.
Stateful = ChannelMix | Conv | Delta | Rwkv7 | S6 | Ssm


def scales_state(block: Block) -> bool:
    """Whether the state is multiplied by a learned number after what the block adds."""
    return isinstance(block, Lookup | Mlp | Moe) and block.state_scale


@dataclass(frozen=True)
class ModelSpec:
    """The whole arithmetic of a model. A block makes after(x + post_norm(f(norm(x)))) of the hidden state x. causal: a
    row sees no later one; in an encoder all rows of a text see each other. entry: what becomes of embeddings
    before the first block; output: of a text encoder (both `spec.encoder`); head_bias: of the logits; head_layer: what
    becomes of the normed state before them (`spec.head`)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    context_length: int
    layers: tuple[tuple[Block, ...], ...]
    norm_eps: float
    tied: bool
    ropes: tuple[Rope, ...] = field(default=())
    final_norm: Norm = "rms"
    final_softcap: float = 0.0
    embed_scale: float = 1.0
    causal: bool = True
    entry: EncoderEntry | None = None
    output: Output | None = None
    head_bias: bool = False
    head_layer: HeadLayer | None = None

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all layers, in order: a block's number is its place here."""
        return tuple(block for layer in self.layers for block in layer)

    @cached_property
    def attention(self) -> dict[int, Attention]:
        """The attention blocks by number."""
        return {b: block for b, block in enumerate(self.blocks) if isinstance(block, Attention)}

    @cached_property
    def recurrent(self) -> dict[int, Stateful]:
        """The blocks by number that keep a state of fixed size."""
        return {b: block for b, block in enumerate(self.blocks) if isinstance(block, Stateful)}

    @cached_property
    def ssm(self) -> dict[int, Ssm]:
        """Those of Mamba-2 by number."""
        return {b: block for b, block in enumerate(self.blocks) if isinstance(block, Ssm)}

    @cached_property
    def paired(self) -> bool:
        """Whether any block reads the embedding of a row's token besides the state."""
        return any(isinstance(block, Lookup) or getattr(block, "paired", False) for block in self.blocks)

    @cached_property
    def shared(self) -> dict[int, SharedAttention]:
        """The blocks by number that read the slots of others."""
        return {b: block for b, block in enumerate(self.blocks) if isinstance(block, SharedAttention)}

    @cached_property
    def owners(self) -> dict[int, int]:
        """For each block that reads what an earlier one kept of the same rows, slots, values or experts, the number of
        that one."""
        values = {b: block.values_of for b, block in enumerate(self.blocks) if isinstance(block, Gmu | Rwkv7)}
        slots = {b: block.slots_of for b, block in self.shared.items()}
        given = {b: block.given_by for b, block in enumerate(self.blocks) if isinstance(block, Moe) and block.given}
        return slots | given | {b: owner for b, owner in values.items() if owner is not None}

    @cached_property
    def lookups(self) -> dict[int, range]:
        """The blocks by number that read a token's values of their own, and where these lie in a row of the table."""
        found, start = dict[int, range](), 0
        for b, block in enumerate(self.blocks):
            if isinstance(block, Lookup | PreRouter):
                found[b] = range(start, start + block.size)
                start += block.size
        return found

    @cached_property
    def altups(self) -> dict[int, AltUp]:
        """The blocks by number that keep streams beside the state, the first and the last of which enter and leave."""
        return {b: block for b, block in enumerate(self.blocks) if isinstance(block, AltUp)}

    def width(self, block: int) -> int:
        """Values of a row's hidden state after a block, streams included; -1: as it enters the first."""
        inside = self.altups and min(self.altups) <= block < max(self.altups)
        return self.hidden_size * (1 + self.altups[min(self.altups)].streams if inside else 1)

    @cached_property
    def keeping_layers(self) -> int:
        """How many layers there are up to the last that keeps anything of a row for later ones."""
        reading = AltUp | Gmu | Laurel | Lookup | Mlp | Moe | SharedAttention
        keeps = [i for i, layer in enumerate(self.layers) if not all(isinstance(block, reading) for block in layer)]
        return max(keeps, default=-1) + 1

    @cached_property
    def encoder(self) -> bool:
        """Whether it is a text encoder whose blocks are other than a decoder's, besides what becomes of their rows."""
        after = any(block.after != "none" for block in self.blocks)
        return not self.causal or (self.output is not None and (self.entry is not None or after))

    @cached_property
    def opaque(self) -> bool:
        """Whether all of its arithmetic is inside a runtime's graph, without known weights."""
        return any(isinstance(block, Opaque) for block in self.blocks)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of blocks that occur, sorted."""
        return tuple(sorted({block.kind for block in self.blocks}))

    @cached_property
    def original_length(self) -> int:
        """Texts of more tokens have the ropes' second set of frequencies (`spec.rope`); 0: there is one set."""
        return max((rope.original for rope in self.ropes), default=0)

    @property
    def positions(self) -> int:
        """The positions that the ropes' tables have."""
        return self.original_length + self.context_length

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_blocks(self) -> int:
        return len(self.blocks)

    @property
    def windows(self) -> tuple[tuple[int | None, int], ...]:
        """The distinct (window, sinks) of the attention blocks, in order of first use."""
        return tuple(dict.fromkeys((block.window, block.sinks) for block in self.attention.values()))

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The first block of each layer, and the number of all blocks."""
        starts = [0]
        for layer in self.layers:
            starts.append(starts[-1] + len(layer))
        return tuple(starts)

    def span(self, start: int = 0, stop: int | None = None) -> range:
        """The block numbers of layers start to stop-1; of all layers by default."""
        stop = self.n_layers if stop is None else stop
        return range(self._starts[start], self._starts[stop])

    def layer_of(self, block: int) -> int:
        """The layer that a block is part of."""
        return next(i for i in range(self.n_layers) if self._starts[i] <= block < self._starts[i + 1])

    def check(self, where: str = "spec") -> ModelSpec:
        """BundleCorrupt for impossible sizes, before anything is allocated by them."""
        names = ("vocab_size", "hidden_size", "context_length", "n_layers")
        require_sizes(where, {name: getattr(self, name) for name in names})
        for i, layer in enumerate(self.layers):
            if not layer:
                raise BundleCorrupt(f"{where}.layers[{i}]: has no blocks")
            for j, block in enumerate(layer):
                block.check(f"{where}.layers[{i}][{j}]")
                if isinstance(block, Moe) and self.hidden_size % LANES:
                    raise BundleCorrupt(f"{where}.hidden_size: {self.hidden_size} is not a multiple of {LANES}")
        if self.opaque and (self.ropes or any(not isinstance(block, Opaque) for block in self.blocks)):
            raise BundleCorrupt(f"{where}.layers: opaque layers beside others, or beside ropes")
        check_ropes(self, where)
        check_encoder(self, where)
        check_branches(self, where)
        check_shared(self, where)
        for check in (check_lookups, check_rwkv, check_memories, check_streams, check_given, check_head):
            check(self, where)
        return self

    def tensors(self) -> Shapes:
        """Every weight by its name in a bundle, with its shape; matrices are (out, in)."""
        return dict(self.shapes)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """`tensors`, to be read only."""
        if self.opaque:
            return {}
        width = (self.entry.width if self.entry else 0) or self.hidden_size
        shapes: Shapes = {"embed": (self.vocab_size, width)}
        if self.entry is not None:
            shapes |= self.entry.tensors(self.hidden_size)
        if self.lookups:
            shapes["lookup"] = (self.vocab_size, sum(map(len, self.lookups.values())))
        for b in range(self.n_blocks):
            shapes |= self.block_tensors(b)
        shapes |= norm_tensors(self.final_norm, "final_norm", self.hidden_size)
        if self.output is not None:
            shapes |= self.output.tensors(self.hidden_size, self.vocab_size)
        elif not self.tied:
            shapes["head"] = (self.vocab_size, self.hidden_size)
        if self.head_bias:
            shapes["head_bias"] = (self.vocab_size,)
        if self.head_layer is not None:
            shapes |= self.head_layer.tensors(self.hidden_size)
        return shapes

    def block_tensors(self, b: int) -> Shapes:
        """The weights of block b by their names in a bundle."""
        return {f"blocks.{b}.{name}": shape for name, shape in self.blocks[b].tensors(self.hidden_size).items()}

    @cached_property
    def matrices(self) -> frozenset[str]:
        """The names of the tensors that are quantized: all others are kept as float32."""
        inner = {
            f"blocks.{b}.{name}" for b, block in enumerate(self.blocks) for name in block.matrices(self.hidden_size)
        }
        return frozenset(inner | OUTER)
