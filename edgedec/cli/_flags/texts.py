"""Flags for texts: a prompt, a file, piped input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli._flags.option import option
from edgedec.errors import UsageError


@dataclass(frozen=True)
class PromptFlags:
    """The prompt, or its source."""

    prompt: Annotated[
        str | None, option("--prompt", "-p", metavar="TEXT", help="The prompt; `-`, or none and piped input: stdin.")
    ] = None
    file: Annotated[Path | None, option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")] = None

    def text(self) -> str:
        """The given prompt; an error if there is none."""
        text = read_prompt(self.prompt, self.file)
        assert text is not None
        return text

    def text_or_none(self) -> str | None:
        """The prompt, or None."""
        return read_prompt(self.prompt, self.file, optional=True)


def read_prompt(prompt: str | None, file: Path | None, *, optional: bool = False) -> str | None:
    """The prompt of the flags; None if there is none and it is `optional`.

    One newline at the end of a file or of piped text is the editor's or echo's, and dropped.
    """
    if prompt is not None and file is not None:
        raise typer.BadParameter("--prompt and --file: give one of them")
    if file is not None:
        return read_text(file).removesuffix("\n")
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        if optional:
            return None
        raise typer.BadParameter("no prompt: give -p TEXT, -f FILE, or pipe it in")
    text = _utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    return None if optional and prompt is None and not text else text


def read_text(file: Path) -> str:
    try:
        return _utf8(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start})") from None
