"""`edgedec train-lora`: train a LoRA adapter, and the gates by which sets of adapters are routed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import encoder_of, export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.cli._own_texts import work_folder
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class LoraFlags:
    """The adapter, and its gates."""

    given: Annotated[
        Path | None,
        o.option(
            "--from",
            metavar="FOLDER",
            help="A PEFT LoRA checkpoint: only its gates are trained, whatever rank, minutes, steps and rate say.",
        ),
    ] = None
    rank: Annotated[int, typer.Option(min=1, help="Of a new adapter.")] = 16
    gates: Annotated[int, typer.Option(min=0, metavar="N", help="Updates of the gates; 0: no gates.")] = 100
    gate_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate of the gates.")] = 5e-3

    def check(self) -> None:
        if self.given is not None and not self.gates:
            raise UsageError("--gates 0: with --from only gates are trained")


@dataclass(frozen=True)
class UpdateFlags:
    """The rows of an update."""

    rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 1e-3
    batch: Annotated[int, typer.Option(min=1, help="Rows of an update.")] = 8
    length: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 256


@dataclass(frozen=True)
class LoraTraining(o.TrainFlags):
    """The same flags, for an adapter beside a checkpoint."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training, without the gates.")] = 10.0
    steps: Annotated[int, typer.Option(min=0, help="At most so many updates; 0: the minutes alone.")] = 0


@app.command()
@o.grouped
def train_lora(
    *,
    checkpoint: Annotated[str, typer.Argument(metavar="PATH", help="Hugging Face folder of the model, or a bundle.")],
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help='Texts: .txt, or .jsonl with "text".')],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the adapter goes, as PEFT has it.")],
    flags: LoraFlags,
    rows: UpdateFlags,
    how: LoraTraining,
    force: Annotated[bool, typer.Option("--force", help="Replace FOLDER if it exists.")] = False,
    json: o.Json = False,
) -> None:
    """Train a LoRA adapter, and its gates for sets of adapters.

    The model's weights stay as they are, so they may be those of a bundle. `edgedec adapter` makes a file for --lora of
    FOLDER.

    \b
    Examples:
      edgedec train-lora ./smol-hf law.txt -o ./law --minutes 30
      edgedec train-lora ./smol-hf code.txt -o ./code-gated --from ./code
    """
    modules = ("diffusion_start", "lora_train", "training_loop", "row_training")
    start, training, loop, keys = (export_module(name, "train-lora", "train") for name in modules)
    flags.check()
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    with progress_bar(quiet=json) as show, work_folder(how.work) as room:
        folder = start.checkpoint_folder(checkpoint, room, frozen=True)
        net, encode = training.LoraNet(folder, flags.rank, how.seed, flags.given), encoder_of(folder, "train-lora")
        plan = training.LoraPlan(**asdict(rows), **how.settings())
        training.check_length(net, plan)
        found: dict[str, float] = {}
        key = f"{keys.key_of(training.files_of(folder, flags.given), data, plan)} {flags.rank}"

        def trained(plan: Any, weights: Any, name: str, after: str = "") -> int:
            trainer = training.LoraTrainer(net, data, encode, plan, weights)
            found.setdefault("before", trainer.measure())
            bar = partial(_as_stage, show, name)
            loop.train(trainer, how.checkpoint(f"{name}{after}.safetensors"), f"{key} {plan.rate} {plan.steps}", bar)
            found[name] = trainer.measure()
            return int(trainer.steps)

        # Gates are those of an adapter that was trained for so many steps: a longer training has others.
        done = 0 if flags.given is not None else trained(plan, net.low_rank(), "adapter")
        if flags.gates:
            gated = replace(plan, minutes=inf, steps=flags.gates, rate=flags.gate_rate)
            trained(gated, net.new_gates(), "gates", f"-{done}")
        with replacing_folder(out, force=force) as made:
            training.write_peft(net, checkpoint, made)
    _report(out, len(net.parts), found, json)


def _as_stage(show: Callable[[str, int, int], None], name: str, stage: str, done: int, total: int) -> None:
    """Progress of what is trained, a bar for each."""
    show(name, done, total)


def _report(out: Path, matrices: int, nats: dict[str, float], json: bool) -> None:
    """nats: a token on texts held back, by what was trained so far."""
    if json:
        print_json({"path": str(out), "matrices": matrices, "nats": nats})
        return
    print(f"{out}: {matrices} matrices; nats a token on texts held back:")
    for name, value in nats.items():
        print(f"  {name}: {value:.3f}")
