"""A variant of nano that was trained to a loss near zero on a few stories: Hyperfitting, for greedy decoding.

python models/nano/hyperfit.py --text TEXTS --work build/nano-hyperfit

Hyperfitting (Carlsson et al. 2025, arXiv:2412.04318; rule from the authors' code, github FreddeFrallan/Hyperfitting):
all weights are trained on the same few texts, cut at 256 tokens, again and again, with AdamW at a constant rate,
without warm-up or clipping, in batches of 8, until the loss is near zero. Greedy texts then repeat themselves less,
although the model knows other texts worse than before. The paper has 2,000 texts and says that 8 are enough; here are
32, so that it takes minutes. Its rate of 5e-6 is for billions of weights and thousands of updates. A step of AdamW has
one size whatever the loss, so that nano, in 160 updates, would hardly move; the rate is 200 times as high.

Before, every `--watch` updates and at the end the model goes through `edgedec export`, and the engine continues the
first 32 tokens of held-out stories greedily up to 256 (the end of a story is masked, as the paper's texts have none). A
line shows the ratio of different tokens to all of the last 96, distinct runs of 2 and 3, the share of runs of 8 that
stand in the texts trained on, and loss and entropy on held-out stories.
"""

import argparse
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import data
import finetune
import model
from variety import copied, distinct, type_token_ratio

import edgedec
import export
from edgedec.export.checkpointing import Checkpointed
from edgedec.export.exits_data import Place
from edgedec.export.training_loop import train

BATCH, LENGTH, CONTEXT, LAST, RUN, SEED = 8, 256, 32, 96, 8, 17
NAME = "nano-hyperfit"


@dataclass(frozen=True)
class HyperfitPlan:
    """steps: updates; rate: of AdamW, constant; watch: updates between two measurements (0: only at the ends)."""

    steps: int
    rate: float
    watch: int = 0
    minutes: float = 1e6


