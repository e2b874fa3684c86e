"""The manifest `edgedec.json`: the contents of a bundle, as frozen dataclasses.

`docs/bundle-format.md` is the specification; this file implements it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from edgedec.bundle.integers import code_bytes, is_integer
from edgedec.bundle.modes import ModeFacts
from edgedec.spec import ModelSpec

FORMAT = "edgedec-bundle"
VERSION = 9
WITH_ENCODERS = 8  # without offsets, and kinds and facts that `spec.newer` knows; still written where there are none
WITH_DIFFUSION = 7  # without int3, int2 and the facts of a text encoder, and still written where there are none
WITH_ROPES = 6  # without a diffusion model's facts, and still written where there are none
WITH_ZEROS = 5  # without a second set of ropes
OLDEST = 4  # and without zero points
MANIFEST = "edgedec.json"
TOKEN_COUNTS = "token_counts.bin"  # uint32 [vocab_size]: how often the model generated each token; may be missing
LATENT_HEAD = "latent_head.onnx"  # of `--search colar` (`latent_head.py`); may be missing
READ_GRAMS = "read_grams.bin"  # what the model and its heads have read (`read_grams.py`); may be missing
LANES = 16

WeightFormat = Literal["f32", "f16", "int8", "int4", "int3", "int2", "int5", "int6", "nl4", "uint2", "mx4"]
SUPER = 256  # weights of a scale that has parts
KVFormat = Literal["f32", "f16", "int8", "int4"]
WeightLayout = Literal["rows", "interleave16"]


@dataclass(frozen=True)
class Tensor:
    """One weight in the weights file. `data` and `scales` are byte offsets, 64-byte aligned.

    int4: uint8 [out, blocks, block/2], low nibble first, value (q - 8) * scale
    int8: uint8 [out, blocks, block],                      value (q - 128) * scale
    int3: uint8 [out, blocks, block * 3/8], bit planes,    value (q - 4) * scale
    int2: uint8 [out, blocks, block/4], a bit plane,       value (2 q - 3) * scale
    int5: uint8 [out, blocks, 20], bit planes,             value (q - 16) * scale; blocks of 32
    nl4: uint8 [out, blocks, 16], low nibble first,        value table[q] * scale; blocks of 32
    mx4: uint8 [out, blocks, 16], a bit plane,             value table[q] * scale; blocks of 32
    int6, uint2, and int3 with parts: below
    all with float16 scales [out, blocks]; f32 and f16 are plain arrays of `shape`. How codes lie in bytes:
    `integers.py`.

    That is the layout `rows`. In `interleave16` the same bytes of 16 rows lie side by side, four and four:
    data [groups, blocks * bytes of a block / 4, 16, 4], scales [groups, blocks, 16] (`interleave.py`).

    zeros (0: none): what stands for zero in each block instead of 8 or 128. int8: uint8 [out, blocks], or interleaved
    [groups, blocks, 16]; int4: two in a byte, [out, ceil(blocks / 2)] low nibble first, or interleaved
    [groups, blocks, 8], rows 0 to 7 of a group in the low nibbles.

    offsets (0: none), instead of zeros, of int4 and int8 in blocks of 32: float16, laid out as the scales; that of a
    block is added to its values. So ggml's types that have a scale and a minimum keep both.

    parts (0: none): scales in two levels, of int3, int6 and uint2 in blocks of 16, as ggml's K types have them. parts
    are int8 [out, blocks], or interleaved [groups, blocks, 16]; scales float16 [out, width / 256], and that of a block
    is the product of both. Of uint2 a part is two nibbles, the low one that of the scale, the high one that of an
    offset; scales are float16 [out, width / 256, 2], a scale and an offset, and its values q * scale + offset.
    int6: uint8 [out, blocks, 12], (q - 32) * scale; uint2: [out, blocks, 4].
    row_scales: all blocks of a row have the same scale, and a row of activations may; of int8 in blocks of 32.
    """

    format: WeightFormat
    shape: tuple[int, ...]
    data: int
    scales: int = 0
    block: int = 0
    layout: WeightLayout = "rows"
    zeros: int = 0
    offsets: int = 0
    parts: int = 0
    row_scales: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.shape[-1] // self.block) if self.block else 0

    @property
    def block_bytes(self) -> int:
        return code_bytes(self.format, self.block) if is_integer(self.format) else self.block

    @property
    def groups(self) -> int:
        """Of 16 rows each; the last may be filled up."""
        return -(-prod(self.shape[:-1]) // LANES)

    @property
    def data_bytes(self) -> int:
        if is_integer(self.format):
            return self._stored_rows * self.blocks * self.block_bytes
        return prod(self.shape) * (4 if self.format == "f32" else 2)

    @property
    def scale_count(self) -> int:
        """Float16 among the scales of a row."""
        return self.shape[-1] // SUPER * (1 + self.low_offsets) if self.parts else self.blocks

    @property
    def low_offsets(self) -> bool:
        """Whether blocks have offsets in parts."""
        return self.parts > 0 and self.format == "uint2"

    @property
    def scale_bytes(self) -> int:
        return self._stored_rows * self.scale_count * 2

    @property
    def part_bytes(self) -> int:
        return self._stored_rows * self.blocks if self.parts else 0

    @property
    def zero_bytes(self) -> int:
        return self._stored_rows * self.zero_row_bytes // 2 if self.zeros else 0

    @property
    def offset_bytes(self) -> int:
        return self.scale_bytes if self.offsets else 0

    @property
    def stored_bytes(self) -> int:
        """Of its data, scales, zero points, offsets and parts."""
        return self.data_bytes + self.scale_bytes + self.zero_bytes + self.offset_bytes + self.part_bytes

    @property
    def zero_row_bytes(self) -> int:
        """Bytes of the zero points of two rows."""
        if self.format == "int8":
            return 2 * self.blocks
        return 2 * -(-self.blocks // 2) if self.layout == "rows" else self.blocks

    def part(self, start: int, stop: int) -> Tensor:
        """Rows start..stop as a tensor of its own; of interleaved ones both are multiples of 16."""
        quantized, (_, *rest) = is_integer(self.format), self.shape
        width = self.blocks * self.block_bytes if quantized else prod(rest) * (4 if self.format == "f32" else 2)
        scales = self.scales + start * self.scale_count * 2 if quantized else 0
        parts = self.parts + start * self.blocks if self.parts else 0
        zeros = self.zeros + start * self.zero_row_bytes // 2 if self.zeros else 0
        offsets = self.offsets + start * self.blocks * 2 if self.offsets else 0
        data = self.data + start * width
        shape = (stop - start, *rest)
        return replace(self, shape=shape, data=data, scales=scales, zeros=zeros, offsets=offsets, parts=parts)

    @property
    def _stored_rows(self) -> int:
        return prod(self.shape[:-1]) if self.layout == "rows" else self.groups * LANES


@dataclass(frozen=True)
class Head:
    """A draft head (`models/heads`): its graph, how many tokens ahead it was trained to guess, and, of those that
    guess tokens, how many tokens it knows and how many it names. layer: an exit's hidden states are those
    after so many layers."""

    file: str
    depth: int
    layer: int = 0
    vocab: int = 0
    top: int = 0


@dataclass(frozen=True)
class DraftFacts:
    """A draft model in the bundle, or a head with layers of its own (`models/drafts`). stack: the manifest of its
    layers, a file of this bundle (empty: it has none); depth: tokens ahead that it was made for; features: blocks of
    the target whose states it reads; networks: files of its dense networks, by use; tokens: a file of the target's
    token of each of its own, int32 (empty: the same); normed: the states pass the target's last norm first; feeds:
    what a drafted row takes from the row before it, the state or the state after the draft's last norm; embeddings: a
    file of trained embeddings, float32 [depth, hidden_size] (empty: none); block: tokens that one pass guesses."""

    depth: int
    stack: str = ""
    features: tuple[int, ...] = ()
    networks: dict[str, str] = field(default_factory=dict)
    tokens: str = ""
    normed: bool = False
    feeds: Literal["state", "normed"] = "state"
    embeddings: str = ""
    block: int = 1

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is named."""
        return tuple(name for name in (self.stack, self.tokens, self.embeddings, *self.networks.values()) if name)


