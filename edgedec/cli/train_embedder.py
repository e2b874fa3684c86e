"""`edgedec train-embedder`: train a text encoder on a user's own texts."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class DuplexFlags:
    """The passages of an update, and what they are trained for."""

    rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 1e-4
    batch: Annotated[int, typer.Option(min=1, help="Passages of an update.")] = 32
    length: Annotated[int, typer.Option(min=16, help="Tokens of a passage; longer texts are several.")] = 128
    cls: Annotated[float, typer.Option(min=0.0, help="Weight of rebuilding the text from [CLS].")] = 1.0
    bag: Annotated[float, typer.Option(min=0.0, help="Weight of the bag of words.")] = 0.1


@dataclass(frozen=True)
class EmbeddingFlags:
    """What an embedding is."""

    dimensions: Annotated[
        int, typer.Option(min=0, metavar="N", help="Values of an embedding, those that tell texts apart most; 0: all.")
    ] = 0
    terms: Annotated[
        int, typer.Option(min=0, metavar="N", help="And its N weightiest terms, of BERT and DistilBERT; 0: none.")
    ] = 0


@dataclass(frozen=True)
class EmbedderTraining(o.TrainFlags):
    """The same flags, for an encoder."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 10.0


@app.command()
@o.grouped
def train_embedder(
    *,
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="Hugging Face folder of a text encoder; one without weights starts from random ones."
        ),
    ],
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help='Texts: .txt, or .jsonl with "text".')],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the trained checkpoint goes.")],
    passages: DuplexFlags,
    embedding: EmbeddingFlags,
    how: EmbedderTraining,
    force: Annotated[bool, typer.Option("--force", help="Replace FOLDER if it exists.")] = False,
    json: o.Json = False,
) -> None:
    """Train a text encoder on your own texts (RetroMAE v2).

    `edgedec export` makes a bundle for `edgedec embed` of FOLDER, and sentence-transformers reads it, but with --terms.

    \b
    Examples:
      edgedec train-embedder ./bert-base notes.txt -o ./notes-bert --minutes 60 --work build/embedder
      edgedec train-embedder ./minilm letters.jsonl -o ./letters --dimensions 128 --rate 3e-5
      edgedec train-embedder ./bert-base notes.txt -o ./notes-duplex --dimensions 384 --terms 384
    """
    modules = ("embedder_train", "embedder_output", "embedder_retrieval", "training_loop", "row_training")
    training, output, measuring, loop, keys = (export_module(name, "train-embedder", "train") for name in modules)
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    plan = training.EmbedderPlan(**asdict(passages), **how.settings())
    with progress_bar(quiet=json) as show:
        trainer = training.EmbedderTrainer(checkpoint, data, plan)
        output.check_sizes(trainer, embedding.dimensions, embedding.terms)
        texts, asked = trainer.texts(output.FITTED_ON), measuring.questions(trainer.held, how.seed)

        def measured() -> tuple[Any, Any]:
            fitted = output.fit(trainer, texts, embedding.dimensions, embedding.terms)
            return fitted, output.measure(trainer, fitted, asked)

        before = measured()[1]
        key = keys.key_of(training.files_of(checkpoint), data, plan)
        loop.train(trainer, how.checkpoint("embedder.safetensors"), key, show)
        fitted, after = measured()
        with replacing_folder(out, force=force) as made:
            output.write_encoder(trainer, fitted, made)
    if len(fitted.matrix) < embedding.dimensions:
        said = f"texts of the data differ in {len(fitted.matrix)} directions of [CLS]"
        print(f"edgedec: --dimensions {embedding.dimensions}: {said}; the embedding has as many", file=sys.stderr)
    _report(out, trainer, fitted, {"before": before, "after": after}, json)


def _report(out: Path, trainer: Any, fitted: Any, found: dict[str, Any], json: bool) -> None:
    """found: how well texts held back are found, before and after the training."""
    losses = trainer.measure()._asdict()
    if json:
        said = {name: float(value) for name, value in losses.items()}
        at = {name: one._asdict() for name, one in found.items()}
        print_json(
            {"path": str(out), "steps": trainer.steps, "width": fitted.width, "share": fitted.share, "nats": said, **at}
        )
        return
    print(f"{out}: {trainer.steps} steps, embeddings of {fitted.width} values")
    print("nats on texts held back: " + ", ".join(f"{name} {float(value):.3f}" for name, value in losses.items()))
    for name, one in found.items():
        print(
            f"  {name}: a sentence finds the text it is from, of {one.texts}: {one.first:.1%} first, MRR {one.mrr:.3f}"
        )
