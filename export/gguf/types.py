"""ggml's types of tensors by number: how many values share a block, and how many bytes it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.bundle.integers import Integers
from edgedec.bundle.manifest import WeightFormat

ALIGNMENT = 32
BLOCK, SUPER = 32, 256


@dataclass(frozen=True)
class GgmlType:
    """A type of tensors. block: values that are stored together in `size` bytes."""

    number: int
    name: str
    block: int
    size: int


F32, F16 = GgmlType(0, "F32", 1, 4), GgmlType(1, "F16", 1, 2)
Q4_0, Q8_0 = GgmlType(2, "Q4_0", BLOCK, 2 + 16), GgmlType(8, "Q8_0", BLOCK, 2 + 32)
MXFP4 = GgmlType(39, "MXFP4", BLOCK, 1 + 16)
# Each can be read (`dequantize.py`).
READABLE = (
    F32,
    F16,
    Q4_0,
    GgmlType(3, "Q4_1", BLOCK, 4 + 16),
    GgmlType(6, "Q5_0", BLOCK, 2 + 4 + 16),
    GgmlType(7, "Q5_1", BLOCK, 4 + 4 + 16),
    Q8_0,
    GgmlType(10, "Q2_K", SUPER, 16 + 64 + 4),
    GgmlType(11, "Q3_K", SUPER, 32 + 64 + 12 + 2),
    GgmlType(12, "Q4_K", SUPER, 4 + 12 + 128),
    GgmlType(13, "Q5_K", SUPER, 4 + 12 + 32 + 128),
    GgmlType(14, "Q6_K", SUPER, 128 + 64 + 16 + 2),
    GgmlType(20, "IQ4_NL", BLOCK, 2 + 16),
    GgmlType(23, "IQ4_XS", SUPER, 2 + 2 + 4 + 128),
    GgmlType(30, "BF16", 1, 2),
    MXFP4,
)
BY_NUMBER = {kind.number: kind for kind in READABLE}
BY_NAME = {kind.name: kind for kind in READABLE}
# Unsupported types, so that errors can name them.
OTHERS = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
    33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
# The types whose blocks are a bundle's blocks of 32: an integer for each weight, a scale, and of some a minimum.
KEPT: dict[str, tuple[Literal["int4", "int8"], ...]] = {
    "Q4_0": ("int4",),
    "Q8_0": ("int8",),
    **dict.fromkeys(("Q4_1", "Q4_K"), ("int4", "int8")),
    **dict.fromkeys(("Q5_1", "Q5_K"), ("int8",)),
}
# Those with a least value, and the number in the middle of theirs.
LEAST = {"Q4_1": 8, "Q4_K": 8, "Q5_1": 16, "Q5_K": 16}
# The types whose integers and scales have a format of their own in bundles. Those in `PARTED` have scales in two
# levels, which are kept as well; the scales of the others become one float16 for a block.
OWN: dict[str, Integers] = {
    "Q2_K": "uint2",
    "Q3_K": "int3",
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), "int5"),
    "Q6_K": "int6",
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), "nl4"),
    "MXFP4": "mx4",
}
PARTED = ("Q2_K", "Q3_K", "Q6_K")
WRITTEN: dict[str, GgmlType] = {"f32": F32, "f16": F16, "int4": Q4_0, "int8": Q8_0}
# The closest format that any weights are rounded to; floats get the default of exports.
SUGGESTED: dict[str, WeightFormat] = {
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4"), "int4"),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"), "int8"),
}
# Types that `bench formats` has beside ours: those that are written and read, but that of gpt-oss; and llama.cpp's of
# fewer bits.
PEER_TYPES = {
    kind.name: kind
    for kind in (
        *(one for one in READABLE if one.block > 1 and one is not MXFP4),
        GgmlType(16, "IQ2_XXS", SUPER, 2 + 64),
        GgmlType(17, "IQ2_XS", SUPER, 2 + 64 + 8),
        GgmlType(22, "IQ2_S", SUPER, 2 + 64 + 8 + 8),
        GgmlType(18, "IQ3_XXS", SUPER, 2 + 96),
        GgmlType(21, "IQ3_S", SUPER, 2 + 64 + 8 + 32 + 4),
    )
}
