"""`edgedec train-heads`: train draft heads of a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._distilling import continued, distill, plan_of, report
from edgedec.cli._exporting import changeable, export_module
from edgedec.cli._output import print_json, progress_bar, size
from edgedec.errors import UsageError
from edgedec.storage.files import replacing

if TYPE_CHECKING:
    import edgedec

Progress = Callable[[str, int, int], None]

_MOST_KEPT = 8192


class Labels(StrEnum):
    """What a head is trained on: the model's own tokens, or those of the text."""

    model = "model"
    text = "text"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class TargetFlags:
    """Where the bundle with the head goes."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER", show_default=False, help="The copy with the head; BUNDLE-KIND by default."
        ),
    ] = None
    in_place: Annotated[bool, typer.Option("--in-place", help="Put the head into BUNDLE itself, not a copy.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace an existing copy.")] = False

    def folder(self, bundle: str, kind: str) -> Path | None:
        """The copy; None for the bundle itself. Refused before anything is trained."""
        if self.in_place:
            if self.out is not None:
                raise typer.BadParameter("--out and --in-place: give one of them")
            changeable(bundle)
            return None
        target = self.out or Path(f"{Path(bundle).name}-{kind}")
        if target.exists() and not self.force:
            raise UsageError(
                f"{target}: exists already; choose another place with --out, or pass --force or --in-place"
            )
        return target


@dataclass(frozen=True)
class HeadFlags:
    """Which head, and what it learns from."""

    kind: Annotated[
        str,
        typer.Option(
            help="eagle3, longspec, hydra++, hydra, medusa, prompt, lud, hidden-transfer, chimera, falcon draft "
            "tokens; exit, kangaroo, m2r2, sec end early."
        ),
    ] = "hydra"
    heads: Annotated[int, typer.Option(min=1, max=16, help="How many tokens ahead a head drafts.")] = 4
    layer: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="Of exit, kangaroo, m2r2, hidden-transfer: after how many layers; a third by default.",
        ),
    ] = 0
    vocab_trim: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default=False,
            help="Draft only the N most used tokens; 0: all. A quarter by default.",
        ),
    ] = None
    self_distill: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Let the model continue N openings of the data, and add these texts."),
    ] = 0
    labels: Annotated[Labels, typer.Option(help="Train on the model's own tokens, or on the text itself.")] = (
        Labels.model
    )
    width: Annotated[int, typer.Option(min=0, help="Inner width of the head; 0: by the model's size.")] = 0
    length: Annotated[
        int, typer.Option(min=16, help="Of kinds that are trained on streams: tokens of a row of text.")
    ] = 512
    keep: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            show_default=False,
            help="Of kinds with attention, m2r2, prompt, lud: write the checkpoint there too, in its layout.",
        ),
    ] = None

    def settings(self, kind: str, how: HeadTraining, vocab: int) -> dict[str, Any]:
        """Fields of every plan. kind: the head's file; vocab: tokens of the model."""
        trim = min(vocab // 4, _MOST_KEPT) if self.vocab_trim is None else self.vocab_trim
        own = {"kind": kind, "depth": self.heads, "width": self.width, "keep": trim}
        return own | how.settings()

    def after(self, early: bool, n_layers: int) -> int:
        """After how many layers an early head comes; 0 for other kinds, after the last."""
        if not early:
            if self.layer:
                raise UsageError("--layer: only kinds after an early layer have one (--kind exit)")
            return 0
        layer = self.layer or max(1, n_layers // 3)
        if layer >= n_layers:
            raise UsageError(f"--layer {layer}: must be from 1 to {n_layers - 1}")
        return layer


@dataclass(frozen=True)
class HeadTraining(o.TrainFlags):
    """The same flags, for a head of a bundle."""

    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            show_default=False,
            help="Keep states and checkpoints there; an interrupted run continues from them.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights, the batches and the texts written.")] = 0


