"""What the verbs of text encoders share: texts of arguments, files and pipes, and how the model is opened."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.errors import UsageError

if TYPE_CHECKING:
    import edgedec

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE…", show_default=False, help="Texts; a file's lines are one each; none: lines of stdin."
    ),
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are longer than the model reads.")]
Encoder = Annotated[
    str, typer.Option("--model", "-m", metavar="BUNDLE", show_default=False, help="A text encoder: a bundle folder.")
]


@dataclass(frozen=True)
class EncoderFlags:
    """The runtime of an encoder."""

    threads: o.Threads = 0
    engine: o.Engine = "auto"

    def open(self, name: str) -> edgedec.Model:
        """The model; an error for one that generates text."""
        model = o.open_model(name, self.engine, self.threads, None, encoders=True)
        _ = model.encoder
        return model


def texts_of(given: Sequence[str] | None) -> list[str]:
    """The texts that arguments name."""
    if not given:
        if sys.stdin.isatty():
            raise UsageError("no texts: give some, a file with one a line, or pipe lines in")
        return lines(sys.stdin.buffer.read(), "stdin")
    found: list[str] = []
    for item in given:
        found += lines(Path(item).read_bytes(), item) if _is_file(item) else [item]
    return found


def _is_file(item: str) -> bool:
    try:
        return Path(item).is_file()
    except (OSError, ValueError):  # a long text is no path
        return False


def lines(raw: bytes, where: str) -> list[str]:
    """The lines of a file, empty ones too."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start})") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_examples(file: Path) -> dict[str, list[str]]:
    """The texts of each label of a file, labels in the order in which they come."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines(file.read_bytes(), str(file)), 1):
        label, tab, text = line.partition("\t")
        if not tab or not label:
            raise UsageError(f"{file}: line {number}: must be a label, a tab and a text")
        found.setdefault(label, []).append(text)
    return found
