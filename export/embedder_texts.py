"""Passages for the training of text encoders: what rows of a batch are, and which of their words are hidden.

A passage is a text, or a part of one, between the tokenizer's own tokens: [CLS] … [SEP]. Words are hidden whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgedec.errors import UsageError
from edgedec.export.exits_data import TokenStream, is_held

LEAST = 8  # ordinary tokens of a passage
MOST_HELD = 512  # texts
_READ_FOR_HELD = 40_000  # texts that are read to find those held back
# What the first piece of a word begins with, in vocabularies that mark beginnings.
_BEGINS = ("\u0120", "\u2581")


@dataclass(frozen=True)
class PassageReader:
    """A checkpoint's tokenizer. around: its tokens before and after a text; inner [vocabulary]: whether a token goes on
    with the word of the token before it."""

    tokenizer: Any
    around: tuple[int, int]
    inner: Tensor
    mask: int

    @classmethod
    def open(cls, folder: Path, vocabulary: int) -> PassageReader:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UsageError(f"{path}: missing; train-embedder reads texts with it")
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        around = tokenizer.encode("").ids
        mask = next((i for i in map(tokenizer.token_to_id, ("[MASK]", "<mask>")) if i is not None), None)
        if len(around) != 2 or mask is None:
            raise UsageError(f"{path}: must put a token before and one after a text, and have [MASK] or <mask>")
        if tokenizer.get_vocab_size() > vocabulary:
            raise UsageError(f"{path}: {tokenizer.get_vocab_size()} tokens, the model has {vocabulary}")
        return cls(tokenizer, (around[0], around[1]), _inner(tokenizer, vocabulary), mask)

    def ids(self, text: str) -> list[int]:
        """A text's ordinary tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def passage(self, ids: Sequence[int]) -> list[int]:
        return [self.around[0], *ids, self.around[1]]


def _inner(tokenizer: Tokenizer, vocabulary: int) -> Tensor:
    """By "##" of WordPiece, else by the marks of beginnings; of a vocabulary without either each token is a word."""
    words = tokenizer.get_vocab()
    marked = any(word.startswith(_BEGINS) for word in words)
    found = torch.zeros(vocabulary, dtype=torch.bool)
    for word, i in words.items():
        found[i] = not word.startswith(_BEGINS) if marked else word.startswith("##")
    return found


class PassageStream(TokenStream):
    """Passages of at most `length` + 1 tokens, the parts of a text each by itself. encode: a PassageReader."""

    def held(self) -> list[Any]:
        """Texts that are never trained on."""
        texts = islice((text for block in self._blocks_from(0) for text in block), _READ_FOR_HELD)
        found = (text for text in texts if is_held(text) and len(self._encode.ids(text)) >= LEAST)
        return list(islice(found, MOST_HELD))

    def _joined(self, block: list[Any]) -> Iterator[list[int]]:
        reader: PassageReader = self._encode
        size = self._length - 1
        for ids in map(reader.ids, self._shuffled(block)):
            parts = [ids[at : at + size] for at in range(0, len(ids), size)]
            yield from (reader.passage(part) for part in parts if len(part) >= LEAST)


class PassageBatch(NamedTuple):
    """ids, kept [B, T]: tokens, and whether they are tokens of a text at all; ordinary [B, T]: neither [CLS] nor [SEP];
    hidden [B, T]: what the encoder has to guess; visible [B, T, T]: what each row of the decoder sees."""

    ids: Tensor
    kept: Tensor
    ordinary: Tensor
    hidden: Tensor
    visible: Tensor


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens [B, T], and whether they are tokens of a passage at all."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for to, row in zip(ids, rows, strict=True):
        to[: len(row)] = torch.tensor(row)
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def batch_of(rows: Sequence[Sequence[int]], inner: Tensor, encoder: float, decoder: float) -> PassageBatch:
    """Passages with words hidden by torch's random numbers: shares of their ordinary tokens."""
    ids, kept = padded(rows)
    hidden, visible = torch.zeros_like(kept), torch.zeros(*ids.shape, ids.shape[1], dtype=torch.bool)
    for i, n in enumerate(map(len, rows)):
        words = words_of(ids[i, 1 : n - 1], inner)
        hidden[i, 1 : n - 1] = hidden_words(words, 1, encoder)[0]
        visible[i, :n, :n] = seen_by_rows(words, decoder)
    at = torch.arange(ids.shape[1])
    return PassageBatch(ids, kept, (at > 0) & (at < kept.sum(1, keepdim=True) - 1), hidden, visible)


def words_of(ids: Tensor, inner: Tensor) -> Tensor:
    """The number of the word of each of a text's ordinary tokens [n]; the first token begins one."""
    begins = ~inner[ids]
    begins[0] = True
    return begins.cumsum(0) - 1


def hidden_words(words: Tensor, many: int, share: float) -> Tensor:
    """`many` random choices of whole words, of at most that share of the tokens [many, n].

    Words are taken in a random order, the first in any case, up to one that does not fit.
    """
    sizes = torch.bincount(words)
    order = torch.rand(many, len(sizes)).argsort(1)
    taken = sizes[order].cumsum(1) <= round(share * len(words))
    taken[:, 0] = True
    return torch.zeros_like(taken).scatter(1, order, taken)[:, words]


def seen_by_rows(words: Tensor, share: float) -> Tensor:
    """What each row of the decoder sees of [CLS], n ordinary tokens, [SEP]: [n + 2, n + 2]. Each has words of its own
    hidden, and its own token; never [CLS], but from itself."""
    n = len(words) + 2
    seen = torch.ones(n, n, dtype=torch.bool)
    seen[:, 1:-1] = ~hidden_words(words, n, share)
    return seen & ~torch.eye(n, dtype=torch.bool)
