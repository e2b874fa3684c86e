"""nano as a diffusion model: nano-block, which fills blocks of eight, or nano-canvas, which fills 256 places.

python models/nano/diffusion.py --text TEXTS --work build/nano-block --minutes 90
python models/nano/diffusion.py --text TEXTS --work build/nano-canvas --kind canvas --minutes 90

Goes on from the bundle with 16 more rows of the embedding; the first of them is MASK. The rules:

- block (NBDiff, SDAR-VL, Fast-dLLM v2): a row is read twice at once, [with masks | as it is]. Tokens as they are see
  what came before, as nano does. A block with masks sees all of itself and what came before it as it is. Place i
  predicts token i + 1, so the pass that reads the block before gives a block's first token, and nothing in the block
  does. Blocks of 2, then 4, then 8 and at last mostly 8; they begin anywhere. Each block has a share of masks of its
  own, drawn from Beta(mC, (1 - m)C), m rising from 0.5 to 0.8 and C from 4 to 25; a block's loss is divided by the
  share that came out.
- canvas (LLaDA, Dream): prompt and answer see each other whole; the answer is masked at a share drawn evenly; after
  its end stand end tokens. Shifted, as Dream is, so that nano's weights are of use.
- What is not masked learns half the text and half nano's own predictions, so that stories stay as good as nano's, and
  lists, which nano cannot copy, begin rightly (block only).
- In the last quarter of the time dParallel's term: twice the entropy, at temperature 0.5, of every masked token that
  is predicted rightly (`--certainty 0` leaves it out).

With a GPU (`--device cuda`) eight minutes give what a laptop gives in a night.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import data
import finetune
import lists
import masks
import model
import prompts
from masks import BLOCK, CANVAS, DECAY, FALL, KINDS, LENGTH, MASK, PEAK, SEED, VOCAB, WARMUP, started, widened
from optimizer import Optimizer
from programs import programs
from reading import TrainingRecord

import export

# ---- texts ------------------------------------------------------------------------------------------


class Texts:
    """Endless documents: stories, answers and copies as nano's last training had them, and lists."""

    def __init__(self, text, work, seed):
        stories, self.tok = finetune.prepared(text, work)
        self.mix = finetune.Mix(stories, programs(), prompts.prose(text), self.tok, TrainingRecord(work))
        self.rng = random.Random(seed)

    def documents(self):
        while True:
            made = self.mix.encoded(self.rng)
            turns = [lists.lesson(self.rng) if i % 4 else lists.parts(self.rng) for i in range(2 * len(made) // 3)]
            made += [ended(prompts.encoded(self.tok, each)) for each in turns]
            self.rng.shuffle(made)
            yield from made

    def rows(self):
        """Rows of LENGTH + 1 tokens, filled with whole documents."""
        return data.rows(self.documents(), LENGTH + 1)

    def canvases(self):
        """Rows of CANVAS + 1 tokens, a document each: after its end, end tokens, which are learned."""
        for each in self.documents():
            row = np.zeros(CANVAS + 1, np.int16)
            part = each[: CANVAS + 1]
            row[: len(part)] = part
            if (part[1:] >= 0).all():  # a story: a part of it is given
                given = self.rng.randint(1, max(1, min(60, len(part) // 2)))
                row[1:given] = -model.MASK - row[1:given]
            yield row


def ended(tokens):
    return np.concatenate([tokens, np.zeros(1, np.int16)])


def producer(queue, text, work, seed, kind, count):
    """A process that makes batches."""
    torch.set_num_threads(1)
    texts = Texts(text, work, seed)
    rows = texts.rows() if kind == "block" else texts.canvases()
    while True:
        queue.put(np.stack([next(rows) for _ in range(count)]))


def batches(args):
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue(8)
    for i in range(args.workers):
        seed = SEED + 1000 * i + int(time.time()) % 1000
        part = (queue, args.text, args.work, seed, args.kind, args.rows)
        context.Process(target=producer, args=part, daemon=True).start()
    while True:
        yield torch.from_numpy(queue.get().astype(np.int64))


# ---- training ---------------------------------------------------------------------------------------


class Training:
    def __init__(self, args):
        self.args = args
        own = export.from_bundle(finetune.BUNDLE)
        weights = widened(own) if args.start is None else started(args.start)
        path = args.work / "diffusion.pt"
        self.saved = torch.load(path, weights_only=True) if path.exists() else None
        if self.saved:
            weights = self.saved["weights"]
        self.weights = {n: w.to(args.device).clone().requires_grad_() for n, w in weights.items()}
        start = self.saved["mean"] if self.saved else weights
        self.mean = {n: w.detach().to(args.device).clone() for n, w in start.items()}
        self.optimizer = Optimizer({n: w.detach() for n, w in self.weights.items()}, model.MATRICES)
        self.optimizer.state = {n: s.to(args.device) for n, s in self.optimizer.state.items()}
        self.spent = 0.0
        if self.saved:
            self.optimizer.state = {n: s.to(args.device) for n, s in self.saved["state"].items()}
            self.optimizer.steps, self.spent = self.saved["steps"], self.saved["spent"]
        self.kind = KINDS[args.kind](args, self.weights, {n: w.to(args.device) for n, w in own.items()})
        if args.compile:
            masks.layer = torch.compile(masks.layer, dynamic=False)

    def run(self):
        args, total = self.args, self.args.minutes * 60
        stories, tok = finetune.prepared(args.text, args.work)
        held = data.encode(tok, stories.held_real[:64])
        feed = batches(args)
        next(feed)  # the time begins when there is something to learn
        then = told = kept = time.time()
        while self.spent < total:
            progress = self.spent / total
            loss, filled, known = self.kind.loss(next(feed).to(args.device), progress)
            loss.backward()
            grads = {n: w.grad for n, w in self.weights.items()}
            rate = args.peak * min(1.0, (self.optimizer.steps + 1) / WARMUP, (1 - progress) / FALL)
            self.optimizer.step(grads, rate)
            for w in self.weights.values():
                w.grad = None
            keep = min(DECAY, 1 - 1 / (self.optimizer.steps + 1))
            with torch.no_grad():
                for name, w in self.weights.items():
                    self.mean[name].lerp_(w.detach(), 1 - keep)
            now = time.time()
            self.spent, then = self.spent + now - then, now
            if now - told > args.every:
                told = now
                self.say(f"step {self.optimizer.steps} min {self.spent / 60:.2f} masks {float(filled):.4f} "
                         f"own {float(known):.4f} rate {rate:.3f}")  # fmt: skip
            if now - kept > 10 * args.every:
                self.report(held)
                self.save()
                then = kept = time.time()
        self.report(held)
        self.save()
        self.folder()

    def report(self, held):
        plain = {n: w.cpu() for n, w in self.mean.items()}
        plain["embed"] = plain["embed"][: model.V]
        self.say(f"held-out stories, one after another: {export.mean_loss(plain, held):.4f} nats a token")

    def save(self):
        path = self.args.work / "diffusion.pt"
        put = {"weights": self.weights, "mean": self.mean, "state": self.optimizer.state}
        put = {name: {n: t.detach().cpu() for n, t in part.items()} for name, part in put.items()}
        torch.save(put | {"steps": self.optimizer.steps, "spent": self.spent}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def folder(self):
        export.folder({n: w.cpu() for n, w in self.mean.items()}, self.args.work, self.args.out)
        path = self.args.work / self.args.out / "config.json"
        facts = {"mask": MASK, "shift": True, "context": "causal", "block": BLOCK}
        if self.args.kind == "canvas":
            facts |= {"context": "full", "block": CANVAS}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": VOCAB, "diffusion": facts}, indent=2))

    def say(self, line):
        with open(self.args.work / "diffusion.log", "a") as log:
            print(line, file=log)
        print(line, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument("--work", type=Path, required=True, help="checkpoint, log and the Hugging Face folder")
    parser.add_argument("--kind", choices=KINDS, default="block", help="what is filled (default block)")
    parser.add_argument("--minutes", type=float, default=90, help="training time (default 90)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--rows", type=int, default=8, help="rows of an update (default 8)")
    parser.add_argument("--workers", type=int, default=1, help="processes that make batches (default 1)")
    parser.add_argument("--certainty", type=float, default=2.0, help="weight of dParallel's entropy (default 2)")
    parser.add_argument("--masks", type=float, default=1.0, help="weight of masked tokens (default 1)")
    parser.add_argument("--peak", type=float, default=PEAK, help=f"highest rate (default {PEAK})")
    parser.add_argument(
        "--start", type=Path, help="a folder that this wrote before, to go on from instead of the bundle"
    )
    parser.add_argument("--every", type=float, default=30, help="seconds between two lines (default 30)")
    parser.add_argument("--out", default="hf.diffusion", help="name of the folder in the work folder")
    parser.add_argument("--compile", action="store_true", help="compile the layers: faster after a minute")
    args = parser.parse_args()
    args.dtype = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    return args


if __name__ == "__main__":
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    Training(args).run()
