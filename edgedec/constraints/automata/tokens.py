"""The tokens of a vocabulary as a tree of bytes: sorted, so that all tokens below a node are one slice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgedec.constraints.vocabulary import Vocabulary

Ids = NDArray[np.int64]


class TokenNode:
    """The tokens that begin with the same bytes: the slice `low` to `high` of the sorted ones; `own`: how many of these
    are these bytes and no more, which come first. Children are found when they are asked for."""

    __slots__ = ("_children", "_depth", "_tokens", "high", "low", "own")

    def __init__(self, tokens: Sequence[bytes], low: int, high: int, depth: int) -> None:
        self._tokens, self.low, self.high, self._depth = tokens, low, high, depth
        self.own = 0
        while low + self.own < high and len(tokens[low + self.own]) == depth:
            self.own += 1
        self._children: dict[int, TokenNode] | None = None

    def children(self) -> dict[int, TokenNode]:
        """The nodes one byte further, by that byte."""
        if self._children is None:
            found, at, tokens, depth = dict[int, TokenNode](), self.low + self.own, self._tokens, self._depth
            while at < self.high:
                byte = tokens[at][depth]
                after = tokens[at][:depth] + bytes([byte + 1]) if byte < 255 else None
                end = self.high if after is None else bisect_left(tokens, after, at, self.high)
                found[byte] = TokenNode(tokens, at, end, depth + 1)
                at = end
            self._children = found
        return self._children


class TokenTree:
    """The tokens with a meaning of their own in text. bytes: of each token by id, None for special ones and those
    without bytes; order: the ids as sorted by their bytes; root: the node of all; ends: the tokens that end a text."""

    def __init__(self, spelt: Sequence[bytes | None], size: int, ends: frozenset[int]) -> None:
        known = sorted((text, token) for token, text in enumerate(spelt[:size]) if text and token not in ends)
        self.bytes, self.size, self.ends = list(spelt), size, ends
        self.order: Ids = np.array([token for _, token in known], np.int64)
        self.root = TokenNode([text for text, _ in known], 0, len(known), 0)

    def spelt(self, token: int) -> bytes | None:
        """The bytes of a token; None if it has no place in a text."""
        return self.bytes[token] if token < len(self.bytes) and token not in self.ends else None


@lru_cache(maxsize=4)
def token_tree(vocabulary: Vocabulary) -> TokenTree:
    """The tree of a vocabulary, made once."""
    tokenizer, known = vocabulary.tokenizer, vocabulary.known
    spelt = [None if tokenizer.is_special_token(i) else tokenizer.decode_bytes([i]) for i in range(known)]
    return TokenTree(spelt, vocabulary.size, vocabulary.eos)
