"""The verbs of prompt programs that a session has: extend, gen, select; `fork` and `score` are its own.

In the manner of SGLang's `s += …`, `gen` and `select`: after each of them the session's text is what was written down,
and nothing else, so that the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from edgedec.opened import OpenedModel
from edgedec.search.found import SearchResult
from edgedec.text.stream import TextStream
from edgedec.text.tokenizer import Tokenizer


class Writes(Protocol):
    """What the verbs need of a session."""

    model: OpenedModel

    @property
    def ids(self) -> list[int]: ...

    @property
    def finish_reason(self) -> str: ...

    def append(self, ids: Sequence[int]) -> None: ...

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Any) -> Iterator[str]: ...

    def search(
        self, words: str | Mapping[str, Any], prompt: str | Sequence[int] | None = None, **options: Any
    ) -> SearchResult: ...

    def rewrite(self, ids: Sequence[int]) -> None: ...


S = TypeVar("S", bound=Writes)
SelectBy = Literal["mean", "sum", "greedy", "unconditional"]


class PromptVerbs:
    """The verbs; a session inherits them."""

    def extend(self: S, text: str | Sequence[int]) -> S:
        """Add text or tokens; they are read by the next call. Returns the session, as in s.extend("Q: ").gen(8)."""
        encode = self.model.tokenizer.encode
        self.append(encode(text, around=not self.ids) if isinstance(text, str) else text)
        return self

    def gen(self: S, max_tokens: int | None = None, stop: str | Sequence[str] = (), **options: Any) -> str:
        """Write on, and return what was written. A stop string is no part of the text afterwards: what follows may
        bring it or something else. options: those of `tokens`."""
        before, stop = self.ids, (stop,) if isinstance(stop, str) else tuple(stop)
        text = "".join(self.generate(None, max_tokens=max_tokens, stop=stop, **options))
        if self.finish_reason == "stop" and stop:
            made = written(self.model.tokenizer, before, self.ids[len(before) :], text)
            self.rewrite([*before, *made])
        return text

    def select(self: S, choices: Sequence[str], by: SelectBy = "mean", **options: Any) -> str:
        """The likeliest of these texts, which is then added; by: as of `--search select`."""
        found = self.search({"name": "select", "choices": list(choices), "by": by}, **options)
        encode = self.model.tokenizer.encode
        return next(choice for choice in choices if tuple(encode(choice, around=False)) == found.tokens)


def written(tokenizer: Tokenizer, before: Sequence[int], made: Sequence[int], text: str) -> list[int]:
    """The tokens of `text`: of those that were made as many as spell a beginning of it, and the rest read anew.

    Made "the", " end", ".\\n" for the text "the end.": the first two, and "." as the tokenizer reads it.
    """
    stream, told, kept, spelt = TextStream(tokenizer, (), before), "", 0, ""
    for n, token in enumerate(made, 1):
        told += stream.push(token).text
        if not text.startswith(told):
            break
        if len(told) > len(spelt):
            kept, spelt = n, told
    rest = text[len(spelt) :]
    return [*made[:kept], *(tokenizer.encode(rest, special=False, around=False) if rest else ())]
