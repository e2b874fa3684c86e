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
- What is not masked keeps nano's own predictions: the loss there is the distance to those (block only).
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
import torch.nn.functional as F
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import data
import finetune
import lists
import model
import prompts
from optimizer import Optimizer
from programs import programs
from reading import TrainingRecord

import export

SEED, VOCAB, MASK, BLOCK, CANVAS, LENGTH = 31, model.V + 16, model.V, 8, 256, 512
WARMUP, PEAK, FALL, DECAY, CERTAIN_FROM, TEMPERATURE = 100, 0.4, 0.6, 0.999, 0.75, 0.5
OPENING = 0.5  # of the blocks begin with a mask
SIZES = ((0.1, (2,)), (0.25, (4,)), (0.4, (8,)), (1.0, (8, 8, 8, 4)))  # until this share of the time; blocks


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


# ---- the network ------------------------------------------------------------------------------------


def widened(weights):
    """With rows for MASK and 15 more, which begin as the mean of the others."""
    mean = weights["embed"].mean(0, keepdim=True).expand(VOCAB - model.V, -1)
    return weights | {"embed": torch.cat([weights["embed"], mean])}


def started(folder):
    """The weights of a folder that this wrote."""
    return export.stacked({name: w.float() for name, w in load_file(folder / "model.safetensors").items()})


def states(w, tokens, positions, mask, dtype):
    """tokens [B, T], mask [T, T] or [B, 1, T, T] (True: seen) -> the last layer's output [B, T, D]."""
    cos, sin = (t.to(tokens.device, dtype)[positions] for t in model.rope_tables(int(positions.max()) + 1))
    x = F.embedding(tokens, w["embed"])
    stacks = [w[n].to(dtype).unbind(0) for n in model.MATRICES] + [w[n].unbind(0) for n in model.NORMS]
    for parts in zip(*stacks):
        x = layer(x, cos, sin, mask, *parts)
    return x


