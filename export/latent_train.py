"""Training of latent reasoning: CoLaR (Tan et al., arXiv:2505.16552), from the authors' code, xiaomi-research/colar.

`colar`: steps are read r tokens a row, r drawn from 1 to `most` for each group of problems. The loss is the cross
entropy of the next row's token plus the squared distance of a row that the latent head draws from the next row, over
the deviation of the embeddings. Embeddings and head matrix stay as they are: rows are sums of them. It begins with a
model that `cot` trained, which reads all steps as tokens, or goes on with one that has a latent head. `direct` trains
the same model to answer at once, to compare with. All other weights are trained, where the authors train low-rank ones;
rate and optimizer are those of our other trainings. `grpo`, their second stage, is in `latent_grpo.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from edgedec.bundle.latent_head import LatentFacts
from edgedec.errors import UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.exits_data import Encode
from edgedec.export.exits_model import load, write_model
from edgedec.export.latent_head import FILE, LatentNetwork, check_model, read_latent
from edgedec.export.latent_rows import IGNORED, ProblemStream, Reasoning, problem_of, reasoning
from edgedec.export.lessons import LessonEncoder
from edgedec.export.row_training import RowTrainer
from edgedec.export.text import ends_of

SAVE_EVERY = 120.0  # seconds


@dataclass(frozen=True)
class LatentPlan:
    """method: see above; most: the most tokens that a row stands for; width: of the head's inner layers; minutes and
    steps: whichever is over first (steps 0: the minutes alone); rate: the learning rate at its highest; batch: groups
    of `together` problems, of at most `length` tokens each, in an update; samples: of `grpo`, whose groups are
    solutions of one problem."""

    method: Literal["colar", "cot", "direct", "grpo"] = "colar"
    most: int = 5
    width: int = 2048
    minutes: float = 60.0
    steps: int = 0
    rate: float = 1e-4
    batch: int = 1
    together: int = 32
    samples: int = 8
    length: int = 512
    seed: int = 0
    threads: int = 1
    separator: str = "###"
    speed: str = "(Thinking speed: {})"


@dataclass(frozen=True)
class LatentQuality:
    """Of problems held back. nats: of a label; distance: squared, of a drawn row from the next one, a number of it and
    over the embeddings' deviation; 0 where there are none. right: the share that is solved, and rows: of a solution;
    `grpo` alone measures them."""

    nats: float
    distance: float
    right: float = 0.0
    rows: float = 0.0


class LatentNet(nn.Module):  # type: ignore[misc]
    """The network of `latent_head.py`, with its names."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))
        self.mean, self.log_std = nn.Linear(width, hidden), nn.Linear(width, hidden)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """states [n, hidden], noise [n, hidden] -> rows drawn [n, hidden]"""
        mean, deviation = self.law(x)
        return mean + deviation * noise

    def law(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """states [n, hidden] -> means and deviations of the rows [n, hidden]"""
        y = self.fc(x)
        return self.mean(y), self.log_std(y).exp()


class LatentTrainer(RowTrainer):
    """A model in training, with its latent head."""

    command = "train-latent"
    plan: LatentPlan
    rows = ProblemStream

    def __init__(self, folder: Path, files: list[Path], plan: LatentPlan) -> None:
        self.folder, self.facts = folder, LatentFacts(plan.most, plan.separator, plan.speed)
        spec = Checkpoint.open(folder).spec()
        check_model(spec, self.command)
        self._tokenizer = tokenizer = _tokenizer(folder)
        self._plain: Encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
        ends = ends_of(folder, Checkpoint.open(folder).config)
        self._end = ends[0] if ends else None
        encode = LessonEncoder(lambda text, begins: tokenizer.encode(text, add_special_tokens=begins).ids, self._end)
        super().__init__(files, encode, plan, least=2)
        separator = self._plain(plan.separator)
        if len(separator) != 1:
            raise UsageError(f"{folder}: its tokenizer writes {plan.separator!r} as {len(separator)} tokens, not one")
        self.longest = spec.context_length
        most = self.longest - len(self._opening(plan.most)) - 2  # the separators
        if plan.length > most:
            raise UsageError(
                f"--length {plan.length}: with its speed and separators the model reads at most {most} tokens"
            )
        self._separator, self.model = separator[0], load(folder)
        self._embed = self.model.get_input_embeddings()
        torch.manual_seed(plan.seed)
        self.net, self._std = self._network()
        self._train_what_learns()

    def _network(self) -> tuple[LatentNet, float]:
        """The checkpoint's head, or a new one, and the embeddings' deviation."""
        weight = self._embed.weight.detach()
        found = self._head()
        if found is None:
            return LatentNet(weight.shape[1], self.plan.width), float(weight.std())
        net = LatentNet(weight.shape[1], len(found.arrays["fc.0.bias"]))
        net.load_state_dict({name: torch.tensor(array) for name, array in found.arrays.items()})
        return net, found.std

    def _head(self) -> LatentNetwork | None:
        """The checkpoint's head, if this training goes on with it."""
        return read_latent(self.folder) if self._latent else None

    @property
    def _latent(self) -> bool:
        """Whether there is a latent head to train."""
        return self.plan.method in ("colar", "grpo")

    def _train_what_learns(self) -> None:
        weights = dict(self.model.named_parameters())
        if self._latent:
            for fixed in (self._embed.weight, self.model.get_output_embeddings().weight):
                fixed.requires_grad_(False)
            weights |= {f"latent.{name}": w for name, w in self.net.named_parameters()}
        self.optimize({name: w for name, w in weights.items() if w.requires_grad})

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        """Of this problem and those that run together with it."""
        rows = [row, *(next(self.stream) for _ in range(self.plan.together - 1))]
        nats, distance = self.parted(rows, draw)
        return nats if distance is None else nats + distance

    def parted(self, rows: list[list[int]], draw: random.Random) -> tuple[Tensor, Tensor | None]:
        """The cross entropy of the labels, and the squared distance of the latent rows, None if there are none."""
        r = self._ratio(draw)
        made = [reasoning(problem_of(row), r, self._opening, self._separator, draw) for row in rows]
        x, labels = self._batch(made)
        out = self.model(inputs_embeds=x, use_cache=False, output_hidden_states=self._latent)
        nats = functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        if not self._latent:
            return nats, None
        states = torch.cat([h[slice(*one.latent)] for h, one in zip(out.hidden_states[-1], made, strict=True)])
        wanted = torch.cat([e[1 + one.latent[0] : 1 + one.latent[1]] for e, one in zip(x, made, strict=True)])
        noise = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(draw.getrandbits(62)))
        return nats, functional.mse_loss(self.net(states, noise), wanted.detach() / self._std)

    def _ratio(self, draw: random.Random) -> int:
        """The tokens that rows of a group of problems stand for; 0: it has no steps."""
        return draw.randint(1, self.plan.most) if self.plan.method == "colar" else int(self.plan.method == "cot")

    def _opening(self, r: int) -> list[int]:
        return list(self._plain(self.facts.opening(r)))

    def _batch(self, made: list[Reasoning]) -> tuple[Tensor, Tensor]:
        """Rows [B, T, hidden] and labels [B, T] of the longest; zeros and IGNORED after the others."""
        longest = max(len(one.groups) for one in made)
        x = torch.stack(
            [functional.pad(self.compressed(one.groups), (0, 0, 0, longest - len(one.groups))) for one in made]
        )
        labels = [one.labels + [IGNORED] * (longest - len(one.labels)) for one in made]
        return x, torch.tensor(labels)

    def compressed(self, groups: list[list[int]]) -> Tensor:
        """The row of each group [n, hidden]: the sum of its embeddings over the root of its size."""
        sizes = torch.tensor([len(group) for group in groups])
        found = self._embed(torch.tensor([token for group in groups for token in group]))
        at = torch.arange(len(groups)).repeat_interleave(sizes)
        summed = torch.zeros(len(groups), found.shape[1]).index_add(0, at, found)
        return summed / sizes[:, None].sqrt()

    def measure(self) -> LatentQuality:
        with torch.no_grad():
            nats, distance = self.parted(self.held, random.Random(f"{self.plan.seed} held"))
        return LatentQuality(float(nats), 0.0 if distance is None else float(distance))

    def write(self, out: Path) -> None:
        """The model as a Hugging Face folder, with the head beside it."""
        write_model(self.model, self.folder, out)
        if self._latent:
            arrays: dict[str, Any] = {name: w.detach().clone() for name, w in self.net.named_parameters()}
            said = LatentNetwork({}, self._std, self.facts).metadata()
            save_file(arrays, out / FILE, said)


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"{path}: missing; train-latent reads texts with it")
    return Tokenizer.from_file(str(path))