@dataclass(frozen=True)
class Artifact:
    """What one runtime needs besides manifest, weights and tokenizer. `files`: all of it, hashed like the rest;
    `facts`: data for the runtime, which reads it itself. A runtime without an artifact needs none, or cannot open the
    bundle."""

    files: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DiffusionFacts:
    """How a diffusion language model decodes (`edgedec.diffusion`). mask: the token of a position that is not known.
    shift: a row gives the token after its own, as in autoregressive models. context: what a row sees: "causal": what is
    before it, and the whole block that is being filled; "block": whole blocks of the text up to its own; "full":
    everything. block: tokens of a block, the most that the model was trained for."""

    mask: int
    shift: bool = False
    context: Literal["causal", "block", "full"] = "causal"
    block: int = 32


@dataclass(frozen=True)
class EncoderFacts:
    """How texts are given to a text encoder (`edgedec.encoding`). prompts: words in front of a text, by name; prompt:
    the name of the usual one; longest: tokens of a text, 0: the context; dimensions: to which embeddings may be cut
    (Matryoshka), as the checkpoint says; lower: texts are read in lower case."""

    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str = ""
    longest: int = 0
    dimensions: tuple[int, ...] = ()
    lower: bool = False


@dataclass(frozen=True)
class KVScales:
    """Static cache scales for int8 and int4: byte offset in the weights file of f32 [2, n_kv_heads, head_dim] (keys,
    then values; one scale a channel) of each attention block, one after another."""

    int8: int | None = None
    int4: int | None = None


@dataclass(frozen=True)
class Text:
    """Tokenization of text, and the end of generation. `sampling`: the model's default settings."""

    tokenizer: str | None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str | None = None
    sampling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Parity:
    """The bundle beside the float checkpoint on `tokens` tokens of text, per KV format."""

    text: str
    tokens: int
    reference_perplexity: float
    perplexity: dict[str, float]
    kl: dict[str, float]
    top1: dict[str, float]


@dataclass(frozen=True)
class Manifest:
    """The whole of `edgedec.json`."""

    format: str
    version: int
    producer: str
    name: str
    spec: ModelSpec
    weights: str
    quantization: dict[str, str]
    tensors: dict[str, Tensor]
    ropes: tuple[tuple[int, ...], ...]
    kv_formats: tuple[KVFormat, ...]
    kv_scales: KVScales
    text: Text
    files: dict[str, File]
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    parity: Parity | None = None
    source: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    drafts: dict[str, DraftFacts] = field(default_factory=dict)
    diffusion: DiffusionFacts | None = None
    encoder: EncoderFacts | None = None
    modes: ModeFacts | None = None
    # The sha256 of the manifest as it was exported, where files were added to the bundle since.
    origin: str = ""

    @property
    def whole_texts(self) -> bool:
        """Whether a call may be a whole text as one group of rows: of modes, or of a diffusion model's canvas."""
        return self.modes is not None or (self.diffusion is not None and self.diffusion.context == "full")
