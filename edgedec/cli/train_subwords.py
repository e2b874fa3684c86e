"""`edgedec train-subwords`: train what makes one embedding of the subwords of a word."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import changeable, export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class SubwordFlags:
    """What is trained, and on which texts."""

    width: Annotated[int, typer.Option(min=4, help="Of the network; a multiple of 4.")] = 128
    layers: Annotated[int, typer.Option(min=0, max=16, help="Of the network.")] = 2
    longest: Annotated[int, typer.Option(min=2, max=64, help="The most tokens that become one.")] = 8
    cut: Annotated[float, typer.Option(min=0.05, max=0.9, help="Mean share of the rows that merging saves.")] = 0.3
    ahead: Annotated[int, typer.Option(min=1, help="Tokens after a prompt that are measured.")] = 64
    length: Annotated[int, typer.Option(min=32, help="Tokens of a text.")] = 256
    batch: Annotated[int, typer.Option(min=1, help="Texts of an update, which are merged together.")] = 4
    rate: Annotated[float, typer.Option(min=0.0, help="The learning rate at its highest.")] = 1e-3


@app.command()
@o.grouped
def train_subwords(
    *,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help='Texts: .txt, or .jsonl with "text".')],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", show_default=False, help="BUNDLE.subwords by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    flags: SubwordFlags,
    how: o.PartTrainFlags,
    json: o.Json = False,
) -> None:
    """Train embeddings of joined subwords: prompts in fewer rows.

    \b
    Examples:
      edgedec train-subwords ./smol texts.txt --minutes 60 --work build/subwords
      edgedec train-subwords nano questions.jsonl -o nano.subwords --length 128
    """
    import edgedec
    from edgedec.text.subwords import joinable_of

    training, loop, rows = (
        export_module(name, "train-subwords", "train") for name in ("subwords", "training_loop", "row_training")
    )
    file = out or Path(f"{changeable(bundle)}.subwords")
    model = edgedec.open(bundle, threads=how.threads)
    model.require_decoder()
    if file.exists() and not force:
        raise UsageError(f"{file}: exists already; choose another place with --out, or pass --force")
    plan = training.SubwordPlan(**asdict(flags), **how.settings())
    joinable = joinable_of(model.tokenizer, model.spec.vocab_size)
    with progress_bar(quiet=json) as show:
        trainer = training.SubwordTrainer(model.bundle, data, model.tokenizer.encode, joinable, plan)
        key = rows.key_of([model.bundle.file(model.bundle.manifest.weights)], data, plan)
        loss = loop.train(trainer, how.checkpoint("subwords.safetensors"), key, show)
    trainer.write(file)
    _report(file, trainer.steps, loss, trainer.measure(), trainer.measure(mean=True), json)


def _report(file: Path, steps: int, loss: float, network: dict[float, Any], mean: dict[float, Any], json: bool) -> None:
    if json:
        found = {name: [at._asdict() for at in by.values()] for name, by in (("network", network), ("mean", mean))}
        print_json({"file": str(file), "steps": steps, "loss": loss, **found})
        return
    print(f"{file}: {steps} steps; what follows a merged prompt, on texts held back:")
    for share, at in network.items():
        other = mean[share]
        print(f"  {at.saved:4.0%} of the rows saved: perplexity {at.perplexity:.3f}, divergence {at.divergence:.3f}")
        if at.saved:
            print(f"       with the mean of the subwords: {other.perplexity:.3f}, {other.divergence:.3f}")
