"""Lessons after the stories: nano learns to repeat a text with small changes.

python models/nano/lessons.py --text TEXTS --work build/nano --minutes 30

Stories alone teach no copying (a story hardly repeats itself), and without it nothing could be edited,
quoted or rewritten. So the trained model reads on for a while: one part stories as before, two parts documents
that hold a text twice: a story and its edited twin, a story and quotes of it, a program and its rewriting, and runs of
random tokens, which can only be predicted by copying. Starts from build/nano/hf and replaces it.
"""

import argparse
import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus as corpora
import data
from names import BOYS, GIRLS, renamed
from optimizer import Optimizer
from programs import programs
from reading import TrainingRecord
from team import Team

import export

SEED, LENGTH, BATCH, WARMUP, PEAK, FALL = 21, 1024, 8192, 30, 0.5, 0.5
NAMES = re.compile(r"\b(" + "|".join((*GIRLS, *BOYS)) + r")\b")
WORDS = re.compile(r"\b[a-z_]{3,}\b")
MARK = re.compile(r"\n\n(?:Rewritten|Corrected|Again|Quotes):\n\n")


def edit(story, rng):
    """A story with one name replaced, or a text to repeat with correct capitals."""
    here = sorted(set(NAMES.findall(story)))
    if here and rng.random() < 0.6:
        old = rng.choice(here)
        new = rng.choice([name for name in (GIRLS if old in GIRLS else BOYS) if name not in here])
        twin = re.sub(rf"\b{old}\b", new, story)
        return f"Rewrite the story with {new} instead of {old}.\n\n{story}\n\nRewritten:\n\n{twin}"
    if rng.random() < 0.5:
        return f"Correct the text.\n\n{slips(story, rng)}\n\nCorrected:\n\n{story}"
    return f"Say it again.\n\n{story}\n\nAgain:\n\n{story}"


def slips(story, rng):
    """The story with a few words doubled, dropped or written small."""
    words = story.split(" ")
    for _ in range(max(1, len(words) // 25)):
        i = rng.randrange(len(words))
        words[i] = rng.choice((f"{words[i]} {words[i]}", words[i].lower(), words[i].capitalize()))
    return " ".join(words)


def strange(story, words, rng):
    """The story with some of its words exchanged for others, the same ones all through."""
    share, other = rng.choice((0.05, 0.15, 0.4)), {}
    for word in sorted(set(re.findall(r"\b[a-z]{3,}\b", story))):
        if rng.random() < share:
            other[word] = rng.choice(words)
    return re.sub(r"\b[a-z]{3,}\b", lambda m: other.get(m.group(), m.group()), story)


def quotes(story, rng):
    """A story, then some of its sentences."""
    sentences = [s.strip() for s in re.findall(r"[^.!?]+[.!?]\"?", story) if len(s) > 20]
    if len(sentences) < 3:
        return edit(story, rng)
    chosen = sorted(rng.sample(range(len(sentences)), min(len(sentences), rng.randint(2, 4))))
    told = "\n\n".join(f"> {sentences[i]}" for i in chosen)
    return f"Sum up with quotes.\n\n{story}\n\nQuotes:\n\n{told}"


def rewriting(code, rng):
    """A program, then the same with one word for another."""
    words = sorted(set(WORDS.findall(code)) - {"def", "return", "for", "while", "import", "and", "not"})
    old = rng.choice(words) if words else "x"
    new = rng.choice(("item", "total", "value", "number", "result_list", "count", "data", "left"))
    twin = re.sub(rf"\b{old}\b", new, code)
    return f"Rewrite the code with {new} for {old}.\n\n{code}\n\nRewritten:\n\n{twin}"


def again(rng, vocab):
    """Random tokens, repeated: [begin, run, run, …]. The first run has no loss: with a loss, nano learned to answer
    prompts that are no stories with random tokens."""
    run = [rng.randrange(1, vocab) for _ in range(rng.randint(8, 250))]
    given = [-export.model.MASK - token for token in run]
    return np.array([0, *given, *(run * rng.randint(1, 3))][:LENGTH], np.int16)


class Lessons:
    """Passes over stories and lessons, about one to two by length."""

    def __init__(self, stories, code, tok, reading):
        self.stories, self.code, self.tok, self.reading = stories, code, tok, reading.whole(code)

    def encoded(self, rng):
        tell, taught = corpora.final_mix(self.stories, rng)[:1500], self.taught(rng)
        self.reading.openings(taught).save()
        ids = data.encode(self.tok, tell + taught) + [again(rng, self.tok.get_vocab_size()) for _ in range(250)]
        rng.shuffle(ids)
        return ids

    def taught(self, rng):
        short = [s for s in self.stories.real + self.stories.best if len(s) < 1500]
        chosen = rng.sample(short, 1600)
        taught = [edit(renamed(s, rng), rng) if i % 4 else quotes(s, rng) for i, s in enumerate(chosen)]
        return taught + [rewriting(c, rng) for c in rng.sample(self.code, 400)]


@torch.no_grad()
def copied(weights, tok, stories):
    """The share of tokens of the second copy that the model predicts, without the first few."""
    right = total = 0
    for story in stories:
        first, text = f"Say it again.\n\n{story}\n\nAgain:\n\n", f"Say it again.\n\n{story}\n\nAgain:\n\n{story}"
        ids, start = tok.encode(text).ids[:LENGTH], len(tok.encode(first).ids) + 8
        x = export.model.hidden(weights, torch.tensor([ids]))[0]
        best = (export.model.rms(x, weights["norm"]) @ weights["embed"].T).argmax(-1)
        hits = best[start - 1 : -1] == torch.tensor(ids[start:])
        right, total = right + int(hits.sum()), total + len(hits)
    return right / total


def endless(lessons, rng):
    while True:
        yield from data.rows(lessons.encoded(rng), LENGTH + 1)


def teach(text, work, minutes):
    """Trains the model in work/hf further, for so many minutes."""
    stories, tok = data.prepare(text, work)
    weights = export.stacked(load_file(work / "hf" / "model.safetensors"))
    optimizer, held = Optimizer(weights, [*export.model.MATRICES]), data.encode(tok, stories.held_real[:64])
    rng, short = random.Random(SEED), [s for s in stories.held_real if len(s) < 1200][:8]
    feed = endless(Lessons(stories, programs(), tok, TrainingRecord(work)), rng)
    team, began, total = Team(weights, BATCH, (LENGTH,)), time.time(), minutes * 60

    def report():
        spent = time.time() - began
        said = copied(weights, tok, short)
        print(
            f"step {optimizer.steps} min {spent / 60:.1f} held {export.mean_loss(weights, held):.4f} copied {said:.3f}",
            flush=True,
        )
        export.folder(weights, work)

    report()
    while (spent := time.time() - began) < total:
        batch = torch.from_numpy(np.stack([next(feed) for _ in range(BATCH // LENGTH)]).astype(np.int64))
        loss = team.step(batch)
        rate = PEAK * min(1.0, (optimizer.steps + 1) / WARMUP, (total - spent) / (FALL * total))
        optimizer.step(team.grads[0], rate)
        if optimizer.steps % 20 == 0:
            print(f"step {optimizer.steps} min {spent / 60:.1f} loss {loss:.4f} rate {rate:.3f}", flush=True)
        if optimizer.steps % 50 == 0:
            report()
    report()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with the story files")
    parser.add_argument("--work", type=Path, required=True, help="the recipe's work folder; its `hf` is trained on")
    parser.add_argument("--minutes", type=float, default=30, help="training time (default 30)")
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    teach(args.text, args.work, args.minutes)
