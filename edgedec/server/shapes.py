"""The two formats of OpenAI's answers: a chat's message and its deltas, a completion's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from secrets import token_hex
from typing import Any, Protocol

from edgedec.decoding.messages import Token
from edgedec.server.calls import CallPiece, FunctionCall
from edgedec.server.choice import Choice, TextDelta
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

    def piece(self, delta: TextDelta, at: int) -> Json:
        """More text and its tokens; `at`: where it begins in the whole text."""
        ...

    def closing(self) -> Json:
        """The last chunk."""
        ...

    def whole(self, choice: Choice) -> Json:
        """The whole choice."""
        ...


class ChatShape:
    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def opening(self, before: str) -> Json:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, delta: TextDelta, at: int) -> Json:
        if delta.pieces or delta.whole:
            begun = len(delta.calls) - len(delta.whole)
            whole = [{"index": begun + i, **_call(call)} for i, call in enumerate(delta.whole)]
            return {"delta": {"tool_calls": [*map(_piece, delta.pieces), *whole]}}
        thought = {"reasoning_content": delta.thought} if delta.thought else {}
        content = {"content": delta.text} if delta.text or not thought else {}
        return {"delta": {**thought, **content}, **self._logprobs_of(delta.tokens)}

    def closing(self) -> Json:
        return {"delta": {}}

    def whole(self, choice: Choice) -> Json:
        thought = {"reasoning_content": choice.thought.rstrip()} if choice.thought else {}
        message = {"role": "assistant", "content": choice.text, "refusal": None, **thought}
        if not choice.calls:
            return {"message": message, **self._logprobs_of(choice.tokens)}
        calls = [_call(call) for call in choice.calls]
        return {"message": {**message, "content": choice.text or None, "tool_calls": calls}, "logprobs": None}

    def _logprobs_of(self, tokens: Sequence[Token]) -> Json:
        if self._logprobs is None:
            return {"logprobs": None}
        return {"logprobs": {"content": chat_logprobs(self._tokenizer, tokens), "refusal": None}}


class TextShape:
    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def opening(self, before: str) -> Json:
        return {"text": before, "logprobs": None} if before else {}

    def piece(self, delta: TextDelta, at: int) -> Json:
        return {"text": delta.text, **self._logprobs_of(delta.prompt or delta.tokens, 0 if delta.prompt else at)}

    def closing(self) -> Json:
        return {"text": "", "logprobs": None}

    def whole(self, choice: Choice) -> Json:
        return {"text": choice.text, **self._logprobs_of([*choice.prompt, *choice.tokens], 0)}

    def _logprobs_of(self, tokens: Sequence[Token], at: int) -> Json:
        if self._logprobs is None:
            return {"logprobs": None}
        texts = [self._tokenizer.decode([token], special=True) for token in tokens]
        lengths = [len(self._tokenizer.decode([token])) for token in tokens[:-1]]  # special ones are not in the text
        starts = list(accumulate(lengths, initial=at)) if texts else []
        return {
            "logprobs": {
                "tokens": texts,
                # The first token of a prompt has no log-probability.
                "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
                "top_logprobs": [None if token.logprob is None else self._top(token) for token in tokens],
                "text_offset": starts,
            }
        }

    def _top(self, token: Token) -> dict[str, float]:
        return {self._tokenizer.decode([t], special=True): finite(p) for t, p in token.top}


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> list[Json]:
    """Log-probabilities as a chat's answer has them."""

    def entry(token: int, logprob: float | None) -> Json:
        text = tokenizer.decode([token], special=True)
        # Of a token that holds part of a character the text is not known.
        raw = None if "�" in text else list(text.encode())
        return {"token": text, "logprob": finite(logprob), "bytes": raw}

    return [
        {**entry(token, token.logprob), "top_logprobs": [entry(other, p) for other, p in token.top]} for token in tokens
    ]


def finite(logprob: float | None) -> float:
    """JSON has no -inf: OpenAI writes -9999 for an impossible token."""
    return -9999.0 if logprob is None or logprob < -9999 else logprob


def _piece(piece: CallPiece) -> Json:
    """The first piece of a call has its id and name, the others arguments alone."""
    if piece.name:
        return {"index": piece.call, **_call(FunctionCall(piece.name, piece.arguments))}
    return {"index": piece.call, "function": {"arguments": piece.arguments}}


def _call(call: FunctionCall) -> Json:
    return {
        "id": f"call_{token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
