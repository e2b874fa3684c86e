"""The numbers by which the library knows formats, kinds and errors."""

from __future__ import annotations

FORMATS = {
    **{"f32": 1, "f16": 2, "int8": 3, "int4": 4, "int3": 5, "int2": 6},
    **{"int5": 7, "int6": 8, "nl4": 9, "uint2": 10, "mx4": 11},
}
LAYOUTS = {"rows": 0, "interleave16": 1}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "clamped_swiglu": 4, "relu2": 5, "xielu": 6}
NORMS = {"none": 0, "rms": 1, "layer": 2, "scale": 3}
PART_NORMS = {"none": 0, "plain": 1, "rms": 2}
QK_NORMS = {"none": 0, "head": 1, "full": 2, "heads": 3}
KINDS = {
    "attention": 1,
    "mlp": 2,
    "moe": 3,
    "ssm": 4,
    "power_law": 6,
    "latent": 7,
    "s6": 9,
    "conv": 10,
    "delta": 11,
    "shared_attention": 12,
    "lookup": 13,
    "rwkv7": 14,
    "channel_mix": 15,
    "gmu": 16,
    "altup": 17,
    "laurel": 18,
    "pre_router": 19,
}
ALTUP_STEPS = {"enter": 0, "predict": 1, "correct": 2, "leave": 3}
ROUTERS = {"softmax": 0, "softmax_topk": 1, "sigmoid": 2, "sparsemixer": 3, "relu": 4, "given": 5}
# Error messages by status code of the library.
MEMORY, FULL, NO_FILE = -1, 6, 17
ERRORS = {
    MEMORY: "not enough memory",
    1: "a number of rows that cannot be",
    2: "a token outside the vocabulary",
    3: "a position outside the model's context",
    4: "a block that the model or the call does not have",
    5: "rows without tokens or hidden states",
    FULL: "rows that do not fit the cache",
    7: "a parent that does not come before its row",
    8: "a cache of another engine, model or format",
    9: "rows that are not pending",
    10: "row numbers that do not ascend",
    11: "two sequences for one cache: join their rows to a tree",
    12: "a group that cannot be",
    14: "slots that the block does not hold",
    15: "content that is not of such a cache",
    16: "a view that cannot be",
    18: "a draw from a row that has no logits of the whole vocabulary",
    19: "a block that reads what another keeps, which was not run on these rows before",
    20: "a type of token that the model does not have",
    NO_FILE: "no file for cache pages: the folder cannot be written, or its disk is full",
}
