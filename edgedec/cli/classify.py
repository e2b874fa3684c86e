"""`edgedec classify`: labels of texts."""

from __future__ import annotations

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder, EncoderFlags, Texts, Truncate, texts_of
from edgedec.cli._output import print_json
from edgedec.cli._visible import visible

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def classify(
    texts: Texts = None,
    *,
    model: Encoder,
    truncate: Truncate = False,
    machine: EncoderFlags,
    json: o.Json = False,
) -> None:
    """Label texts: the likeliest label of each, its score, the text.

    \b
    Examples:
      edgedec classify "What a film!" -m ./sentiment
      edgedec classify reviews.txt -m ./sentiment --json
    """
    given = texts_of(texts)
    found = machine.open(model).classify(given, truncate=truncate)
    if json:
        print_json([{"text": text, "labels": labels} for text, labels in zip(given, found, strict=True)])
        return
    for text, labels in zip(given, found, strict=True):
        label = next(iter(labels))
        print(f"{visible(label)}\t{labels[label]:.4f}\t{visible(text)}")
