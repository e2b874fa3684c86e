"""Texts as an encoder reads them: tokens, with the special ones around, and the type of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgedec.bundle.manifest import EncoderFacts
from edgedec.bundle.modes import ModeFacts
from edgedec.errors import UsageError
from edgedec.text.tokenizer import Tokenizer

Text = str | Sequence[int]


class EncodedText(NamedTuple):
    """Tokens of a text or of a pair, and the type of each."""

    ids: Sequence[int]
    types: Sequence[int]


@dataclass(frozen=True)
class TextReader:
    """Reads texts for a model of at most `longest` tokens. modes: the tokens around a text instead of the tokenizer's
    own."""

    tokenizer: Tokenizer
    facts: EncoderFacts
    longest: int
    vocabulary: int
    modes: ModeFacts | None = None

    def text(self, given: Text, number: int, prompt: str | None = None, truncate: bool = False) -> EncodedText:
        """Text `number` with the prompt of that name in front (None: the model's default). Tokens are taken as they
        are."""
        if isinstance(given, str):
            return self._read(self.prompt(prompt) + given, None, number, truncate)
        ids = list(given)[: self.longest] if truncate else list(given)
        if any(type(i) is not int or not 0 <= i < self.vocabulary for i in ids):
            raise UsageError(f"text {number}: a token is not in the vocabulary of {self.vocabulary}")
        return self._checked(ids, [0] * len(ids), number, False)

    def pair(self, first: str, second: str, number: int, truncate: bool = False) -> EncodedText:
        """Two texts as one."""
        return self._read(first, second, number, truncate)

    def prompt(self, name: str | None) -> str:
        """The words of a prompt; UsageError if the model has none of that name."""
        name = self.facts.prompt if name is None else name
        if not name:
            return ""
        if name not in self.facts.prompts:
            known = ", ".join(self.facts.prompts) or "none"
            raise UsageError(f"no prompt {name!r}; this model has: {known}")
        return self.facts.prompts[name]

    def _read(self, first: str, second: str | None, number: int, truncate: bool) -> EncodedText:
        if self.facts.lower:
            first, second = first.lower(), None if second is None else second.lower()
        most = self.longest if truncate else None
        if self.modes is not None:
            return self._checked(*self._by_mode(self.modes, first, most), number, True)
        ids, types = self.tokenizer.encode_pair(first, second, most)
        return self._checked(ids, types, number, True)

    def _by_mode(self, modes: ModeFacts, text: str, most: int | None) -> tuple[list[int], list[int]]:
        ids = self.tokenizer.encode(text, around=False)
        around = len(modes.encoder) + 1
        ids = [*modes.encoder, *(ids if most is None else ids[: max(most - around, 0)]), modes.end]
        return ids, [0] * len(ids)

    def _checked(self, ids: Sequence[int], types: Sequence[int], number: int, own: bool) -> EncodedText:
        if not ids:
            raise UsageError(f"text {number}: has no tokens")
        if len(ids) > self.longest:
            raise UsageError(
                f"text {number}: {len(ids)} tokens, this model reads {self.longest}; split it, or cut it with truncate"
            )
        if own and max(ids) >= self.vocabulary:
            raise UsageError(
                f"text {number}: token {max(ids)} of {self.vocabulary} in the vocabulary: another model's tokenizer"
            )
        return EncodedText(ids, types)
