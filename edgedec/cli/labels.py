"""`edgedec labels`: labels learned from examples, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder, EncoderFlags, Texts, Truncate, read_examples, texts_of
from edgedec.cli._output import print_json
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Out = Annotated[Path, typer.Option("--out", "-o", metavar="LABELS", help="The file of labels.")]


@app.callback()
def labels() -> None:
    """Learn labels from examples, some now and more later.

    For edgedec classify --labels LABELS.

    \b
    Examples:
      edgedec labels build mail.txt -m ./minilm -o mail.labels
      edgedec labels add orders.tsv -m ./minilm -o mail.labels
    """


@app.command()
@o.grouped
def build(
    texts: Texts = None,
    *,
    model: Encoder,
    out: Out,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    truncate: Truncate = False,
    machine: EncoderFlags,
    json: o.Json = False,
) -> None:
    """Make a file without labels yet; its keys are made of texts like those that will be labelled.

    \b
    Examples:
      edgedec labels build mail.txt -m ./minilm -o mail.labels
      edgedec labels build mail.txt letters.txt -m ./minilm -o mail.labels --force --json
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; pass --force, or `edgedec labels add` to learn more")
    given = texts_of(texts)
    made = machine.open(model).encoder.new_labels(given, truncate=truncate)
    made.save(out)
    if json:
        print_json({"file": str(out), "texts": len(given), "keys": made.used.size})
    else:
        print(f"{out}: {made.used.size:,} keys of {len(given):,} texts; add examples with `edgedec labels add`")


@app.command()
@o.grouped
def add(
    examples: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of a label, a tab, a text.")],
    *,
    model: Encoder,
    out: Out,
    truncate: Truncate = False,
    machine: EncoderFlags,
    json: o.Json = False,
) -> None:
    """Learn from examples: new labels, or more of those in the file.

    \b
    Examples:
      edgedec labels add orders.tsv -m ./minilm -o mail.labels
      edgedec labels add complaints.tsv -m ./minilm -o mail.labels --json
    """
    given, encoder = read_examples(examples), machine.open(model).encoder
    known = encoder.open_labels(out)
    made = encoder.learn_labels(known, given, truncate=truncate)
    made.save(out)
    changed = int((made.values[:, :, 0] != known.values[:, :, 0]).sum())
    if json:
        print_json({"file": str(out), "labels": list(made.labels), "changed": changed, "keys": made.used.size})
    else:
        new = len(made.labels) - len(known.labels)
        print(f"{out}: {len(made.labels)} labels, {new} of them new; {changed:,} of {made.used.size:,} values changed")