@app.command()
@o.grouped
def train_heads(
    *,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help='Texts like those to come: .txt, or .jsonl with "text" or "prompt".'),
    ],
    target: TargetFlags,
    head: HeadFlags,
    how: HeadTraining,
    json: o.Json = False,
) -> None:
    """Train a draft head and write a copy of the bundle with it.

    \b
    Examples:
      edgedec train-heads ./smol texts.txt
      edgedec train-heads ./smol prompts.jsonl --kind medusa --self-distill 500 --work build/heads
      edgedec train-heads ./smol texts.txt --in-place --kind exit --layer 8 --minutes 10 --threads 2
      edgedec train-heads ./smol texts.txt --kind eagle3 --minutes 60 --work build/eagle
    """
    distilling = export_module("heads_distill", "train-heads", "train")
    kind = distilling.kind_of(head.kind)
    early = distilling.early(kind)
    place = target.folder(bundle, kind)
    with progress_bar(quiet=json) as show:
        model = _opened(bundle, how.threads)
        settings = head.settings(kind, how, model.spec.vocab_size) | {"layer": head.after(early, model.spec.n_layers)}
        if distilling.trains(kind):
            plan = plan_of(distilling, **settings, length=head.length)
            found = distill(model, data, plan, head.self_distill, how.work, head.keep, place, target.force, show)
        else:
            found = _trained(model, data, head, settings, how, (place, target.force), show)
    report(found, json) if distilling.trains(kind) else _report(found, json)


def _opened(bundle: str, threads: int) -> edgedec.Model:
    """The model, whose engine must give hidden states."""
    import edgedec

    model = edgedec.open(bundle, threads=threads)
    model.require_decoder()
    if not model.runtime.capabilities.hidden:
        raise UsageError(f"{bundle}: engine {model.runtime.name} gives no hidden states for a head to read")
    return model


def _trained(
    model: edgedec.Model,
    data: list[Path],
    head: HeadFlags,
    settings: dict[str, Any],
    how: HeadTraining,
    target: tuple[Path | None, bool],
    show: Progress,
) -> Any:
    """The head, trained on hidden states that are kept. target: where the copy goes, and whether it may replace one."""
    training = export_module("heads_train", "train-heads", "train")
    texts = [text for file in data for text in documents(o.read_text(file), str(file))]
    ids = _encoded(model, texts, head.self_distill, how, show)
    plan = training.TrainingPlan(**settings, labels=head.labels.value)
    found = training.run(model.bundle, model.runtime, ids, plan, how.work, show, *target)
    add_read = export_module("read_record", "train-heads", "train").add_read
    return replace(found, bundle=add_read(found.bundle, (found.facts.kind,), texts))


def documents(text: str, name: str) -> list[str]:
    """The texts in a file: lines with a "text" or "prompt" if it is JSONL, else split where <|endoftext|> stands."""
    if not name.endswith(".jsonl"):
        return [part for part in text.split("<|endoftext|>") if part.strip()]
    found = []
    for i, line in enumerate(filter(str.strip, text.split("\n")), 1):
        try:
            item = loads(line)
            found_text = item.get("text", item.get("prompt"))
        except (ValueError, AttributeError):
            found_text = None
        if not isinstance(found_text, str):
            raise UsageError(f'{name}: line {i} is no JSON object with a "text" or "prompt"')
        found.append(found_text)
    return found


def _encoded(model: edgedec.Model, texts: list[str], n: int, how: HeadTraining, show: Progress) -> list[list[int]]:
    """The tokens of the texts, and of `n` that the model wrote from their openings; those are kept in the work
    folder."""
    given = [model.tokenizer.encode(text) for text in texts]
    if not any(given):
        raise UsageError("the data hold no text")
    if not n:
        return given
    weights = model.bundle.manifest.files[model.bundle.manifest.weights].sha256
    key = sha256(dumps([weights, model.runtime.name, given, n, how.seed]).encode()).hexdigest()[:16]
    kept = how.checkpoint(f"written-{key}.json")
    if kept is not None and kept.exists():
        return given + loads(kept.read_text("utf-8"))
    written = list(continued(model, given, n, how.seed, show))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            file.write(dumps(written).encode())
    return given + written


def _report(trained: Any, json: bool) -> None:
    head, file = trained.head, trained.bundle.manifest.files[trained.head.file]
    report = {
        "bundle": str(trained.bundle.path),
        "digest": trained.bundle.digest,
        "kind": trained.facts.kind,
        "file": head.file,
        "bytes": file.size,
        "depth": head.depth,
        "layer": head.layer,
        "vocab": head.vocab,
        "steps": trained.steps,
        "tokens": trained.tokens,
        "loss": trained.loss,
        "accuracy": list(trained.accuracy),
        "covered": trained.covered,
    }
    if json:
        print_json(report)
        return
    right = ", ".join(f"{share:.1%}" for share in trained.accuracy)
    print(f"{trained.bundle.path}: {head.file}, {size(file.size)}, {trained.steps} steps on {trained.tokens} tokens")
    print(
        f"right on text held back: {right}"
        + (f"; its {head.vocab} tokens cover {trained.covered:.1%}" if head.vocab else "")
    )
