"""Perplexity of a bundle's model with fewer key and value heads, before and after a training that recovers.

    python tests/bench/kv_heads.py nano --train stories.txt --test other.txt --heads 75%,1 --steps 150

--train: whose first tokens choose the heads, and what is trained on; --test: whose first tokens are measured, in
windows of 256. Both computed with float weights made from the bundle's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import edgedec
from edgedec.export.kv_heads import Read
from edgedec.export.kv_heads_text import smaller_heads
from edgedec.export.recovery import RecoveryPlan, recover
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one
from edgedec.runtimes.reference import Reference, _Widened
from edgedec.spec import ModelSpec

WINDOW, CHOSEN_ON, MEASURED = 256, 512, 1536


def perplexity(spec: ModelSpec, read: Read, ids: NDArray[np.int64]) -> float:
    runtime, lost = Reference(spec, read), []
    for part in np.split(ids, len(ids) // WINDOW):
        call = Call(Rows.chain(part, 0), runtime.new_cache(WINDOW), outputs=ALL_LOGITS)
        logits = forward_one(runtime, call).logits[:-1].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        lost.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(WINDOW - 1), part[1:]])
    return float(np.exp(np.concatenate(lost).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--heads", default="75%,50%")
    parser.add_argument("--steps", type=int, default=0)
    args = parser.parse_args()
    model = edgedec.open(args.bundle)
    spec, read, encode = model.spec, _Widened(model.bundle), model.tokenizer.encode
    ids = np.array(encode(args.test.read_text("utf-8")[: 8 * MEASURED])[:MEASURED])
    chosen_on = np.array(encode(args.train.read_text("utf-8")[: 8 * CHOSEN_ON])[:CHOSEN_ON])
    print(f"{args.bundle}: {perplexity(spec, read, ids):.2f}")
    for heads in args.heads.split(","):
        few = smaller_heads(spec, float(heads[:-1]) / 100 if heads.endswith("%") else int(heads), read, chosen_on)
        kept = [block.n_kv_heads for block in few.spec.attention.values()]
        print(f"{heads} {kept}: {perplexity(few.spec, few.read, ids):.2f}", end="", flush=True)
        if args.steps:
            plan = RecoveryPlan(minutes=600, steps=args.steps, threads=1)
            said = recover(few, read, [args.train], encode, plan, lambda *_: None)
            divergence = f"divergence {said['kl_before']:.3f} -> {said['kl_after']:.3f}"
            print(f", after {args.steps} updates {perplexity(few.spec, few.read, ids):.2f} ({divergence})", end="")
        print()


if __name__ == "__main__":
    main()
