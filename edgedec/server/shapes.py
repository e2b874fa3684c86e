"""The two shapes of an answer: a chat's message and its deltas, a completion's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from secrets import token_hex
from typing import Any, Protocol

from edgedec.decoding.step import Token
from edgedec.text.tokenizer import Tokenizer

Json = dict[str, Any]


class Shape(Protocol):
    """Makes choices, whole or in pieces, without their index and finish reason."""

    prefix: str
    object: str
    chunk: str

    def opening(self, before: str) -> Json:
        """The first chunk; empty if there is none."""
        ...

    def piece(self, text: str, tokens: Sequence[Token], at: int) -> Json:
        """More text and its tokens; `at`: where it begins in the whole text."""
        ...

    def calling(self, name: str, arguments: str, whole: bool) -> Json:
        """A function call."""
        ...

    def closing(self) -> Json:
        """The last chunk."""
        ...

    def whole(self, text: str, tokens: Sequence[Token]) -> Json:
        """All of it."""
        ...


class ChatShape:
    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def opening(self, before: str) -> Json:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str, tokens: Sequence[Token], at: int) -> Json:
        return {"delta": {"content": text}, **self._logprobs_of(tokens)}

    def calling(self, name: str, arguments: str, whole: bool) -> Json:
        call = {"id": f"call_{token_hex(12)}", "type": "function", "function": {"name": name, "arguments": arguments}}
        if not whole:
            return {"delta": {"tool_calls": [{"index": 0, **call}]}}
        return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "logprobs": None}

    def closing(self) -> Json:
        return {"delta": {}}

    def whole(self, text: str, tokens: Sequence[Token]) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}, **self._logprobs_of(tokens)}

    def _logprobs_of(self, tokens: Sequence[Token]) -> Json:
        if self._logprobs is None:
            return {"logprobs": None}
        content = [{**self._entry(token, token.logprob), "top_logprobs": self._others(token)} for token in tokens]
        return {"logprobs": {"content": content, "refusal": None}}

    def _others(self, token: Token) -> list[Json]:
        return [self._entry(other, logprob) for other, logprob in token.top]

    def _entry(self, token: int, logprob: float | None) -> Json:
        text = self._tokenizer.decode([token], special=True)
        # Of a token that holds part of a character the text is not known.
        raw = None if "�" in text else list(text.encode())
        return {"token": text, "logprob": finite(logprob), "bytes": raw}


class TextShape:
    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def opening(self, before: str) -> Json:
        return {"text": before, "logprobs": None} if before else {}

    def piece(self, text: str, tokens: Sequence[Token], at: int) -> Json:
        return {"text": text, **self._logprobs_of(tokens, at)}

    def calling(self, name: str, arguments: str, whole: bool) -> Json:
        raise NotImplementedError

    def closing(self) -> Json:
        return {"text": "", "logprobs": None}

    def whole(self, text: str, tokens: Sequence[Token]) -> Json:
        return {"text": text, **self._logprobs_of(tokens, 0)}

    def _logprobs_of(self, tokens: Sequence[Token], at: int) -> Json:
        if self._logprobs is None:
            return {"logprobs": None}
        texts = [self._tokenizer.decode([token], special=True) for token in tokens]
        starts = list(accumulate(map(len, texts[:-1]), initial=at)) if texts else []
        return {
            "logprobs": {
                "tokens": texts,
                "token_logprobs": [finite(token.logprob) for token in tokens],
                "top_logprobs": [self._top(token) for token in tokens],
                "text_offset": starts,
            }
        }

    def _top(self, token: Token) -> dict[str, float]:
        return {self._tokenizer.decode([t], special=True): finite(p) for t, p in token.top}


def finite(logprob: float | None) -> float:
    """JSON has no -inf: OpenAI writes -9999 for an impossible token."""
    return -9999.0 if logprob is None or logprob < -9999 else logprob
