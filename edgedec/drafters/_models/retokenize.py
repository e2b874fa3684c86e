"""Translation of a text between two vocabularies.

A draft model with other tokens reads the target's text and drafts text (Timor et al. 2025, string-level exact match).
Both tokenizations can be cut at word borders: text before a border is encoded once, and only the words after it are
encoded again as they grow. A draft is encoded in the target's tokens together with the last word: if the target would
encode that word differently from its tokens so far, nothing is drafted; the draft's last token is dropped, as more text
may change it.

    target   ... ▁the | ▁ca t        draft model   ... ▁the | ▁cat    it drafts   ▁s at .
    target writes "▁cat sat." as ▁ca t ▁sat . -> ▁sat (and ".", which is dropped)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

from edgedec.errors import TextError
from edgedec.text.tokenizer import Detokenizer, Tokenizer

# The least and about the most characters that each call encodes again; the most target tokens of a "word" without
# borders.
_NEAR, _FAR, _LONG = 48, 160, 48
_SURE = 0.97


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether every token id that both have stands for the same text (one may be padded)."""
    if one.decoders != other.decoders:
        return False
    return all(_spelling(one, i) == _spelling(other, i) for i in range(min(one.vocab_size, other.vocab_size)))


def _spelling(tokenizer: Tokenizer, token: int) -> str | None:
    try:
        return tokenizer.token(token)
    except TextError:
        return None


class Inside:
    """A tokenizer for text in the middle of a text: no BOS, and no space in front that is not there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._anchor, pair = self._raw("a"), self._raw("a a")
        # Whether it encodes "a" as " a": then a leading space would be encoded twice.
        self._adds = pair[len(self._anchor) :] == self._anchor and self._raw(" a") != self._anchor
        self._pieces: dict[int, str | None] = {}

    def encode(self, text: str) -> list[int]:
        return self._raw(text[1:] if self._adds and text.startswith(" ") else text)

    def piece(self, token: int) -> str | None:
        """A token's text at any place; None if it is a part of a character."""
        if token not in self._pieces:
            text = self.tokenizer.decode([*self._anchor, token])[len(self.tokenizer.decode(self._anchor)) :]
            self._pieces[token] = None if "\ufffd" in text else text
        return self._pieces[token]

    def _raw(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, around=False)


class Retokenizer:
    """The target's text in the draft model's tokens, updated as it grows."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = Inside(target), Inside(draft)
        self._start = draft.encode("")
        self.reset()

    def reset(self) -> None:
        """Another text."""
        self._detokenizer = Detokenizer(self._target.tokenizer)
        self._read = 0
        self._settled, self._tail = list(self._start), ""
        self._word: list[int] = []
        self._word_text = ""

    def follow(self, ids: Sequence[int]) -> tuple[list[int], int] | None:
        """The target's text so far in the draft model's tokens, and how many of these are final.

        None if the target would encode its last word differently: no draft can continue it."""
        for token in ids[self._read :]:
            self._push(token)
        self._read = len(ids)
        if not self._tail or self._target.encode(self._word_text) != self._word:
            return None
        self._settle()
        known = [*self._settled, *self._draft.encode(self._tail)]
        return (known, len(self._settled)) if known else None

    def say(self, drafted: Sequence[int], claims: Sequence[float]) -> tuple[list[int], list[float]]:
        """The draft model's tokens as tokens of the target, with their claims."""
        pieces = list(takewhile(lambda piece: piece is not None, map(self._draft.piece, drafted)))
        text = "".join(piece or "" for piece in pieces)
        if not text:
            return [], []
        written, known = self._target.encode(self._word_text + text), len(self._word)
        tokens = written[known:-1]
        if written[:known] != self._word or not tokens:
            return [], []
        ends = accumulate(len(self._target.piece(token) or "?") for token in tokens)
        return tokens, _shared(list(ends), list(accumulate(len(piece or "") for piece in pieces)), claims)

    def _push(self, token: int) -> None:
        piece = self._detokenizer.push(token)
        self._tail += piece
        begins = len(piece) > 1 and piece[0] == " " and piece[1] != " "
        if begins or len(self._word) >= _LONG:
            self._word, self._word_text = [], ""
        if piece or token not in self._target.tokenizer.hidden:
            self._word.append(int(token))
            self._word_text += piece
        else:
            self._word, self._word_text = [], ""  # a special token: text begins anew after it

    def _settle(self) -> None:
        """Finalise the encoding of text that is far enough back, up to a border."""
        if len(self._tail) <= _FAR:
            return
        border = self._tail.rfind(" ", 1, len(self._tail) - _NEAR)
        while border > 0 and self._tail[border - 1] == " ":
            border -= 1
        if border <= 0 and len(self._tail) > 8 * _FAR:
            border = len(self._tail) - _NEAR  # no border anywhere: any place will do
        if border > 0:
            self._settled += self._draft.encode(self._tail[:border])
            self._tail = self._tail[border:]


def _shared(ends: Sequence[int], drafted: Sequence[int], claims: Sequence[float]) -> list[float]:
    """Claims of tokens that end at `ends`, from those of the drafted tokens that end at `drafted`.

    A token's claim is the product of the drafted tokens that begin in it; a token in which none begins is almost
    certain.
    """
    found, at, start = [], 0, 0
    for end in ends:
        claim = 1.0
        while at < len(claims) and start < end:
            claim *= claims[at]
            start = drafted[at]
            at += 1
        found.append(min(claim, _SURE))
    return found
