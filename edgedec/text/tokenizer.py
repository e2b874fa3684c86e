"""Text: tokens to and from it, piece by piece.

`tokenizers` is imported where it is used: importing edgedec does not cost it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.errors import TextError
from edgedec.text.encoding import Encoder, at_least
from edgedec.text.marks import with_marks
from edgedec.text.surrogates import check_unicode

if TYPE_CHECKING:
    import tokenizers

BYTE = re.compile(r"<0x[0-9A-Fa-f+][0-9A-Fa-f]>")  # as ByteFallback reads it, the odd "+F" included
_FREQUENT = 1 << 15  # tokens that need not be looked up again


class Tokenizer:
    """A tokenizer.json. Safe to share between threads."""

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        # Settings of the training run, which would silently cut or pad a prompt.
        raw.no_truncation()
        raw.no_padding()
        self._raw = raw
        self._encoder = Encoder(raw)
        self._spelling = lru_cache(_FREQUENT)(raw.id_to_token)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        from tokenizers import Tokenizer as Raw

        from edgedec.text import inspection

        if not Path(path).is_file():
            raise TextError(f"{path}: no tokenizer there")
        inspection.check(Path(path))
        with _named(f"{path}: not a tokenizer.json"):
            return cls(Raw.from_str(text) if (text := with_marks(Path(path))) else Raw.from_file(str(path)))

    def encode(self, text: str, special: bool = True, around: bool = True) -> list[int]:
        """Token ids. `special`: read special tokens in the text; without it "<|end|>" is seven characters, so text from
        strangers cannot forge one. `around`: add what the model expects around text, which a rendered chat has."""
        check_unicode(text)
        with _named(f"text of {len(text)} characters cannot be encoded"):
            return self._encoder.encode(text, special, around)

    def encode_pair(self, first: str, second: str | None, most: int | None) -> tuple[list[int], list[int]]:
        """Token ids of a text or of two as one, and the type of each, with what the model expects around them. most:
        cut to so many tokens, the longer text first."""
        for text in (first, second or ""):
            check_unicode(text)
        with _named(f"text of {len(first)} characters cannot be encoded"):
            return self._encoder.encode_pair(first, second, most)

    def at_least(self, text: str, most: int) -> int:
        """A number of tokens that the text has at least, if that is more than `most`; 0 if it may have fewer."""
        return at_least(text, most, lambda piece: len(self.encode(piece, around=False)))

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text; special tokens are left out unless `special`. Ids outside the vocabulary have no text."""
        numbers = [int(i) for i in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < 1 << 32:
            raise TextError(f"token {min(numbers)} to {max(numbers)}: no such token")
        with _named(f"{len(numbers)} tokens cannot be decoded"):
            return str(self._raw.decode(numbers, skip_special_tokens=not special))

    def texts(self, size: int) -> list[str]:
        """The text of each of the first `size` tokens by itself, that of special tokens included."""
        known = min(size, self.vocab_size)
        with _named("the vocabulary cannot be decoded"):
            found = self._raw.decode_batch([[i] for i in range(known)], skip_special_tokens=False)
        return [*map(str, found), *[""] * (size - known)]

    @property
    def vocab_size(self) -> int:
        return int(self._raw.get_vocab_size(with_added_tokens=True))

    def spellings(self, size: int) -> list[str]:
        """What `token` says of each of the first `size` tokens; "" where there is no such token."""
        return [self._raw.id_to_token(token) or "" for token in range(size)]

    def token(self, id: int) -> str:  # noqa: A002
        """How the vocabulary writes a token: "Ġthe", "<0x0A>"."""
        piece = self._spelling(int(id)) if 0 <= id < 1 << 32 else None
        if piece is None:
            raise TextError(f"token {id}: no such token; the vocabulary has {self.vocab_size}")
        return str(piece)

    def id(self, token: str) -> int | None:
        found = self._raw.token_to_id(token)
        return None if found is None else int(found)

    @cached_property
    def hidden(self) -> frozenset[int]:
        """The special tokens, which `decode` leaves out."""
        return frozenset(i for i, t in self._raw.get_added_tokens_decoder().items() if t.special)

    @cached_property
    def added(self) -> frozenset[int]:
        """The tokens that were added to the vocabulary, special or not."""
        return frozenset(self._raw.get_added_tokens_decoder())

    def pretokens(self, text: str) -> int:
        """How many parts the tokenizer cuts a text into, before it makes tokens of each."""
        raw = self._raw
        given = text if raw.normalizer is None else raw.normalizer.normalize_str(text)
        return 1 if raw.pre_tokenizer is None else len(raw.pre_tokenizer.pre_tokenize_str(given))

    @cached_property
    def decoders(self) -> tuple[str, ...]:
        """The decoder's steps by name, e.g. ("Replace", "ByteFallback", "Fuse", "Strip")."""
        if self._raw.decoder is None:
            return ()
        state = json.loads(self._raw.decoder.__getstate__())
        return tuple(step["type"] for step in state.get("decoders", [state]))


class Detokenizer:
    """Text of tokens as they come: the pieces joined are `decode` of all tokens, to the character.

    After a prompt, decode(prompt) + pieces = decode(prompt + tokens). What later tokens may change is held back,
    nothing else is, and a push costs the same however long the text is.

    Byte-level vocabularies: bytes go through an incremental UTF-8 decoder, so at most three are held.

    Others: a token's text depends on nothing but the start of the text (where a space is dropped)
    and, for single bytes such as <0xE2>, on its whole run of them: one bad byte spoils the run. So
    runs are held to their end, and decoded after the last token before them, the anchor:

        anchor ["▁a"], held ["<0xC3>", "<0xA9>"], push "▁b":  "aé b" less "a" is "é b"
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._bytewise = tokenizer.decoders == ("ByteLevel",)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._anchor: list[int] = []
        self._held: list[int] = []
        self._told = ""  # the part of the held text that decode(prompt) already has
        self._start(prompt_ids)

    def push(self, token: int) -> str:
        """The text that this token completes."""
        piece = self._piece(token)
        if not piece:
            return ""
        if self._bytewise:
            return self._untold(self._utf8.decode(byte_level(piece)))
        self._held.append(int(token))
        if self._is_byte(piece):
            return ""
        text = self._resolve()
        self._anchor = [int(token)]
        return text

    def flush(self) -> str:
        """The rest, as it reads if nothing more comes."""
        return self._untold(self._utf8.decode(b"", final=True)) if self._bytewise else self._resolve()

    def _start(self, prompt_ids: Sequence[int]) -> None:
        """Take up where the prompt ends; only its last tokens matter.

        A character that the prompt leaves unfinished is emitted once it is complete.
        """
        tail: list[int] = []
        n_bytes = 0
        for token in reversed(prompt_ids):
            piece = self._piece(token)
            if not self._bytewise and piece and not self._is_byte(piece):
                self._anchor = [int(token)]
                break
            tail.append(int(token))
            n_bytes += len(byte_level(piece))
            if self._bytewise and n_bytes > 3:  # no character is longer than four bytes
                break
        if self._bytewise:
            for token in reversed(tail):
                self.push(token)
            self._told = self._utf8.getstate()[0].decode("utf-8", "replace")
        else:
            self._held = tail[::-1]
            self._told = self._window()

    def _resolve(self) -> str:
        """The text of the held tokens, which are now a whole run."""
        text = self._untold(self._window())
        self._held = []
        return text

    def _window(self) -> str:
        """The text of the held tokens after the anchor."""
        return self._decode([*self._anchor, *self._held])[len(self._decode(self._anchor)) :]

    def _untold(self, text: str) -> str:
        """Text that just became final, without the part that decode(prompt) already has."""
        if not text:
            return ""
        told, self._told = self._told, ""
        return text.removeprefix(told)

    def _piece(self, token: int) -> str:
        """The vocabulary's spelling; empty for tokens without text."""
        if token in self._tokenizer.hidden and not self._special:
            return ""
        try:
            return self._tokenizer.token(token)
        except TextError:
            return ""

    def _is_byte(self, piece: str) -> bool:
        return "ByteFallback" in self._tokenizer.decoders and BYTE.fullmatch(piece) is not None

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special=self._special)


@lru_cache(_FREQUENT)
def byte_level(piece: str) -> bytes:
    """The bytes of a byte-level spelling: "ĠÃ©" -> b" \\xc3\\xa9"; a token spelt otherwise is itself."""
    table = _byte_of()
    try:
        return bytes(table[c] for c in piece)
    except KeyError:
        return piece.encode()


@lru_cache(maxsize=1)
def _byte_of() -> Mapping[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in itself)
    return {chr(b): b for b in itself} | {chr(0x100 + i): b for i, b in enumerate(others)}


@contextmanager
def _named(what: str) -> Iterator[None]:
    """TextError for what the library raises: bare Exceptions, and panics, which are no Exceptions."""
    try:
        yield
    except BaseException as e:
        if isinstance(e, Exception) or type(e).__name__ == "PanicException":
            raise TextError(f"{what}: {one_line(e)}") from e
        raise


def one_line(e: BaseException) -> str:
    """An exception's message on one line."""
    return " ".join(str(e).split())[:300] or type(e).__name__
