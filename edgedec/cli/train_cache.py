"""`edgedec train-cache`: train what adds latent entries to a model's cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import changeable, export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class CoprocessorFlags:
    """What is trained, and on which texts."""

    entries: Annotated[int, typer.Option(min=1, max=64, help="The most latent entries that it makes.")] = 8
    rank: Annotated[int, typer.Option(min=1, help="Of its low-rank weights.")] = 16
    ahead: Annotated[int, typer.Option(min=1, help="Tokens after the entries that it learns from.")] = 64
    length: Annotated[int, typer.Option(min=32, help="Tokens of a text.")] = 256
    rate: Annotated[float, typer.Option(min=0.0, help="The learning rate at its highest.")] = 2e-3


@app.command()
@o.grouped
def train_cache(
    *,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help='Texts: .txt, or .jsonl with "text".')],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", show_default=False, help="BUNDLE.coprocessor by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    flags: CoprocessorFlags,
    how: o.PartTrainFlags,
    json: o.Json = False,
) -> None:
    """Train what adds latent entries to the cache.

    \b
    Examples:
      edgedec train-cache ./smol texts.txt --minutes 60 --work build/coprocessor
      edgedec train-cache nano stories.txt -o nano.coprocessor --entries 4
    """
    import edgedec

    training, loop = (export_module(name, "train-cache", "train") for name in ("coprocessor", "training_loop"))
    file = out or Path(f"{changeable(bundle)}.coprocessor")
    model = edgedec.open(bundle, threads=how.threads)
    model.require_decoder()
    if file.exists() and not force:
        raise UsageError(f"{file}: exists already; choose another place with --out, or pass --force")
    plan = training.CoprocessorPlan(**asdict(flags), **how.settings())
    with progress_bar(quiet=json) as show:
        trainer = training.CoprocessorTrainer(model.bundle, data, model.tokenizer.encode, plan)
        key = training.key_of(model.bundle, data, plan)
        loss = loop.train(trainer, how.checkpoint("coprocessor.safetensors"), key, show)
    trainer.write(file)
    _report(file, trainer.steps, loss, trainer.measure(), trainer.measure(others=True), json)


def _report(
    file: Path, steps: int, loss: float, perplexity: dict[int, float], others: dict[int, float], json: bool
) -> None:
    if json:
        report = {"file": str(file), "steps": steps, "loss": loss, "perplexity": perplexity}
        print_json(report | {"perplexity_of_another_text": others})
        return
    print(f"{file}: {steps} steps; perplexity of what follows, on texts held back:")
    for n, value in perplexity.items():
        print(f"  {n} entries: {value:.3f}" + (f" ({others[n]:.3f} if they are of another text)" if n else ""))
