"""What nano-block and nano-canvas learn from: a checkpoint to begin with, and texts. `edgedec train-diffusion` does the
rest.

python models/nano/diffusion.py --text TEXTS --work build/nano-block

writes, into the work folder, `hf.nano`: nano's bundle as a checkpoint (its int8 weights as floats, as no others were
kept), and `texts.jsonl`: stories, answers and copies as nano's last training had them, and lists. With `--kind canvas`
documents that fit a canvas. The commands are in README.md.
"""

import argparse
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import finetune
import lists
import model
import prompts
from programs import programs
from reading import TrainingRecord

import export

SEED, CANVAS = 31, 256


class Texts:
    """Endless documents: stories, answers and copies as nano's last training had them, and lists."""

    def __init__(self, text, work, seed):
        stories, self.tok = finetune.prepared(text, work)
        self.mix = finetune.Mix(stories, programs(), prompts.prose(text), self.tok, TrainingRecord(work))
        self.rng = random.Random(seed)

    def lines(self):
        """As `train-diffusion` reads them."""
        while True:
            made = [line for each in self.mix.encoded(self.rng) for line in turns(self.tok, each)]
            made += [asked(self.rng, i) for i in range(2 * len(made) // 3)]
            self.rng.shuffle(made)
            yield from made


def asked(rng, number):
    """A question about a list; every fourth is about several, answered one by one and then together."""
    if number % 4:
        prompt, answer = lists.lesson(rng)
        return {"prompt": prompt, "answer": answer}
    prompt, told = lists.parts(rng)
    *parts, answer = told.split("\n")
    return {"prompt": prompt, "parts": parts, "answer": answer}


def turns(tok, ids):
    """A document's parts: a text, or a line for each answer, with all that is before it as its prompt.

    given a, learned b, given c, learned d: {a: b}, {a b c: d}
    """
    ids = ids[1:] if len(ids) and ids[0] == 0 else ids  # each begins with the token that the tokenizer adds
    given = ids <= -model.MASK
    plain = np.where(given, -model.MASK - ids.astype(int), ids)
    if not given.any():
        return [{"text": tok.decode(plain.tolist())}]
    edges = [0, *(np.flatnonzero(given[1:] != given[:-1]) + 1).tolist(), len(ids)]
    runs = [(given[a], a, b) for a, b in pairwise(edges) if b > a]
    return [
        {"prompt": tok.decode(plain[:a].tolist()), "answer": tok.decode(plain[a:b].tolist())}
        for asked, a, b in runs
        if not asked and a
    ]


def fits(tok, line):
    return len(tok.encode("".join("".join(value) for value in line.values())).ids) < CANVAS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument("--work", type=Path, required=True, help="where checkpoint and texts go")
    parser.add_argument("--kind", choices=("block", "canvas"), default="block", help="what is filled (default block)")
    parser.add_argument("--documents", type=int, default=60_000, help="lines of texts (default 60000)")
    return parser.parse_args()


def main(args):
    args.work.mkdir(parents=True, exist_ok=True)
    texts = Texts(args.text, args.work, SEED)
    export.folder(export.from_bundle(finetune.BUNDLE), args.work, "hf.nano")
    lines = texts.lines()
    with open(args.work / "texts.jsonl", "w") as file:
        for _ in range(args.documents):
            line = next(lines)
            while args.kind == "canvas" and not fits(texts.tok, line):
                line = next(lines)
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main(arguments())
