"""`edgedec train-latent`: train a checkpoint to reason in rows that are no tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

if TYPE_CHECKING:
    from edgedec.export.latent_train import LatentQuality


class LatentMethod(StrEnum):
    """How a model comes to its answers."""

    colar = "colar"
    cot = "cot"
    direct = "direct"
    grpo = "grpo"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class LatentFlags:
    """What is trained, and on which problems."""

    method: Annotated[
        LatentMethod,
        typer.Option(
            help="cot: steps as tokens, before colar; grpo: from right answers, after colar; direct: no steps, to "
            "compare with."
        ),
    ] = LatentMethod.colar
    most: Annotated[
        int, typer.Option(min=1, max=64, help="The most tokens that a row stands for; grpo: of all rows.")
    ] = 5
    width: Annotated[int, typer.Option(min=1, help="Of a new latent head's inner layers.")] = 2048
    separator: Annotated[str, typer.Option(help="Before and after the steps; one token.")] = "###"
    rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 1e-4
    batch: Annotated[int, typer.Option(min=1, help="Groups of problems of an update.")] = 1
    together: Annotated[int, typer.Option(min=1, help="Problems of a group, which run together.")] = 32
    samples: Annotated[int, typer.Option(min=2, help="Of grpo, whose groups are so many solutions of a problem.")] = 8
    length: Annotated[int, typer.Option(min=8, help="Tokens of a problem; longer ones are left out.")] = 512


@dataclass(frozen=True)
class LatentTraining(o.TrainFlags):
    """The same flags, for a checkpoint that is trained as a whole."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 60.0
    steps: Annotated[int, typer.Option(min=0, help="At most so many updates; 0: the minutes alone.")] = 0


@app.command()
@o.grouped
def train_latent(
    *,
    checkpoint: Annotated[Path, typer.Argument(metavar="PATH", help="Hugging Face folder of the model.")],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help='.jsonl with "prompt", "parts" (the steps, a list) and "answer".'),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the trained checkpoint goes.")],
    flags: LatentFlags,
    how: LatentTraining,
    force: Annotated[bool, typer.Option("--force", help="Replace FOLDER if it exists.")] = False,
    json: o.Json = False,
) -> None:
    """Train a checkpoint to reason in latent rows.

    \b
    Examples:
      edgedec train-latent ./smol-hf problems.jsonl -o ./smol-cot --method cot --minutes 120
      edgedec train-latent ./smol-cot problems.jsonl -o ./smol-colar --minutes 120 --work build/colar
      edgedec train-latent ./smol-colar problems.jsonl -o ./smol-rl --method grpo --rate 1e-6 --minutes 120
    """
    files = "latent_train", "latent_grpo", "training_loop"
    training, grpo, loop = (export_module(name, "train-latent", "train") for name in files)
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    plan = training.LatentPlan(**{**asdict(flags), "method": flags.method.value}, **how.settings())
    with progress_bar(quiet=json) as show:
        trainer, key = grpo.opened(checkpoint, data, plan)
        before = trainer.measure()
        loop.train(trainer, how.checkpoint("latent.safetensors"), key, show, training.SAVE_EVERY)
        with replacing_folder(out, force=force) as folder:
            trainer.write(folder)
    _report(out, trainer.steps, before, trainer.measure(), json)


def _report(out: Path, steps: int, before: LatentQuality, after: LatentQuality, json: bool) -> None:
    if json:
        print_json({"path": str(out), "steps": steps, "before": asdict(before), "after": asdict(after)})
        return
    print(
        f"{out}: {steps} updates; on problems held back {before.nats:.3f} nats a token before, {after.nats:.3f} after"
    )
    if after.distance:
        print(
            f"squared distance of a latent row from the next: {before.distance:.3f} before, {after.distance:.3f} after"
        )
    if after.rows:
        print(
            f"solved: {before.right:.0%} in {before.rows:.1f} rows before, {after.right:.0%} in {after.rows:.1f} after"
        )
