"""How many of the experts that rows choose a bundle's blocks leave out on a text (`--passes drop_experts`).

python tests/bench/dropped_experts.py BUNDLE stories.txt [--tokens 2048]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from edgedec.bundle import Bundle
from edgedec.export.passes._routing import routed
from edgedec.export.passes._statistics import Statistics
from edgedec.runtimes.reference.moe import left_out
from edgedec.text.tokenizer import Tokenizer

_LENGTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args()
    bundle = Bundle.open(args.bundle)
    encode = Tokenizer.load(bundle.file(str(bundle.manifest.text.tokenizer))).encode
    ids = np.array(encode(args.text.read_text("utf-8"))[: args.tokens])
    texts = Statistics(tuple(ids[at : at + _LENGTH] for at in range(0, len(ids), _LENGTH)))
    chosen = dropped = 0
    for b, block, found in routed(texts, bundle.spec, bundle.rows):
        out = sum(int(left_out(block, text.shares, text.read).sum()) for text in found)
        every = sum(text.experts.size for text in found)
        print(f"block {b}: {out} of {every} ({out / every:.1%}), below {block.drop_below:.3f}")
        chosen, dropped = chosen + every, dropped + out
    print(f"all: {dropped / chosen:.1%}")


if __name__ == "__main__":
    main()
