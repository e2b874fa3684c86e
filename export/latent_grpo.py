"""The second stage of CoLaR: rows of thought that led to right answers become likelier (group relative policy
optimization). From the authors' code, xiaomi-research/colar (src/models/colar.py, src/modules/grpo.py).

Of each problem `samples` solutions are drawn: latent rows from the head, until a token sampled from the model's own
head is the separator or there are 64 rows, then a separator and at most 16 tokens (top-p 0.9). A solution whose text is
the answer earns 1, others 0; its advantage is the reward less the group's mean, over the group's deviation. The loss of
a row or token is

    -min(ratio * advantage, clip(ratio, 1 - .2, 1 + .2) * advantage) / 32

ratio: its probability now over that when it was drawn, a row's as the mean of its numbers' log densities. Losses are
summed in a solution and averaged over solutions; there is no KL term. Rows stand for `most` tokens, as the authors fix
them. The solutions of `batch` problems are shuffled and learned from `samples` at a time, so that a solution may be
learned from after its model has changed. What is trained is what `colar` trains.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from edgedec.errors import UsageError
from edgedec.export.latent_head import LatentNetwork
from edgedec.export.latent_rows import Problem, problem_of
from edgedec.export.latent_train import LatentPlan, LatentQuality, LatentTrainer
from edgedec.export.row_training import key_of

ROWS, ANSWER, TOP_P = 64, 16, 0.9
_CLIP, _PER = 0.2, 32.0
_MEASURED = 64  # problems


@dataclass(frozen=True)
class Solution:
    """question: its tokens, up to the separator; rows [n, hidden]: as the head drew them, before they are scaled to
    embeddings; tokens: the separator and the answer; then the advantage, and the log probabilities [n + tokens] when it
    was drawn."""

    question: list[int]
    rows: Tensor
    tokens: list[int]
    advantage: float = 0.0
    logs: Tensor | None = None


class GrpoTrainer(LatentTrainer):
    """A model in training that has a latent head."""

    def step(self, progress: float) -> float:
        """Solutions of some problems, and the updates from them -> the mean loss of these."""
        draw, total = random.Random(f"{self.plan.seed} {self.steps}"), 0.0
        drawn = [one for _ in range(self.plan.batch) for one in self.solved(problem_of(next(self.stream)), draw)]
        draw.shuffle(drawn)
        parts = [drawn[at : at + self.plan.samples] for at in range(0, len(drawn), self.plan.samples)]
        for part in parts:
            total += self.update([self.policy_loss(part)], 1, progress) / len(parts)
        self.steps += 1
        return total

    def _head(self) -> LatentNetwork:
        found = super()._head()
        if found is None:
            raise UsageError(f"{self.folder}: has no latent head; train it with --method colar before grpo")
        if (found.facts.separator, found.facts.speed) != (self.facts.separator, self.facts.speed):
            raise UsageError(f"{self.folder}: its separator is {found.facts.separator!r}; pass --separator")
        if self.plan.most > found.facts.most:
            raise UsageError(f"--most {self.plan.most}: rows of {self.folder} stand for at most {found.facts.most}")
        self.facts = found.facts
        return found

    def _ratio(self, draw: random.Random) -> int:
        return self.plan.most

    def solved(self, problem: Problem, draw: random.Random) -> list[Solution]:
        """A group of solutions, with their advantages."""
        question = self.question(problem)
        if len(question) + ROWS + ANSWER > self.longest:
            raise UsageError(
                f"train-latent: a question of {len(question)} tokens, {ROWS} rows and an answer are more than the "
                f"{self.longest} positions of this model; leave it out, or take a smaller --length"
            )
        generator = torch.Generator().manual_seed(draw.getrandbits(62))
        drawn = self.sampled(question, self.plan.samples, generator)
        gains = advantages([float(self.is_right(one, problem)) for one in drawn])
        with torch.no_grad():
            logs = self.log_probabilities(drawn)
        whole = zip(drawn, gains, logs, strict=True)
        return [replace(one, advantage=gain, logs=own) for one, gain, own in whole]

    def question(self, problem: Problem) -> list[int]:
        return [*problem.question, *self._opening(self.plan.most), self._separator]

    def is_right(self, solution: Solution, problem: Problem) -> bool:
        """Whether the text after the separator is the answer."""
        return self._said(solution.tokens[1:]) == self._said(problem.answer)

    def _said(self, tokens: Sequence[int]) -> str:
        kept = [token for token in tokens if token != self._end]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False)).strip()

    def sampled(self, question: list[int], n: int, generator: torch.Generator) -> list[Solution]:
        """n solutions, drawn side by side. One that is over is run on with the others, and nothing sees its rows."""
        with torch.no_grad():
            return self._sampled(question, n, generator)

    def _sampled(self, question: list[int], n: int, generator: torch.Generator) -> list[Solution]:
        run = Rollout(self, question, n)
        rows, open_, counts = list[Tensor](), torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.long)
        while len(rows) < ROWS and open_.any():
            mean, deviation = self.net.law(run.state)
            rows.append(mean + deviation * torch.randn(mean.shape, generator=generator))
            counts += open_
            run.read(rows[-1] * self._std, open_)
            open_ = open_ & (drawn(run.logits, 1.0, generator) != self._separator)
        after, tokens = torch.full((n,), self._separator), [[self._separator] for _ in range(n)]
        open_ = torch.ones(n, dtype=torch.bool)
        for _ in range(ANSWER):
            run.read(self._embed(after), open_)
            after = drawn(run.logits, TOP_P, generator)
            for i in torch.nonzero(open_).flatten().tolist():
                tokens[i].append(int(after[i]))
            open_ = open_ & (after != (-1 if self._end is None else self._end))
            if not open_.any():
                break
        thought = torch.stack(rows, 1)
        return [Solution(question, thought[i, : counts[i]], tokens[i]) for i in range(n)]

    def log_probabilities(self, solutions: Sequence[Solution]) -> list[Tensor]:
        """Of each row and then each token of every solution [n + tokens]."""
        whole = [torch.cat([self._embed(torch.tensor(one.question)), one.rows * self._std]) for one in solutions]
        whole = [torch.cat([x, self._embed(torch.tensor(one.tokens))]) for x, one in zip(whole, solutions, strict=True)]
        longest = max(map(len, whole))
        x = torch.stack([functional.pad(one, (0, 0, 0, longest - len(one))) for one in whole])
        out = self.model(inputs_embeds=x, use_cache=False, output_hidden_states=True)
        found = list[Tensor]()
        for one, states, logits in zip(solutions, out.hidden_states[-1], out.logits, strict=True):
            first = len(one.question) - 1
            last = first + len(one.rows)
            law = torch.distributions.Normal(*self.net.law(states[first:last]))
            tokens = logits[last : last + len(one.tokens)].log_softmax(-1)
            of_tokens = tokens.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]
            found.append(torch.cat([law.log_prob(one.rows).mean(-1), of_tokens]))
        return found

    def policy_loss(self, solutions: Sequence[Solution]) -> Tensor:
        losses = list[Tensor]()
        for one, logs in zip(solutions, self.log_probabilities(solutions), strict=True):
            assert one.logs is not None
            ratio = (logs - one.logs).exp()
            least = torch.minimum(ratio * one.advantage, ratio.clamp(1 - _CLIP, 1 + _CLIP) * one.advantage)
            losses.append(-least.sum() / _PER)
        return torch.stack(losses).mean()

    def measure(self) -> LatentQuality:
        """Of the first problems held back, too, the share of right solutions, and their rows."""
        said, right, rows = super().measure(), 0, 0
        problems = [problem_of(row) for row in self.held[:_MEASURED]]
        for i, problem in enumerate(problems):
            found = self.sampled(self.question(problem), self.plan.samples, torch.Generator().manual_seed(i))
            right += sum(self.is_right(one, problem) for one in found)
            rows += sum(len(one.rows) for one in found)
        n = len(problems) * self.plan.samples
        return replace(said, right=right / n, rows=rows / n)


class Rollout:
    """Texts that are run side by side. state [n, hidden], logits [n, vocab]: of each one's last row."""

    def __init__(self, trainer: GrpoTrainer, question: list[int], n: int) -> None:
        self._model, model = trainer.model, trainer.model
        # The argument's name has changed in transformers 5.
        name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._how: dict[str, Any] = {"use_cache": True, "output_hidden_states": True}
        self._how[name] = DynamicCache(config=model.config)
        self._mask, self._places = torch.ones(n, 0, dtype=torch.long), torch.full((n,), -1)
        x = trainer._embed(torch.tensor(question)).expand(n, -1, -1)
        self.state, self.logits = self._forward(x, torch.ones(n, len(question), dtype=torch.long))

    def read(self, x: Tensor, seen: Tensor) -> None:
        """A row each [n, hidden]; nothing sees those that are not `seen`, and what they say counts for nothing."""
        state, logits = self._forward(x[:, None], seen.long()[:, None])
        self.state = torch.where(seen[:, None], state, self.state)
        self.logits = torch.where(seen[:, None], logits, self.logits)

    def _forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        self._mask = torch.cat([self._mask, seen], 1)
        places = self._places[:, None] + seen.cumsum(1)
        self._places = places[:, -1]
        out = self._model(inputs_embeds=x, attention_mask=self._mask, position_ids=places.clamp(min=0), **self._how)
        return out.hidden_states[-1][:, -1], out.logits[:, -1]


def advantages(rewards: Sequence[float]) -> list[float]:
    """Each reward less the group's mean, over the group's deviation (of a sample, as the authors take it)."""
    found = torch.tensor(rewards)
    gains: list[float] = ((found - found.mean()) / (found.std() + 1e-8)).tolist()
    return gains


def drawn(logits: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """A token of each row [n], of the likeliest tokens that together have `top_p`."""
    p, order = logits.softmax(-1).sort(-1, descending=True)
    p = p * ((p.cumsum(-1) - p) < top_p)
    at = torch.multinomial(p, 1, generator=generator)
    return order.gather(-1, at)[:, 0]


def opened(folder: Path, files: list[Path], plan: LatentPlan) -> tuple[LatentTrainer, str]:
    """The training of a checkpoint by a plan's method, and its key."""
    trainer = GrpoTrainer if plan.method == "grpo" else LatentTrainer
    return trainer(folder, files, plan), key_of(sorted(folder.glob("*.safetensors")), files, plan)
