"""A variant of nano that finds numbers in texts of up to 4,096 tokens: for `edgedec bench cache`.

python models/nano/recall.py --text TEXTS --work build/nano-recall

nano is not trained to look facts up. This training starts from the bundle: the base of its rotary embeddings is raised
so that they reach four times as far (NTK-aware scaling), and it reads stories, runs of random tokens and two kinds of
lessons: stories with facts between their sentences, and lists of facts, both with questions at the end, of which only
the numbers are learned. Most rows are short and stand at positions spread over the whole context (PoSE, Zhu et al.
2023); only the last ones are 4,096 tokens. Writes `hf.recall`, and exports it to `bundle`. The result is not part of
the project: the same command reproduces it.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

import data
import finetune
import lessons
import model
from optimizer import Optimizer

import export

SEED, CONTEXT, STRETCH, WARMUP, PEAK, DECAY = 31, 4096, 4, 20, 0.4, 0.97
# Of the updates: rows of 512 tokens, then of 1,024, then of 2,048 where they are, then whole contexts.
STAGES = ((0.45, 512, 4096), (0.8, 1024, 4096), (0.92, 2048, 4096), (1.0, CONTEXT, 4096))
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "pink", "brown", "old", "new", "big", "little"]
THINGS = [
    "boat",
    "bear",
    "kite",
    "hat",
    "ball",
    "cake",
    "drum",
    "bird",
    "tree",
    "cup",
    "door",
    "bell",
    "cart",
    "frog",
    "box",
    "dog",
    "cat",
    "car",
    "fish",
    "book",
]
KINDS = ("needles", "pairs", "again", "stories")
WEIGHTS = (3, 5, 1, 2)


def stretch():
    """Have the rotary embeddings of `model` reach `STRETCH` times as far."""
    pairs = model.HD / (model.HD - 2)
    theta = float(round(10000.0 * STRETCH**pairs))
    model.GEOMETRY |= {"rope_theta": theta, "max_position_embeddings": CONTEXT}


class Recall:
    """Rows of any length, of all kinds."""

    def __init__(self, stories, tok):
        self.tok, self.stories = tok, [s for s in stories.real + stories.best if len(s) < 3000]

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def facts(self, rng, n):
        """n different names with a number each."""
        keys = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS] + THINGS
        return [(key, f"{rng.randrange(1000, 10000)}") for key in rng.sample(keys, min(n, len(keys)))]

    def row(self, rng, kind, length):
        """-> int64 [length + 1]: what is only read is stored as `model.MASK` says."""
        if kind == "again":
            made = lessons.again(rng, self.tok.get_vocab_size()).astype(np.int64)
            made = made[-min(len(made), length + 1) :]
        elif kind == "stories":
            made = np.array(self.filler(rng, length + 1), np.int64)
        else:
            made = getattr(self, kind)(rng, length + 1)
        return np.concatenate([made, np.full(length + 1 - len(made), -100)])

    def filler(self, rng, n):
        ids = []
        while len(ids) < n:
            ids += [0, *self.ids(rng.choice(self.stories))]
        return ids[:n]

    def needles(self, rng, n):
        """A story with facts in it, each asked for at the end."""
        phrase = rng.choice((" The secret number of the {} is", " The {} is"))
        facts = self.facts(rng, rng.randint(1, 8))
        said = [self.ids(f"{phrase.format(key)} {number}.") for key, number in facts]
        asked = self.asked(rng, phrase, facts)
        filler = self.filler(rng, n - len(asked) - sum(map(len, said)))
        at, ids = sorted(rng.randrange(1, len(filler)) for _ in facts), list[int]()
        for fact, begin, end in zip([[], *said], [0, *at], [*at, len(filler)], strict=True):
            ids += [*fact, *filler[begin:end]]
        return np.concatenate([-model.MASK - np.array(ids), asked])

    def pairs(self, rng, n):
        """A list of facts; a third of the row asks for some of them."""
        phrase = rng.choice((" The {} is", " The {} is", " The secret number of the {} is"))
        each = len(self.ids(f"{phrase.format('red boat')} 1234."))
        facts = self.facts(rng, rng.randint(4, max(4, min(250, int(0.62 * n / each)))))
        text = "".join(f"{phrase.format(key)} {number}." for key, number in facts)
        read = [0, *self.ids(text)]
        asked = self.asked(rng, phrase, (rng.sample(facts, len(facts)) * 4)[: max(1, int((n - len(read)) / each) - 3)])
        return np.concatenate([-model.MASK - np.array(read), asked])[:n]

    def asked(self, rng, phrase, facts):
        """The facts again, in another order; their numbers are what is learned."""
        ids = []
        for key, number in rng.sample(facts, len(facts)):
            ids += [-model.MASK - token for token in self.ids(phrase.format(key))] + self.ids(f" {number}.")
        return np.array(ids)

    def batch(self, rng, length, tokens):
        """-> int64 [tokens / length, length + 1]"""
        kinds = rng.choices(KINDS, WEIGHTS, k=tokens // length)
        return torch.from_numpy(np.stack([self.row(rng, kind, length) for kind in kinds]))


def spread(rng, length):
    """Positions of a row [length], ascending, in up to four runs somewhere in the context."""
    cuts = sorted(rng.sample(range(1, length), rng.randint(0, 3)))
    gaps = sorted(rng.randint(0, CONTEXT - length) for _ in range(len(cuts) + 1))
    positions = np.arange(length)
    for begin, end, gap in zip([0, *cuts], [*cuts, length], gaps, strict=True):
        positions[begin:end] += gap
    return torch.from_numpy(positions)


def losses(weights, batch, positions):
    """The mean loss of what is to be learned; rows stand at these positions."""
    tokens, targets = model.parted(batch)
    cos, sin = (table[positions] for table in model.rope_tables(CONTEXT))
    x = F.embedding(tokens, weights["embed"])
    for parts in zip(*(weights[name].unbind(0) for name in (*model.MATRICES, *model.NORMS)), strict=True):
        x = model.layer(x, cos, sin, *parts)
    learned = targets >= 0
    return model.token_losses(x[learned], weights["norm"], weights["embed"], targets[learned]).mean()


@torch.no_grad()
def found(weights, lessons_, length, kind, rows=6):
    """The share of the numbers' tokens that the model predicts, in rows at their own positions."""
    rng, right, total = random.Random(77), 0, 0
    for _ in range(rows):
        batch = torch.from_numpy(lessons_.row(rng, kind, length))[None]
        tokens, targets = model.parted(batch)
        x = model.hidden(weights, tokens)[0]
        learned = targets[0] >= 0
        best = F.linear(model.rms(x[learned], weights["norm"]), weights["embed"]).argmax(-1)
        right, total = right + int((best == targets[0][learned]).sum()), total + int(learned.sum())
    return right / total


