"""`edgedec classify`: labels of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder, EncoderFlags, Texts, Truncate, read_examples, texts_of
from edgedec.cli._output import print_json
from edgedec.cli._visible import visible
from edgedec.encoding.transport import Align

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def classify(
    texts: Texts = None,
    *,
    model: Encoder,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Lines of a label, a tab, a text: labels for a model that embeds; scores are cosines to their means.",
        ),
    ] = None,
    align: Annotated[
        Align | None,
        typer.Option(
            show_default=False,
            help="Move these means towards the texts, so that each text's scores depend on the others: by the nearest "
            "texts (measured), or with every label as frequent (even).",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Labels that `edgedec labels` learned from examples."),
    ] = None,
    truncate: Truncate = False,
    machine: EncoderFlags,
    json: o.Json = False,
) -> None:
    """Label texts: the likeliest label of each, its score.

    \b
    Examples:
      edgedec classify "What a film!" -m ./sentiment
      edgedec classify reviews.txt -m ./sentiment --json
      edgedec classify reviews.txt -m ./minilm --examples few.tsv --align measured
      edgedec classify reviews.txt -m ./minilm --labels mail.labels
    """
    given = texts_of(texts)
    known = None if examples is None else read_examples(examples)
    found = machine.open(model).classify(given, examples=known, align=align, labels=labels, truncate=truncate)
    if json:
        print_json([{"text": text, "labels": scores} for text, scores in zip(given, found, strict=True)])
        return
    for text, scores in zip(given, found, strict=True):
        label = next(iter(scores))
        print(f"{visible(label)}\t{scores[label]:.4f}\t{visible(text)}")
