"""What each part of a model costs in blocks of integers (BCT): KL divergence of weights, inputs of norms, of products,
of the activation and of the softmax, one at a time and together.

    python tests/bench/block_parts.py nano stories.txt [--bits 8,4] [--block 32] [--tokens 512]

"BCT: Block-wise Compression of Transformers"; only its abstract was at hand: everything, activations and the operands
of softmax, GELU and layer norms too, becomes integers in small blocks, symmetric, with scales that are powers of two
("shift"), without retraining, for 7.988x less memory. Bits and block are not in it: 8x of float32 means four bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.export.passes._fitness import Fitness
from edgedec.export.passes._statistics import Statistics
from edgedec.runtimes.reference import attention, mlp
from edgedec.runtimes.reference.numeric import Array, BlockWeights
from edgedec.text.tokenizer import Tokenizer

PARTS = ("weights", "norm inputs", "product inputs", "activation", "softmax")


def in_blocks(x: Array, bits: int, block: int) -> Array:
    """x [..., n] as multiples of the least power of two that reaches each block's largest value; what is not finite
    (masked scores) stays."""
    n = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -n % block)]).reshape(*x.shape[:-1], -1, block)
    finite = np.isfinite(padded)
    most = np.where(finite, np.abs(padded), 0).max(axis=-1, keepdims=True)
    top = 2 ** (bits - 1) - 1
    step = np.exp2(np.ceil(np.log2(np.where(most > 0, most, 1) / top)))
    rounded = np.where(finite, np.clip(np.rint(np.where(finite, padded, 0) / step), -top, top) * step, padded)
    found: Array = rounded.reshape(*x.shape[:-1], -1)[..., :n].astype(np.float32)
    return found


@contextmanager
def rounding(parts: tuple[str, ...], bits: int, block: int) -> Iterator[None]:
    """The reference engine with these parts in blocks, meanwhile."""
    norm, linear, softmax, activation = BlockWeights.norm, BlockWeights.linear, attention.softmax, mlp.activation
    places: dict[str, tuple[Any, str, Any]] = {
        "norm inputs": (BlockWeights, "norm", lambda w, x, *rest: norm(w, in_blocks(x, bits, block), *rest)),
        "product inputs": (BlockWeights, "linear", lambda w, x, *rest: linear(w, in_blocks(x, bits, block), *rest)),
        "softmax": (attention, "softmax", lambda x: in_blocks(softmax(in_blocks(x, bits, block)), bits, block)),
        "activation": (mlp, "activation", lambda x, *kind: activation(in_blocks(x, bits, block), *kind)),
    }
    try:
        for part in parts:
            if part in places:
                setattr(*places[part])
        yield
    finally:
        BlockWeights.norm, BlockWeights.linear = norm, linear  # type: ignore[method-assign]
        attention.softmax, mlp.activation = softmax, activation  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("text", type=Path)
    parser.add_argument("--bits", default="8,4")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    bundle = Bundle.open(find(args.bundle))
    tokenizer = Tokenizer.load(bundle.file(str(bundle.manifest.text.tokenizer)))
    ids = np.array(tokenizer.encode(args.text.read_text("utf-8"))[: args.tokens])
    held = {name: bundle.rows(name) for name in bundle.spec.tensors()}
    fitness = Fitness(bundle.spec, lambda name, a, b: held[name][a:b], Statistics((ids,)))
    for bits in map(int, args.bits.split(",")):
        for parts in [*((part,) for part in PARTS), PARTS]:
            stored = dict(held)
            if "weights" in parts:
                stored |= {n: in_blocks(held[n], bits, args.block) for n in bundle.spec.matrices if n in held}
            with rounding(parts, bits, args.block):
                kl = fitness(lambda name, a, b, of=stored: of[name][a:b], [0])  # type: ignore[misc]
            print(f"{bits} bits, {'all' if parts == PARTS else parts[0]}: KL {kl:.5f}", flush=True)


if __name__ == "__main__":
    main()
