"""`edgedec train-exits`: train a checkpoint so that it may be left early."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import encoder_of, export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

if TYPE_CHECKING:
    from edgedec.export.exits_train import ExitPlan, ExitQuality


class Method(StrEnum):
    """How exits are trained: as guesses of the whole model, or as models of their own."""

    layerskip = "layerskip"
    s2d = "s2d"
    sortednet = "sortednet"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class ExitFlags:
    """What is trained, and on which rows."""

    exits: Annotated[
        str,
        typer.Option(
            metavar="N,N,…", show_default=False, help="Layers to leave after; a sixth to two thirds by default."
        ),
    ] = ""
    method: Annotated[
        Method, typer.Option(help="s2d, sortednet: the exits are models of their own, for --spec nested.")
    ] = Method.layerskip
    drop: Annotated[float, typer.Option(min=0.0, max=0.9, help="How often the last layer is left out.")] = 0.1
    early: Annotated[float, typer.Option(min=0.0, help="Weight of the exits' losses.")] = 1.0
    rotate: Annotated[int, typer.Option(min=1, help="An update trains one exit in so many, by turns.")] = 4
    soft: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of an exit's loss that follows the whole model, not the text."),
    ] = 0.5
    rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 5e-5
    batch: Annotated[int, typer.Option(min=1, help="Rows of an update.")] = 8
    length: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 512

    def plan(self, training: Any, n_layers: int, how: ExitTraining) -> ExitPlan:
        exits = _exits(self.exits, n_layers) or training.default_exits(n_layers)
        plan: ExitPlan = training.ExitPlan(
            **{**asdict(self), "exits": exits, "method": self.method.value}, **how.settings()
        )
        return plan


@dataclass(frozen=True)
class ExitTraining(o.TrainFlags):
    """The same flags, for a checkpoint that is trained as a whole."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 60.0
    steps: Annotated[int, typer.Option(min=0, help="At most so many updates; 0: the minutes alone.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the texts and of the layers left out.")] = 0


@app.command()
@o.grouped
def train_exits(
    *,
    checkpoint: Annotated[Path, typer.Argument(metavar="PATH", help="Hugging Face folder of the model.")],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help='Texts like those the model was trained on: .txt, or .jsonl with "text".'),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the trained checkpoint goes.")],
    flags: ExitFlags,
    how: ExitTraining,
    force: Annotated[bool, typer.Option("--force", help="Replace FOLDER if it exists.")] = False,
    json: o.Json = False,
) -> None:
    """Train a checkpoint so that it can draft by leaving early.

    \b
    Examples:
      edgedec train-exits ./smol-hf texts.txt -o ./smol-exits --minutes 120 --work build/exits
      edgedec train-exits ./smol-hf texts.jsonl -o ./smol-exits --exits 4,6,8 --threads 4 --force
    """
    models, training, loop = (
        export_module(name, "train-exits", "train") for name in ("exits_model", "exits_train", "training_loop")
    )
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    with progress_bar(quiet=json) as show:
        model = models.Early(models.load(checkpoint), str(checkpoint))
        if flags.length > model.context:
            raise UsageError(f"--length {flags.length}: the model reads at most {model.context} tokens")
        plan = flags.plan(training, len(model), how)
        trainer = training.ExitTrainer(model, data, encoder_of(checkpoint, "train-exits"), plan)
        key = training.key_of(checkpoint, data, plan)
        before = trainer.measure()
        loop.train(trainer, how.checkpoint("exits.safetensors"), key, show, training.SAVE_EVERY)
        with replacing_folder(out, force=force) as folder:
            models.write(model, checkpoint, folder)
    _report(out, plan, trainer.steps, before, trainer.measure(), json)


def _exits(given: str, n_layers: int) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in given.split(",") if part.strip()}))
    except ValueError:
        raise UsageError(f"--exits {given}: must be numbers of layers, such as 4,6,8") from None
    if any(not 0 < e < n_layers for e in found):
        raise UsageError(f"--exits {given}: must be from 1 to {n_layers - 1}")
    return found


def _report(out: Path, plan: ExitPlan, steps: int, before: ExitQuality, after: ExitQuality, json: bool) -> None:
    if json:
        exits = {str(e): [before.agreement[e], after.agreement[e]] for e in plan.exits}
        print_json({"path": str(out), "steps": steps, "loss": [before.loss, after.loss], "agreement": exits})
        return
    print(f"{out}: {steps} updates; loss on text held back {before.loss:.3f} before, {after.loss:.3f} after")
    for e in plan.exits:
        was, now = before.agreement[e], after.agreement[e]
        print(f"left after {e} layers, the next token is the whole model's: {was:.1%} before, {now:.1%} after")
