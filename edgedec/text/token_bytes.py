"""The bytes that each token of a vocabulary adds to a text."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgedec.text.tokenizer import BYTE, Tokenizer, byte_level


class TokenBytes:
    """of[token]: its bytes, none for special tokens; first [size]: the first of each, -1 if it has none; alphabet: the
    bytes of tokens of a single character or byte, as a mask."""

    def __init__(self, of: list[bytes]) -> None:
        self.of = of
        self.first: NDArray[np.int16] = np.array([each[0] if each else -1 for each in of], np.int16)
        self._tokens = {each: token for token, each in reversed(list(enumerate(of))) if each}
        self.alphabet = sum(1 << value for value in {value for each in self._tokens if _single(each) for value in each})
        self._longest = max(map(len, self._tokens), default=0)

    def spell(self, data: bytes) -> list[int] | None:
        """Tokens of these bytes, the longest at each place; None if the vocabulary has none for one of them."""
        found, at = list[int](), 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((n for n in sizes if data[at : at + n] in self._tokens), 0)
            if not size:
                return None
            found.append(self._tokens[data[at : at + size]])
            at += size
        return found


def _single(data: bytes) -> bool:
    """Whether bytes are one, or one character."""
    return len(data) == 1 or len(data.decode(errors="replace")) == 1


@lru_cache(maxsize=4)
def token_bytes(tokenizer: Tokenizer, size: int) -> TokenBytes:
    """Those of the first `size` tokens, made once."""
    levels, hidden = "ByteLevel" in tokenizer.decoders, tokenizer.hidden
    read = byte_level if levels else _spelt
    return TokenBytes([b"" if i in hidden else read(piece) for i, piece in enumerate(tokenizer.spellings(size))])


def _spelt(piece: str) -> bytes:
    """Of a spelling with bytes as <0x0A> and spaces as U+2581."""
    return bytes([int(piece[3:5], 16)]) if BYTE.fullmatch(piece) else piece.replace("\u2581", " ").encode()
