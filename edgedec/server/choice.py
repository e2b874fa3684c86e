"""One text of an answer as it grows: thoughts, text and function calls, from the engine's events.

All APIs (OpenAI's two, Responses, Ollama's) read texts through this; they differ in format only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgedec.decoding.messages import Token
from edgedec.search.choices import likelihood
from edgedec.server.api import TextRequest
from edgedec.server.calls import CallPiece, FunctionCall
from edgedec.server.completions import Completion
from edgedec.server.errors import APIError
from edgedec.server.requests import EndEvent, Event, PromptEvent
from edgedec.server.thinking import ThoughtSplitter
from edgedec.server.tools import CallSplitter

# Log-probabilities that are made to JSON beside the event loop.
_MANY = 1000
_ENDS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass
class TextDelta:
    """The additions of an event. `tokens`: tokens that became part of the answer; `pieces`: of unfinished calls;
    `calls`: all calls, once the text has ended; `whole`: the calls that were not sent in pieces."""

    thought: str = ""
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[FunctionCall] = field(default_factory=list)
    pieces: list[CallPiece] = field(default_factory=list)
    whole: list[FunctionCall] = field(default_factory=list)
    prompt: tuple[Token, ...] = ()

    @property
    def by(self) -> str:
        """The drafter that proposed the last token, if one did."""
        return next((token.by for token in reversed(self.tokens) if token.by), "")


class Choice:
    """One text so far. `end`: the event that ended it."""

    def __init__(self, completion: Completion, request: TextRequest) -> None:
        tools = request.tools
        self.thought, self.text, self.thought_tokens = "", completion.echo, 0
        self.prompt: tuple[Token, ...] = ()
        self.tokens: list[Token] = []
        self.calls: list[FunctionCall] = []
        self.end: EndEvent | None = None
        self._unsent: list[Token] = []
        # Tokens without text of their own are reported too.
        self._all = request.logprobs is not None and tools is None
        self._thoughts = ThoughtSplitter(completion.thinks) if request.messages else None
        answers = request.constraint is not None
        self._functions = None if tools is None else CallSplitter(tools.schemas, tools.choice == "required", answers)

    def add(self, event: Event) -> TextDelta:
        """The additions of an event; APIError if an error or a cancellation ended the text."""
        if isinstance(event, PromptEvent):
            self.prompt = event.tokens
            return TextDelta(prompt=event.tokens)
        if isinstance(event, EndEvent):
            return self._close(event)
        if event.token is not None:
            self._unsent.append(event.token)
            self.tokens.append(event.token)
        thought, text = ("", event.text) if self._thoughts is None else self._thoughts.push(event.text)
        if self._functions is None:
            return self._grown(thought, text)
        delta = self._grown(thought, self._functions.push(text))
        delta.pieces = self._functions.pieces
        return delta

    @property
    def reason(self) -> str:
        """stop, length or tool_calls."""
        assert self.end is not None
        cut = self._functions is not None and self._functions.unfinished
        return "tool_calls" if self.calls and not cut else _ENDS.get(self.end.finish, "stop")

    @property
    def score(self) -> float:
        """The mean log-probability of its tokens."""
        return likelihood(self.tokens)

    def _close(self, event: EndEvent) -> TextDelta:
        check(event)
        self.end = event
        thought, text = ("", "") if self._thoughts is None else self._thoughts.end()
        if self._functions is None:
            return self._grown(thought, text)
        shown = self._functions.push(text)
        rest, self.calls = self._functions.end(cut=event.finish != "eos")
        delta, begun = self._grown(thought, shown + rest), self._functions.reader.begun
        delta.pieces, delta.calls, delta.whole = self._functions.pieces, self.calls, self.calls[begun:]
        if self.calls:
            delta.tokens = []
        return delta

    def _grown(self, thought: str, text: str) -> TextDelta:
        self.thought += thought
        self.text += text
        delta = TextDelta(thought, text)
        if thought or text or self._all:
            delta.tokens, self._unsent = self._unsent, []
        self.thought_tokens += len(delta.tokens) if thought else 0
        return delta


def many_reported(choices: Sequence[Choice], likely: int | None) -> bool:
    """Whether texts have so many log-probabilities to report, of `likely` tokens beside each, that their answer is made
    beside the event loop."""
    return sum(len(choice.prompt) + len(choice.tokens) for choice in choices) * (likely or 0) >= _MANY


def check(end: EndEvent) -> None:
    """APIError if an error or a cancellation ended a text."""
    if end.finish == "timeout":
        raise APIError(504, "the request took too long", code="timeout")
    if end.finish == "closing":
        raise APIError(503, "the server is shutting down", code="shutting_down", wait=5)
    if end.finish == "cancelled":
        raise APIError(499, "the client has disconnected", code="cancelled")
    if end.finish == "failed":
        status = 500 if end.fault else 400
        raise APIError(status, f"the server failed: {end.why}" if end.fault else end.why, code="failed")
