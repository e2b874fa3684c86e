"""Distillation of draft models with attention (EAGLE-3, Hydra++) from the target's whole distribution.

The loss of guess k is the cross entropy to the target's distribution over the draft vocabulary, weighted by `DECAY` to
the power of k. The result is a checkpoint folder in the published layout of its kind, which is imported like a
downloaded one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.folder import Bundle
from edgedec.errors import UsageError
from edgedec.export.adam8 import Adam8
from edgedec.export.checkpointing import Checkpointed
from edgedec.export.exits_data import Encode, Place, TokenStream
from edgedec.export.heads_features import FeatureStream, most_used, stream_of, target_of
from edgedec.export.heads_train import copied
from edgedec.export.students import FAMILY as STUDENTS
from edgedec.export.students import Features, StudentFacts, shape_of, student_class
from edgedec.export.students._layers import capped
from edgedec.models.heads import FAMILY as HEADS
from edgedec.runtime import Runtime
from edgedec.storage.files import replacing_folder

DECAY, WARMUP = 0.8, 20
_RATE, _MUON = 1e-2, 6.0  # of AdamW at a hidden size of 128, divided by the root of the size; factor of Muon's rate


@dataclass(frozen=True)
class DistillPlan:
    """How to train. depth: guesses in a row; keep: tokens of its vocabulary, 0 for all; width: of the layer's MLP, 0
    for the target's; blocks: of a Hydra++ head; layer: of Kangaroo, after which it reads; minutes and steps: whichever
    is over first (steps 0: the minutes alone); rate: the highest, 0 to choose by the hidden size; batch: rows of
    `length` tokens in an update."""

    kind: str
    depth: int = 5
    keep: int = 0
    width: int = 0
    blocks: int = 1
    layer: int = 0
    minutes: float = 5.0
    steps: int = 0
    rate: float = 0.0
    batch: int = 1
    length: int = 512
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class DistillQuality:
    """Quality on held-out texts. accuracy: for each guess, the share of rows with the model's prediction, given the
    tokens before it; run: the mean number of right guesses in a row; covered: the share of predictions that are in the
    draft vocabulary."""

    accuracy: tuple[float, ...]
    run: float
    covered: float


class Distiller(Checkpointed):
    """A draft model in training with its target: optimizers, a stream of features, a checkpoint."""

    command = "train-heads"

    def __init__(self, bundle: Bundle, runtime: Runtime, files: list[Path], encode: Encode, plan: DistillPlan) -> None:
        torch.set_num_threads(plan.threads)
        torch.manual_seed(plan.seed)
        spec, kind, facts = bundle.spec, student_class(plan.kind), STUDENTS.facts(plan.kind)
        kind.check(spec)
        self.plan, self.steps, self.spent, self.ahead, self.sure = plan, 0, 0.0, facts.ahead, facts.sure
        layers = kind.depths(spec, plan.layer)
        length = min(plan.length, facts.length or plan.length, spec.context_length - 1)
        tokens = TokenStream(files, encode, length, plan.seed, Place())
        self.stream: FeatureStream = stream_of(bundle, runtime, layers, tokens, facts.anchors)
        self.held = [row for row in self.stream.held() if len(row) > plan.depth + 1]
        if not self.held:
            raise UsageError("the data hold too few texts to keep some back for measuring; give more")
        ids = most_used(files, encode, spec.vocab_size, plan.keep)
        self.shape = shape_of(spec, len(ids), plan.depth, plan.width, plan.blocks, plan.layer)
        self.target = target_of(bundle, ids, self.stream.device)
        self.places = torch.full((spec.vocab_size,), -1, device=self.stream.device)
        self.places[self.target.ids] = torch.arange(len(ids), device=self.stream.device)
        self.student = kind(self.shape, self.target).to(self.stream.device)
        self.student.begin(self.held[0])
        self.weights: dict[str, Tensor] = dict(self.student.named_parameters())
        self.optimizers = self._optimizers(plan.rate or _RATE * (128 / spec.hidden_size) ** 0.5)

    @property
    def place(self) -> Place:
        return self.stream.tokens.place

    def _optimizers(self, rate: float) -> list[Any]:
        """Muon for the matrices inside, which needs far fewer tokens; AdamW for norms, biases, a head, embeddings."""
        inside = {
            name: w.ndim == 2 and not name.startswith(("lm_head", "prompts", "controller", "chimera_head"))
            for name, w in self.weights.items()
        }
        inner, outer = ([w for name, w in self.weights.items() if inside[name] is kind] for kind in (True, False))
        found: list[Any] = [torch.optim.Muon(inner, lr=_MUON * rate, weight_decay=0.0)] if inner else []
        found += [Adam8(outer, lr=rate, betas=(0.9, 0.95))] if outer else []
        for group in (group for one in found for group in one.param_groups):
            group["highest"] = group["lr"]
        return found

    def step(self, progress: float) -> float:
        """One update -> its mean loss a guess."""
        share = min(1.0, (self.steps + 1) / WARMUP) * max(0.0, 1.0 - progress)
        for one in self.optimizers:
            one.zero_grad()
            for group in one.param_groups:
                group["lr"] = share * group["highest"]
        total, self.student.progress = 0.0, progress
        for _ in range(self.plan.batch):
            loss = self.loss(next(self.stream)) / self.plan.batch
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for one in self.optimizers:
            one.step()
        self.steps += 1
        return total

    def loss(self, row: Features) -> Tensor:
        """The weighted mean of the guesses' losses; predictions outside the draft vocabulary are not learned."""
        if (own := self.student.own_loss(row)) is not None:
            return own
        depth, logits = self.plan.depth, self.student.logits(row, self.plan.depth)
        teacher, said = self._teacher(row), self.places[row.said]
        n, total = logits.shape[1], torch.zeros((), device=logits.device)
        weights, spans = [DECAY**k for k in range(depth)], _spans(teacher, self.sure, self.ahead + depth)
        for k, weight in enumerate(weights):
            there = (said[self.ahead + k :][:n] >= 0) & spans[self.ahead + k][:n]
            each = functional.cross_entropy(logits[k], teacher[self.ahead + k :][:n], reduction="none")
            total = total + weight * (each * there).mean()
        return total / sum(weights)

    def _teacher(self, row: Features) -> Tensor:
        """The target's probabilities of the kept tokens after each token [T, kept]."""
        with torch.no_grad():
            normed = functional.rms_norm(row.last, row.last.shape[-1:], self.target.norm, self.shape.eps)
            return capped(functional.linear(normed, self.target.readout), self.shape.softcap).softmax(-1)

    def measure(self) -> DistillQuality:
        known, right, runs, rows = 0.0, torch.zeros(self.plan.depth), 0.0, 0
        for row in self.held:
            hits = self._hits(row)
            n = hits.shape[1]
            right, runs, rows = right + hits.sum(1), runs + float(hits.cumprod(0).sum()), rows + n
            known += float((self.places[row.said[self.ahead :][:n]] >= 0).sum())
        return DistillQuality(tuple((right / rows).tolist()), runs / rows, known / rows)

    def _hits(self, row: Features) -> Tensor:
        """Which guesses equal the model's prediction, as 0 and 1 [depth, n]."""
        with torch.no_grad():
            guesses = self.target.ids[self.student.logits(row, self.plan.depth).argmax(-1)]
        n = guesses.shape[1]
        return torch.stack([guess == row.said[self.ahead + k :][:n] for k, guess in enumerate(guesses)]).float().cpu()

    def write(self, folder: Path, name: str) -> None:
        """The published layout: config.json and the tensors."""
        tensors = {key: tensor.cpu().clone() for key, tensor in self.student.published().items()}
        config = dict(self.student.config())
        if "base_model_name_or_path" in config:
            config["base_model_name_or_path"] = name
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _spans(teacher: Tensor, sure: float, length: int) -> list[Tensor]:
    """Whether the target is this sure of the token after row t and of the i after it: item i, bool [T - i] by t.

    largest probabilities .9 .8 .3 .9, sure .7 -> [1 1 0 1], [1 0 0], [0 0]
    """
    known = teacher.max(-1).values >= sure
    found = [known]
    for i in range(1, length):
        found.append(found[-1][:-1] & known[i:])
    return found


