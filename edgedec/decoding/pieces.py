"""A generation as text, in pieces that later tokens cannot change."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

from edgedec.decoding.messages import Stats, Token
from edgedec.text.stream import TextStream


@dataclass(frozen=True)
class TextPiece:
    """Text that is final, and the token that completed it (None: text that was held back until the end)."""

    text: str
    token: Token | None


def pieces(tokens: Generator[Token], stream: TextStream, stats: Stats) -> Iterator[TextPiece]:
    """The text of these tokens; a stop string ends them."""
    with closing(tokens):
        for token in tokens:
            text, stopped = stream.push(token)
            if stopped:
                stats.finish = "stop"
            yield TextPiece(text, token)
            if stopped:
                return
        text, stopped = stream.flush()
        if stopped:
            stats.finish = "stop"
        if text:
            yield TextPiece(text, None)
