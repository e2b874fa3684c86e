"""How many rows of a head an exact screening by k-means bounds has to read, and what a head of codes does to a model.

    python tests/bench/screening.py nano stories.txt [--codes 32,128,512] [--tokens 512]

For each number of codes: the share of the head's rows (codes counted) that greedy and top-40 decoding read at the
states of the text, and the perplexity of the lossy form beside the whole head's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.export.passes._fitness import log_probabilities
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.vq import clustered
from edgedec.text.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("text", type=Path)
    parser.add_argument("--codes", default="32,128,512")
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    bundle = Bundle.open(find(args.bundle))
    spec, ids = (
        bundle.spec,
        Tokenizer.load(bundle.file(str(bundle.manifest.text.tokenizer))).encode(args.text.read_text()),
    )
    texts = Statistics((np.array(ids[: args.tokens]),))
    run = texts.run(spec, lambda name, start, stop: bundle.rows(name, start, stop))
    for b in range(spec.n_blocks):
        run.advance(b)
    states, head = run.normed(0), bundle.rows("embed" if spec.tied else "head")
    following = ids[1 : len(states) + 1]

    def perplexity(rows: np.ndarray) -> float:
        found = log_probabilities(states @ rows.T)[np.arange(len(following)), following]
        return float(np.exp(-found.mean()))

    print(f"whole head: perplexity {perplexity(head):.3f}")
    for count in map(int, args.codes.split(",")):
        codes = clustered(head, count)
        shares = [np.mean([count + codes.most(head, h, k)[1] for h in states[::4]]) / len(head) for k in (1, 40)]
        lossy = perplexity(codes.rows[codes.of])
        print(f"{count} codes: greedy reads {shares[0]:.1%}, top 40 {shares[1]:.1%}; lossy perplexity {lossy:.3f}")


if __name__ == "__main__":
    main()
