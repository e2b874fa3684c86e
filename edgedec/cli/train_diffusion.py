"""`edgedec train-diffusion`: train a checkpoint to fill masks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.cli._own_texts import own_texts, work_folder
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

if TYPE_CHECKING:
    from edgedec.export.diffusion_train import FillingQuality


class Sees(StrEnum):
    """What a row of the model sees."""

    causal = "causal"
    block = "block"
    full = "full"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class FillingFlags:
    """The recipe, and the model that it makes."""

    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME:OPTION=VALUE,…",
            help="nbdiff, sdar_vl, nap; dparallel and cd4lm for models that fill masks already.",
        ),
    ] = "nbdiff"
    block: Annotated[int | None, o.option(min=1, metavar="N", help="Tokens of a block; 8 by default.")] = None
    context: Annotated[Sees | None, o.option(help="What a row sees; causal by default.")] = None
    shift: Annotated[
        bool | None, o.option("--shift/--no-shift", help="A row gives the token after its own; so by default.")
    ] = None
    mask: Annotated[
        int | None, o.option(min=0, metavar="TOKEN", help="The mask; a token more than the model has by default.")
    ] = None
    rate: Annotated[float, typer.Option(min=0.0, help="The learning rate at its highest.")] = 2e-4
    batch: Annotated[int, typer.Option(min=1, help="Rows of an update.")] = 4
    length: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 256

    def facts(self) -> dict[str, Any]:
        """As fields of `WantedFacts`."""
        context = self.context and self.context.value
        return {"mask": self.mask, "shift": self.shift, "context": context, "block": self.block}


@dataclass(frozen=True)
class FillingTraining(o.TrainFlags):
    """The same flags, for a checkpoint that is trained as a whole."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 60.0
    steps: Annotated[int, typer.Option(min=0, help="At most so many updates; 0: the minutes alone.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the texts and of the masks.")] = 0
    self_distill: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Let the model answer N prompts of the texts, and train on that."),
    ] = 0


@dataclass(frozen=True)
class FillingOutput:
    """What is written."""

    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the trained checkpoint goes.")]
    bundle: Annotated[
        Path | None, o.option("--bundle", metavar="FOLDER", help="Make a bundle of it too, as `export` does.")
    ] = None
    weights: Annotated[o.Weights | None, o.option(help="Of the bundle; int4 by default.")] = None
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False

    def check(self) -> None:
        """UsageError before anything is trained."""
        for path in filter(None, (self.out, self.bundle)):
            if path.exists() and not self.force:
                raise UsageError(f"{path}: exists already; choose another place or pass --force")


@app.command()
@o.grouped
def train_diffusion(
    *,
    checkpoint: Annotated[
        str, typer.Argument(metavar="PATH", help="Hugging Face folder of the model, or a bundle with float weights.")
    ],
    text: Annotated[
        list[Path],
        typer.Option(
            "--text", metavar="FILE", help='Your texts: .txt, .jsonl with "text", or "prompt" and "answer"; repeatable.'
        ),
    ],
    output: FillingOutput,
    flags: FillingFlags,
    how: FillingTraining,
    json: o.Json = False,
) -> None:
    """Train a checkpoint to fill masks, several tokens a pass.

    \b
    Examples:
      edgedec train-diffusion ./smol-hf --text texts.txt -o ./smol-block --minutes 240 --work build/block
      edgedec train-diffusion ./smol-block --text texts.txt -o ./smol-fast --recipe dparallel --self-distill 500
    """
    start, training, loop = (
        export_module(name, "train-diffusion", "train")
        for name in ("diffusion_start", "diffusion_train", "training_loop")
    )
    output.check()
    with progress_bar(quiet=json) as show, work_folder(how.work) as room:
        folder = start.checkpoint_folder(checkpoint, room)
        facts, fills = start.facts_of(folder, start.WantedFacts(**flags.facts()))
        given = {"recipe": flags.recipe, "rate": flags.rate, "batch": flags.batch, "length": flags.length}
        plan = training.FillingPlan(**given, facts=facts, **how.settings())
        training.check_recipe(plan, fills)
        trainer, key = training.opened(folder, plan, _texts(folder, text, how, room, show))
        before = trainer.measure()
        loop.train(trainer, how.checkpoint("diffusion.safetensors"), key, show, training.SAVE_EVERY)
        with replacing_folder(output.out, force=output.force) as made:
            start.write_filling(trainer.net.model, facts, folder, made)
        if output.bundle is not None:
            _export(output.out, output, show)
    _report(output, trainer.steps, before, trainer.measure(), json)


def _texts(folder: Path, given: list[Path], how: FillingTraining, room: Path, show: Any) -> list[Path]:
    """The texts to train on: those given, or what the model writes from their prompts and openings."""
    if not how.self_distill:
        return given
    return [own_texts(folder, given, how.self_distill, how.seed, room, how.threads, show)]


def _export(out: Path, output: FillingOutput, show: Any) -> None:
    exporter = export_module("exporter", "train-diffusion --bundle")
    weights = output.weights and output.weights.value
    exporter.export(str(out), output.bundle, exporter.ExportOptions(weights=weights, force=output.force), show)


def _report(output: FillingOutput, steps: int, before: FillingQuality, after: FillingQuality, json: bool) -> None:
    if json:
        found = {"path": str(output.out), "bundle": output.bundle and str(output.bundle), "steps": steps}
        print_json(found | {key: [vars(before)[key], vars(after)[key]] for key in vars(before)})
        return
    print(f"{output.out}: {steps} updates; on texts held back, half of each block masked:")
    print(f"  right {before.right:.1%} before, {after.right:.1%} after ({before.masks:.3f}, {after.masks:.3f} nats)")
    if before.following is not None:
        print(f"  one token after another {before.following:.3f} nats before, {after.following:.3f} after")