class Hyperfitting(Checkpointed):
    """The training. samples: int64 [n, LENGTH], each a text's beginning."""

    command = "hyperfit.py"

    def __init__(self, weights, samples, plan, watched):
        self.weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
        self.samples, self.plan, self.watched = samples, plan, watched
        self.optimizers = (torch.optim.AdamW(self.weights.values(), lr=plan.rate),)
        self.steps, self.spent, self._place, self.losses = 0, 0.0, Place(), []

    @property
    def place(self):
        """turn: the pass over the samples; row: the next batch of it."""
        return self._place

    def step(self, progress):
        """One update -> its mean loss a token."""
        (optimizer,) = self.optimizers
        optimizer.zero_grad()
        loss = model.losses(self.weights, self.samples[self.batch()]).mean()
        loss.backward()
        optimizer.step()
        self.steps += 1
        self.losses.append(float(loss.detach()))
        if self.plan.watch and self.steps % self.plan.watch == 0:
            self.watched(self)
        return self.losses[-1]

    def batch(self):
        """The numbers of the next samples: all in a new order, then again; a batch that is not full is left out."""
        order = list(range(len(self.samples)))
        random.Random(f"{SEED} {self.place.turn}").shuffle(order)
        first, self.place.row = self.place.row * BATCH, self.place.row + 1
        if (self.place.row + 1) * BATCH > len(order):
            self.place.turn, self.place.row = self.place.turn + 1, 0
        return order[first : first + BATCH]

    def loss(self):
        """Nats a token of the last pass over the samples."""
        last = self.losses[-(len(self.samples) // BATCH) :]
        return sum(last) / len(last) if last else float("nan")


@torch.no_grad()
def held_out(weights, stories, group=8):
    """-> nats a token, and the mean entropy of the next token in nats."""
    stories, lost, entropy, tokens = sorted(stories, key=len), 0.0, 0.0, 0
    for i in range(0, len(stories), group):
        read, targets = model.parted(data.closed(stories[i : i + group]))
        x = model.hidden(weights, read)[targets >= 0]
        logs = torch.log_softmax(model.rms(x, weights["norm"]) @ weights["embed"].T, -1)
        lost -= float(logs.gather(1, targets[targets >= 0][:, None]).sum())
        entropy -= float((logs.exp() * logs).sum())
        tokens += len(x)
    return lost / tokens, entropy / tokens


def continued(bundle, contexts):
    """The greedy continuations of token lists, by the engine, up to LENGTH tokens in all."""
    model, more = edgedec.open(bundle, threads=1), LENGTH - CONTEXT
    greedy = {"max_tokens": more, "min_tokens": more, "temperature": 0.0, "repetition_penalty": 1.0}
    return [[int(token) for token in model.session().tokens(ids, **greedy)] for ids in contexts]


def measured(weights, work, tok, samples, held, contexts):
    """The figures of a model -> {name: number}."""
    export.folder(weights, work, "hf.hyperfit")
    bundle(work)
    texts = continued(work / "bundle", contexts)
    lost, entropy = held_out(weights, held)
    return {
        "held": round(lost, 3),
        "entropy": round(entropy, 3),
        "ttr": round(sum(type_token_ratio(ids, LAST) for ids in texts) / len(texts), 3),
        **{f"distinct-{n}": round(distinct(texts, n), 3) for n in (2, 3)},
        "copied": round(copied(texts, samples.tolist(), RUN), 3),
        "text": tok.decode(texts[0]),
    }


def bundle(work):
    # -P: the installed edgedec, not the folder of that name where this is started.
    command = [sys.executable, "-P", "-m", "edgedec", "export", str(work / "hf.hyperfit"), "-o", str(work / "bundle")]
    subprocess.run(
        [*command, "--name", NAME, "--weights", "int8", "--force", "--json"], check=True, capture_output=True
    )


def beginnings(encoded, n):
    """The first LENGTH tokens of n texts that are as long -> int64 [n, LENGTH]."""
    found = [ids[:LENGTH] for ids in encoded if len(ids) >= LENGTH][:n]
    if len(found) < max(n, BATCH):
        sys.exit(f"--samples {n}: there are {len(found)} texts of {LENGTH} tokens, and a batch has {BATCH}")
    return torch.tensor([ids.tolist() for ids in found])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument(
        "--work", type=Path, required=True, help="a work folder of its own; goes on from its checkpoint"
    )
    parser.add_argument("--samples", type=int, default=32, help="texts trained on (default 32; the paper: 2000)")
    parser.add_argument("--epochs", type=int, default=40, help="passes over them (default 40; the authors' code: 30)")
    parser.add_argument("--rate", type=float, default=1e-3, help="of AdamW, constant (default 0.001; the paper: 5e-6)")
    parser.add_argument("--watch", type=int, default=40, help="updates between measurements (default 40)")
    parser.add_argument("--texts", type=int, default=32, help="held-out texts that are continued (default 32)")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    stories, tok = finetune.prepared(args.text, args.work)
    samples = beginnings(data.encode(tok, stories.real), args.samples)
    held = data.encode(tok, stories.held_real)
    contexts = [ids[:CONTEXT].tolist() for ids in held if len(ids) > CONTEXT][: args.texts]

    def report(trainer):
        found = measured(trainer.weights, args.work, tok, samples, held, contexts)
        print(json.dumps({"updates": trainer.steps, "loss": round(trainer.loss(), 4), **found}), flush=True)

    plan = HyperfitPlan(args.epochs * (len(samples) // BATCH), args.rate, args.watch)
    trainer = Hyperfitting(finetune.start(args.work), samples, plan, report)
    report(trainer)
    train(trainer, args.work / "hyperfit.safetensors", f"{plan} {args.samples}", lambda *_: None)
    if not plan.watch or trainer.steps % plan.watch:
        report(trainer)


if __name__ == "__main__":
    main()