def kind_of(name: str) -> str:
    """The file name of a kind that is trained, here or on hidden states alone; UsageError if there is none."""
    if name in STUDENTS:
        return STUDENTS.aliases.get(name, name)
    if name not in HEADS:
        known = ", ".join(sorted({*HEADS.names(), *STUDENTS.names()}))
        raise UsageError(f"no draft head {name!r}; there are: {known}")
    return name


def trains(kind: str) -> bool:
    """Whether the kind is trained here."""
    return kind in STUDENTS


def facts_of(kind: str) -> StudentFacts:
    """What a kind that is trained here declares."""
    return STUDENTS.facts(kind)


def early(kind: str) -> bool:
    """Whether a head of the kind follows an early layer."""
    return STUDENTS.facts(kind).early if kind in STUDENTS else HEADS.facts(kind).early


def key_of(bundle: Bundle, runtime: Runtime, files: list[Path], plan: DistillPlan) -> str:
    """The key of a training: model, texts and options without its duration and number of threads."""
    weights = bundle.manifest.files[bundle.manifest.weights].sha256
    said = sha256(json.dumps([weights, runtime.name, asdict(plan) | {"minutes": 0, "threads": 0}]).encode())
    for path in files:
        said.update(f"{path.stat().st_size} ".encode())
        with path.open("rb") as file:
            said.update(file.read(1 << 20))
    return said.hexdigest()


def imported(bundle: Bundle, folder: Path, target: Path | None, force: bool) -> tuple[Bundle, str]:
    """Put the checkpoint in `folder` into a copy of the bundle at `target`, or into the bundle itself if None."""
    from edgedec.export.drafts import add_draft

    if target is None:
        return add_draft(Bundle.open(bundle.path), folder)
    with replacing_folder(target, force=force) as staging:
        _, kind = add_draft(copied(bundle, staging), folder)
    return Bundle.open(target), kind