def layer(x, cos, sin, mask, q, k, v, o, gate, up, down, norm1, norm2):
    b, t, _ = x.shape
    h = model.rms(x, norm1).to(q.dtype)
    heads = [F.linear(h, w).view(b, t, -1, model.HD).transpose(1, 2) for w in (q, k, v)]
    q, k, v = model.rotate(heads[0], cos, sin), model.rotate(heads[1], cos, sin), heads[2]
    k, v = (a.repeat_interleave(model.H // model.K, 1) for a in (k, v))
    a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
    x = x + F.linear(a.transpose(1, 2).reshape(b, t, model.H * model.HD), o)
    h = model.rms(x, norm2).to(gate.dtype)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def logits(w, x, dtype):
    """Of tokens that are texts: never MASK."""
    return F.linear(model.rms(x, w["norm"]).to(dtype), w["embed"][: model.V].to(dtype)).float()


# ---- losses -----------------------------------------------------------------------------------------


def block_sight(length, first, size, device):
    """[2 length, 2 length]: rows with masks, then rows as they are; a block begins at `first`, all have `size`."""
    at = torch.arange(length, device=device)
    block = (at - first).div(size, rounding_mode="floor")
    plain = at[:, None] >= at[None]
    own, before = block[:, None] == block[None], block[:, None] > block[None]
    nothing = torch.zeros_like(plain)
    return torch.cat([torch.cat([own, before], 1), torch.cat([nothing, plain], 1)]), block


def shares(count, progress, generator, device):
    """Shares of masks, of `count` blocks."""
    mean, sharp = 0.5 + 0.3 * progress, 4 + 21 * progress
    one = torch._standard_gamma(torch.full((count,), mean * sharp, device=device), generator=generator)
    other = torch._standard_gamma(torch.full((count,), (1 - mean) * sharp, device=device), generator=generator)
    return one / (one + other)


def certainty(found, target, weight):
    """dParallel: the entropy of what is predicted rightly, at a lower temperature."""
    right = (found.argmax(-1) == target).float()
    logs = F.log_softmax(found / TEMPERATURE, -1)
    return -(logs.exp() * logs).sum(-1) * right * weight


class Block:
    def __init__(self, args, weights, own):
        self.args, self.weights, self.own = args, weights, own
        self.generator = torch.Generator(args.device).manual_seed(SEED)
        self.draw = random.Random(SEED)

    def grown(self, progress):
        """How far blocks have grown: what goes on begins where they are largest."""
        return progress if self.args.start is None else 1.0

    def loss(self, batch, progress):
        size = self.draw.choice(next(sizes for until, sizes in SIZES if self.grown(progress) <= until))
        first, dtype = self.draw.randrange(size), self.args.dtype
        tokens, targets = model.parted(batch)
        b, t = tokens.shape
        sight, block = block_sight(t, first, size, batch.device)
        learned = F.pad(targets[:, :-1] >= 0, (1, 0))  # may this token be masked? it is target i - 1
        inside = (torch.arange(t, device=batch.device) - first) % size != 0
        number = block - block.min()
        each = shares(b * int(number.max() + 1), progress, self.generator, batch.device).view(b, -1)[:, number]
        masked = torch.rand(b, t, generator=self.generator, device=batch.device) < each
        masked = masked & learned & inside
        # The first token is not known either while a block's other places are predicted for the first time.
        unknown = torch.rand(b, int(number.max() + 1), generator=self.generator, device=batch.device) < OPENING
        opening = unknown[:, number] & learned & ~inside
        noisy = torch.where(masked | opening, MASK, tokens)
        positions = torch.arange(t, device=batch.device).repeat(2)
        x = states(self.weights, torch.cat([noisy, tokens], 1), positions, sight, dtype)
        # A masked place is predicted by the place before it, which is of the same block.
        where = F.pad(masked[:, 1:], (0, 1))
        counts = torch.zeros(b, int(number.max() + 1), device=batch.device).scatter_add_(
            1, number.expand(b, -1), masked.float()
        )
        weight = ((size - 1) / counts.clamp(min=1))[:, number].roll(-1, 1)[where]
        found, target = logits(self.weights, x[:, :t][where], dtype), tokens.roll(-1, 1)[where]
        each = F.cross_entropy(found, target, reduction="none") * weight
        if self.args.certainty and progress > CERTAIN_FROM:
            each = each + self.args.certainty * certainty(found, target, weight)
        filled = each.sum() / max(1, inside.sum().item() * b)
        # As it is: what nano itself predicts there.
        some = torch.arange(t, device=batch.device)[:: 1 if size == 2 else 2]
        with torch.no_grad():
            causal = sight[t:, t:]
            told = states(self.own, tokens, positions[:t], causal, dtype)[:, some].flatten(0, 1)
            told = F.softmax(logits(self.own, told, dtype), -1)
        kept = F.log_softmax(logits(self.weights, x[:, t:][:, some].flatten(0, 1), dtype), -1)
        kept = -(told * kept).sum(-1).mean()
        return self.args.masks * filled + kept, filled.detach(), kept.detach()


class Canvas:
    def __init__(self, args, weights, own):
        self.args, self.weights = args, weights
        self.generator = torch.Generator(args.device).manual_seed(SEED)

    def loss(self, batch, progress):
        tokens, targets = model.parted(batch)
        b, t = tokens.shape
        learned, dtype = F.pad(targets[:, :-1] >= 0, (1, 0)), self.args.dtype
        share = torch.rand(b, 1, generator=self.generator, device=batch.device).clamp(min=0.03)
        masked = (torch.rand(b, t, generator=self.generator, device=batch.device) < share) & learned
        noisy = torch.where(masked, MASK, tokens)
        x = states(self.weights, noisy, torch.arange(t, device=batch.device), None, dtype)
        where = F.pad(masked[:, 1:], (0, 1))
        weight = (learned.sum(1, keepdim=True) / masked.sum(1, keepdim=True).clamp(min=1)).expand(b, t)[where]
        found, target = logits(self.weights, x[where], dtype), tokens.roll(-1, 1)[where]
        weight = torch.where(target == 0, 0.2 * weight, weight)  # most of a canvas is what follows the end
        each = F.cross_entropy(found, target, reduction="none") * weight
        if self.args.certainty and progress > CERTAIN_FROM:
            each = each + self.args.certainty * certainty(found, target, weight)
        filled = each.sum() / max(1, int(learned.sum()))
        return filled, filled.detach(), torch.zeros(())


KINDS = {"block": Block, "canvas": Canvas}


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
            globals()["layer"] = torch.compile(layer, dynamic=False)

    def run(self):
        args, total = self.args, self.args.minutes * 60
        stories, tok = finetune.prepared(args.text, args.work)
        held = data.encode(tok, stories.held_real[:64])
        feed, then, told, sums = batches(args), time.time(), time.time(), torch.zeros(2)
        next(feed)
        then = kept = time.time()
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
            if self.optimizer.steps % 50 == 0:
                sums = torch.tensor([float(filled), float(known)])
            if now - told > args.every:
                told = now
                self.say(f"step {self.optimizer.steps} min {self.spent / 60:.2f} masks {sums[0]:.4f} "
                         f"own {sums[1]:.4f} rate {rate:.3f}")  # fmt: skip
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
