"""Control characters are shown and not obeyed: what a file, a server or a model says must not steer a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# C0, DEL and C1, and what turns the order of letters around.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SHOWN = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _CONTROLS}
_IN_TEXT = {code: shown for code, shown in _SHOWN.items() if chr(code) not in "\n\t"}
# Those that `json.dumps` leaves as they are.
_IN_JSON = {code: f"\\u{code:04x}" for code in _CONTROLS if code >= 0x20}


def visible(text: str) -> str:
    """One line of a text: "a\\x1b[2J" with the six characters that stand here."""
    return text.translate(_SHOWN)


def visible_json(text: str) -> str:
    """JSON whose strings have no control characters; its value is the same."""
    return text.translate(_IN_JSON)


class VisibleStream(io.TextIOWrapper):
    """A stream that shows control characters, but for line ends and tabs."""

    def write(self, text: str) -> int:
        super().write(text.translate(_IN_TEXT))
        return len(text)


@contextmanager
def visible_streams() -> Iterator[None]:
    """Meanwhile stderr, and stdout if it is a terminal, show control characters. A program that reads stdout gets every
    character of a generated text."""
    before = sys.stdout, sys.stderr
    made = []
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        if type(stream) is io.TextIOWrapper and (name == "stderr" or stream.isatty()):
            stream.flush()
            shown = VisibleStream(stream.buffer, stream.encoding, "replace", line_buffering=True)
            setattr(sys, name, shown)
            made.append(shown)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for shown in made:
            shown.flush()
            shown.detach()  # its buffer is that of the stream before it


def plain_stderr() -> TextIO:
    """The stream to draw on, by escape sequences of our own."""
    plain = sys.__stderr__
    return plain if isinstance(sys.stderr, VisibleStream) and plain is not None else sys.stderr