class Course:
    """The training: from the bundle's weights, so many updates."""

    def __init__(self, text, work, steps):
        stories, tok = finetune.prepared(text, work)
        self.work, self.total = work, steps
        self.weights = {name: w.clone().requires_grad_() for name, w in finetune.start(work).items()}
        self.mean = {name: w.detach().clone() for name, w in self.weights.items()}
        self.optimizer, self.rng = Optimizer(self.weights, model.MATRICES), random.Random(SEED)
        self.lessons = Recall(stories, tok)
        self.held = data.encode(tok, stories.held_real[:32])

    def run(self, every=50):
        began = time.time()
        while self.optimizer.steps < self.total:
            loss = self.step(self.optimizer.steps / self.total)
            if self.optimizer.steps % 10 == 0:
                self.say(f"step {self.optimizer.steps} min {(time.time() - began) / 60:.1f} loss {loss:.4f}")
            if self.optimizer.steps % every == 0:
                self.report((512, 1024))
        self.report((1024, 2048, CONTEXT))

    def step(self, done):
        """One update at this share of them -> its loss."""
        length, tokens = next((length, tokens) for end, length, tokens in STAGES if done < end)
        batch = self.lessons.batch(self.rng, length, tokens)
        loss = losses(self.weights, batch, spread(self.rng, length))
        grads = torch.autograd.grad(loss, list(self.weights.values()))
        rate = PEAK * min(1.0, (self.optimizer.steps + 1) / WARMUP, 2 * (1 - done) + 0.05)
        self.optimizer.step(dict(zip(self.weights, grads, strict=True)), rate)
        keep = min(DECAY, 1 - 1 / (self.optimizer.steps + 1))
        for name, w in self.weights.items():
            self.mean[name].lerp_(w.detach(), 1 - keep)
        return float(loss.detach())

    def report(self, lengths):
        shares = {f"{kind} {n}": round(found(self.mean, self.lessons, n, kind), 3)
                  for n in lengths for kind in KINDS[:2]}  # fmt: skip
        self.say(f"held {export.mean_loss(self.mean, self.held):.4f} found {json.dumps(shares)}")
        export.folder(self.mean, self.work, "hf.recall")

    def say(self, line):
        with open(self.work / "recall.log", "a") as log:
            print(line, file=log)
        print(line, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument("--work", type=Path, required=True, help="a work folder of its own")
    parser.add_argument("--steps", type=int, default=160, help="updates of 4,096 tokens (default 160)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2; 1 where others use the cores)")
    return parser.parse_args()


def bundle(work):
    # -P: the installed edgedec, not the folder of that name where this is started.
    command = [sys.executable, "-P", "-m", "edgedec", "export", str(work / "hf.recall"), "-o", str(work / "bundle")]
    subprocess.run([*command, "--name", "nano-recall", "--weights", "int8", "--force"], check=True)


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    stretch()
    args.work.mkdir(parents=True, exist_ok=True)
    Course(args.text, args.work, args.steps).run()
    bundle(args.work)


if __name__ == "__main__":
    main()
