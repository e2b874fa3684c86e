"""Trains for a given number of minutes; the learning rate always ends decayed.

The schedule depends on elapsed time, not on steps: constant, then falling in a line to zero over
the last 30%. A file STOP in the work folder starts the fall at once, to end five minutes later.
"""

import json
import time

import corpus as corpora
import data
import model
from optimizer import Optimizer
from safetensors.torch import load_file, save_file
from team import Team

import export

SEED, WARMUP, FALL, LONG, MIDDLE = 20, 60, 0.30, 0.08, 0.78
LENGTH, LONG_LENGTH, BATCH = 512, 1024, 8192


class Clock:
    """Elapsed training time over its allowance, going on from what earlier runs spent."""

    def __init__(self, minutes, spent, work):
        self.began, self.total, self.stop = time.time() - spent, minutes * 60.0, work / "STOP"
        self.fall = self.total * (1 - FALL)

    @property
    def elapsed(self):
        return time.time() - self.began

    def look(self):
        if self.stop.exists() and self.elapsed < self.fall:
            self.fall, self.total = self.elapsed, self.elapsed + 300

    def rate(self, step):
        left = (self.total - self.elapsed) / (self.total - self.fall)
        return min(1.0, (step + 1) / WARMUP, max(0.0, left))

    @property
    def falling(self):
        return self.elapsed >= self.fall

    @property
    def long(self):
        return self.falling and self.total - self.elapsed < LONG * self.total

    @property
    def over(self):
        return self.elapsed >= self.total


class Trainer:
    def __init__(self, stories, tok, work, minutes):
        self.tok, self.work = tok, work
        self.weights, self.log = model.new_weights(SEED), open(work / "train.log", "a", buffering=1)  # noqa: SIM115
        self.optimizer = Optimizer(self.weights, model.MATRICES)
        spent = self.resume()
        self.feed = data.Feed(stories, tok, SEED + self.optimizer.steps)
        self.held, self.seen = (data.encode(tok, s[:64]) for s in (stories.held_real, stories.real))
        self.team = Team(self.weights, BATCH, (LENGTH, LONG_LENGTH))
        self.clock = Clock(minutes, spent, work)
        self.middle = work / "middle.safetensors"

    def run(self, every=50, keep=300):
        seen, then, kept, total = 0, time.time(), time.time(), 0.0
        while not self.clock.over:
            self.clock.look()
            loss, norm = self.step()
            if self.clock.elapsed > MIDDLE * self.clock.total and not self.middle.exists():
                save_file({name: w.detach().clone() for name, w in self.weights.items()}, self.middle)
            seen, total, steps = seen + 1, total + loss, self.optimizer.steps
            if steps % every == 0:
                speed = seen * BATCH / (time.time() - then)
                self.say(
                    f"step {steps} min {self.clock.elapsed / 60:.1f} loss {total / seen:.4f} norm {norm:.2f} "
                    f"rate {self.clock.rate(steps):.3f} tok/s {speed:.0f}"
                )
                seen, then, total = 0, time.time(), 0.0
            now = time.time()
            if now - kept > keep:
                self.report()
                then, kept = then + time.time() - now, time.time()
        self.report()

    def step(self):
        length = LONG_LENGTH if self.clock.long else LENGTH
        mix = corpora.final_mix if self.clock.falling else corpora.main_mix
        loss = self.team.step(self.feed.batch(mix, length, BATCH // length))
        return loss, self.optimizer.step(self.team.grads[0], self.clock.rate(self.optimizer.steps))

    def report(self):
        """Held-out loss, a story, a checkpoint and the Hugging Face folder."""
        held, seen = (export.mean_loss(self.weights, s) for s in (self.held, self.seen))
        self.say(f"held-out loss {held:.4f}, trained stories {seen:.4f}, after {self.optimizer.steps * BATCH} tokens")
        self.say(export.story(self.weights, self.tok, "Once upon a time", 0.7, seed=self.optimizer.steps))
        self.save()
        export.folder(self.shipped(), self.work)

    def shipped(self):
        """At the end the mean of the weights in mid-fall and now: its loss on unseen stories is lower than that of
        either."""
        if not (self.clock.over and self.middle.exists()):
            return self.weights
        middle = load_file(self.middle)
        return {name: (w.detach() + middle[name]) / 2 for name, w in self.weights.items()}

    def say(self, line):
        print(line, file=self.log)
        print(line, flush=True)

    def save(self):
        tensors = {f"w.{n}": w.detach() for n, w in self.weights.items()} | self.optimizer.state
        facts = {"steps": self.optimizer.steps, "spent": self.clock.elapsed}
        new = self.work / "checkpoint.tmp"
        save_file(tensors, new, {"facts": json.dumps(facts)})
        new.rename(self.work / "checkpoint.safetensors")

    def resume(self):
        """Loads the work folder's checkpoint if there is one -> seconds already spent."""
        path = self.work / "checkpoint.safetensors"
        if not path.exists():
            return 0.0
        tensors, facts = load_file(path), export.facts(path)
        for name, w in self.weights.items():
            w.copy_(tensors[f"w.{name}"])
        for name, s in self.optimizer.state.items():
            s.copy_(tensors[name])
        self.optimizer.steps = facts["steps"]
        return facts["spent"]
