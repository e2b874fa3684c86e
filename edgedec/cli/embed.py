"""`edgedec embed`: vectors of texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder, EncoderFlags, Texts, Truncate, texts_of
from edgedec.cli._output import progress_bar
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
# Texts between two steps of the progress bar.
_STEP = 64


@app.command()
@o.grouped
def embed(
    texts: Texts = None,
    *,
    model: Encoder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.npy", show_default=False, help="Write a float32 array [texts, width]."
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="The model's words in front, such as query; `` for none."
        ),
    ] = None,
    dimensions: Annotated[
        int, typer.Option(min=0, metavar="N", show_default=False, help="Only the first N values (Matryoshka).")
    ] = 0,
    truncate: Truncate = False,
    machine: EncoderFlags,
) -> None:
    """Embed texts: a vector each, as JSON lines or an array.

    \b
    Examples:
      edgedec embed "The cat sat." "A dog ran." -m ./minilm
      edgedec embed notes.txt -m ./minilm -o notes.npy
      edgedec embed "who sat?" -m ./e5 --prompt query --dimensions 256
    """
    import numpy as np

    from edgedec.storage.files import replacing

    if out is not None and out.suffix != ".npy":
        raise UsageError(f"--out {out}: must end in .npy")
    given, opened = texts_of(texts), machine.open(model)
    read, found = opened.encoder.read(given, prompt, truncate), []
    with progress_bar(quiet=out is None) as progress:
        for at in range(0, len(read), _STEP):
            progress("texts", at, len(read))
            found.append(opened.encoder.vectors(read[at : at + _STEP], dimensions))
            if out is None:
                for vector in found.pop():
                    print(json.dumps([float(x) for x in vector]))
    if out is not None:
        width = dimensions or opened.encoder.width
        with replacing(out) as file:
            np.save(file, np.concatenate([np.zeros((0, width), np.float32), *found]))
        tokens = sum(len(text.ids) for text in read)
        print(f"{out}: {len(read)} vectors of {width} values, {tokens} tokens read", file=sys.stderr)
