"""Perplexity of a set of adapters on texts of several kinds in turn, beside that of each alone and of their average.

    python tests/bench/routed_adapters.py a.lora b.lora c.lora --text a.txt --text b.txt --text c.txt -m nano

A text of the measurement has a piece of each file's next document, over and over, so that no adapter fits all of it.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import edgedec
from edgedec.bundle.adapter import LoraAdapter, LowRank, open_adapter
from edgedec.bundle.routed import routed


def mixed(files: list[Path], piece: int, turns: int, most: int) -> list[str]:
    """Texts that change after every `piece` characters, `turns` times through all files."""
    texts = [[part[: piece * turns] for part in file.read_text("utf-8").split("<|endoftext|>")] for file in files]
    return [
        "\n".join(text[at * piece : (at + 1) * piece] for at in range(turns) for text in group)
        for group in islice(zip(*texts, strict=False), most)
    ]


def average(adapters: list[LoraAdapter]) -> LoraAdapter:
    """The adapter that adds the mean of what these add."""
    matrices = {}
    for name in adapters[0].matrices:
        low = [adapter.matrices[name] for adapter in adapters]
        b = np.concatenate([pair.b for pair in low], 1) / np.float32(len(low))
        matrices[name] = LowRank(np.concatenate([pair.a for pair in low]), b)
    return LoraAdapter("average", "average", matrices)


def scored(model: edgedec.Model, adapter: Any, text: str) -> list[float]:
    """The log-probabilities of a text's tokens but for the first."""
    session, ids = model.session(speculate="off", adapter=adapter), model.tokenizer.encode(text)
    session.rewrite(ids[:1])
    return session.score(ids[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lora", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, action="append", required=True, help="unseen texts; <|endoftext|> between")
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--piece", type=int, default=200, help="characters")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--limit", type=int, default=20, help="texts")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    model = edgedec.open(args.model, threads=args.threads)
    adapters = [open_adapter(path, model.spec) for path in args.lora]
    ways = {"none": None, **{a.name: a for a in adapters}, "average": average(adapters), "routed": routed(adapters)}
    kinds = {"mixed": mixed(args.text, args.piece, args.turns, args.limit)}
    kinds |= {file.stem: mixed([file], args.piece * args.turns, 1, args.limit) for file in args.text}
    for kind, texts in kinds.items():
        print(f"{kind}: {len(texts)} texts")
        for name, adapter in ways.items():
            scores = [score for text in texts for score in scored(model, adapter, text)]
            print(f"  {name}: perplexity {np.exp(-np.mean(scores)):.2f} ({len(scores)} tokens)", flush=True)


if __name__ == "__main__":
    main()
