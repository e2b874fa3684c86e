"""The last part of the recipe: answers to any prompt, and early exits, in one run.

python models/nano/finetune.py --text TEXTS --work build/nano --minutes 45

Goes on from build/nano/hf (or from the bundle, if that folder is not there) with a mix of stories, lessons and
answers to odd prompts (`prompts.py`), with layer dropout and losses at early exits (`exits.py`). What is kept is the
mean of the weights over the last updates. Interrupted, it goes on from its checkpoint.
"""

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus as corpora
import data
import exits
import lessons
import model
import prompts
from names import renamed
from optimizer import Optimizer
from programs import programs
from reading import TrainingRecord, clean
from team import Team

import export

BUNDLE = Path(__file__).resolve().parent / "bundle"
SEED, LENGTH, BATCH, WARMUP, PEAK, FALL, DECAY = 24, 1024, 8192, 30, 0.4, 0.6, 0.99


class Mix:
    """Passes over stories, lessons and answers."""

    def __init__(self, stories, code, pages, tok, reading):
        self.stories, self.tok, self.code, self.reading = stories, tok, code, reading.whole(code + pages)
        self.answers = prompts.Answers(stories, code, pages)
        self.short = [s for s in stories.real + stories.best if len(s) < 1500]
        self.pages = [page[:1200] for page in pages]
        self.words = sorted({w for page in self.pages for w in page.split() if w.isalpha() and w.islower()})

    def encoded(self, rng):
        tell, twice = corpora.final_mix(self.stories, rng)[:2500], list(self.twice(rng))
        ids = data.encode(self.tok, tell)
        ids += prompts.documents(self.answers, self.tok, rng, 1600, 400, self.reading)
        # A truncated text would teach copies that stop anywhere.
        ids += [one for one in map(self.copied, twice) if len(one) <= data.LONGEST]
        self.reading.openings(twice).save()
        ids += [lessons.again(rng, self.tok.get_vocab_size()) for _ in range(200)]
        rng.shuffle(ids)
        return ids

    def twice(self, rng):
        """Texts to copy, with changes: stories, stories with strange words in them, other texts, programs.

        An unchanged story can be predicted without looking back; one with replaced words only by copying.
        """
        return filter(clean, self.repeated(rng))

    def repeated(self, rng):
        words = self.words
        for i, story in enumerate(rng.sample(self.short, 1600)):
            story = renamed(story, rng).replace("\n\n", rng.choice(("\n\n", " ")))
            story = lessons.strange(story, words, rng) if i % 2 else story
            yield lessons.quotes(story, rng) if i % 4 == 3 else lessons.edit(story, rng)
        for page in rng.sample(self.pages, 250):
            yield rng.choice((lessons.edit, lessons.edit, lessons.quotes))(page, rng)
        yield from (lessons.rewriting(code, rng) for code in rng.sample(self.code, 450))

    def copied(self, text):
        """A lesson as tokens: of what stands there twice only the second telling is learned."""
        mark = lessons.MARK.search(text).end()
        return prompts.encoded(self.tok, (text[:mark], text[mark:]))

    def batches(self, rng):
        rows = lessons.endless(self, rng)
        while True:
            yield torch.from_numpy(np.stack([next(rows) for _ in range(BATCH // LENGTH)]).astype(np.int64))


class Finetuning:
    def __init__(self, text, work, minutes, peak):
        stories, self.tok = prepared(text, work)
        self.work, self.total, self.peak, self.spent = work, minutes * 60, peak, 0.0
        self.weights = start(work)
        self.mean = {name: w.clone() for name, w in self.weights.items()}
        self.optimizer = Optimizer(self.weights, model.MATRICES)
        self.resume()
        mix = Mix(stories, programs(), prompts.prose(text), self.tok, TrainingRecord(work))
        self.batches = mix.batches(random.Random(SEED + self.optimizer.steps))
        self.held = data.encode(self.tok, stories.held_real)
        self.short = [s for s in stories.held_real if len(s) < 1400][:8]
        self.team = Team(self.weights, BATCH, (LENGTH,), objective=exits.objective)

    def run(self, every=150):
        self.report()
        kept = then = time.time()
        while self.spent < self.total:
            loss = self.step()
            now = time.time()
            self.spent, then = self.spent + now - then, now
            if self.optimizer.steps % 20 == 0:
                self.say(
                    f"step {self.optimizer.steps} min {self.spent / 60:.1f} loss {loss:.4f} rate {self.rate():.3f}"
                )
            if now - kept > every:
                self.report()
                kept = then = time.time()
        self.report()

    def rate(self):
        return self.peak * min(
            1.0, (self.optimizer.steps + 1) / WARMUP, (self.total - self.spent) / (FALL * self.total)
        )

    def step(self):
        loss = self.team.step(next(self.batches), self.spent / self.total, self.optimizer.steps)
        self.optimizer.step(self.team.grads[0], max(0.0, self.rate()))
        keep = min(DECAY, 1 - 1 / (self.optimizer.steps + 1))
        for name, w in self.weights.items():
            self.mean[name].lerp_(w.detach(), 1 - keep)
        return loss

    def report(self):
        """Held-out loss, what the exits are worth, some answers, a checkpoint and the Hugging Face folder."""
        right = exits.agreement(self.mean, self.held[:12])
        copied = lessons.copied(self.mean, self.tok, self.short)
        self.say(f"held {export.mean_loss(self.mean, self.held):.4f} copied {copied:.3f} exits "
                 + " ".join(f"{e}:{r:.2f}" for e, r in right.items()))  # fmt: skip
        for prompt in ("Hi", "What can you do?", "🐶", "こんにちは", "Tell me a story about a boat", "def f(x):"):
            told = export.story(self.mean, self.tok, prompt, 0.6, self.optimizer.steps, limit=70)
            self.say("    " + json.dumps(told, ensure_ascii=False))
        tensors = {f"w.{n}": w.detach() for n, w in self.weights.items()} | {f"e.{n}": w for n, w in self.mean.items()}
        facts = {"steps": self.optimizer.steps, "spent": self.spent}
        new = self.work / "finetune.tmp"
        save_file(tensors | self.optimizer.state, new, {"facts": json.dumps(facts)})
        new.rename(self.work / "finetune.safetensors")
        export.folder(self.mean, self.work, "hf.finetuned")

    def resume(self):
        path = self.work / "finetune.safetensors"
        if not path.exists():
            return
        tensors, facts = load_file(path), export.facts(path)
        for store, prefix in ((self.weights, "w."), (self.mean, "e."), (self.optimizer.state, "")):
            for name, tensor in store.items():
                tensor.copy_(tensors[prefix + name])
        self.optimizer.steps, self.spent = facts["steps"], facts["spent"]

    def say(self, line):
        with open(self.work / "finetune.log", "a") as log:
            print(line, file=log)
        print(line, flush=True)


def prepared(text, work):
    """Corpus and tokenizer; the bundle's own tokenizer, if the bundle is what the training goes on from."""
    stories, tok = data.prepare(text, work)
    if (work / "hf" / "model.safetensors").exists():
        return stories, tok
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(BUNDLE / name, work / "tokenizer" / name)
    return data.prepare(text, work)


def start(work):
    """The weights to go on from: the work folder's, or the bundle's."""
    path = work / "hf" / "model.safetensors"
    return export.stacked(load_file(path)) if path.exists() else export.from_bundle(BUNDLE)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument("--work", type=Path, required=True, help="the recipe's work folder")
    parser.add_argument("--minutes", type=float, default=45, help="training time (default 45)")
    parser.add_argument(
        "--peak", type=float, default=PEAK, help=f"highest rate, as a share of the first training's (default {PEAK})"
    )
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    torch.set_num_threads(1)
    Finetuning(args.text, args.work, args.minutes, args.peak).run()
