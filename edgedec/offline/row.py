"""The row of a batch: its request, its result, and the defaults of its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.decoding.config import GenerationConfig
from edgedec.errors import UsageError
from edgedec.plugins import Words
from edgedec.search.choices import Choices

Out = dict[str, Any]
ONE = Choices()


@dataclass(frozen=True)
class RowResult:
    """The text of a row and its finish reason; `error` if there is no text. `score`: its mean log-probability;
    `written`: the tokens of all texts of the row, those that are not given too; `others`: the texts after it."""

    text: str = ""
    finish: str = ""
    prompt: int = 0
    generated: int = 0
    seed: int | None = None
    error: str = ""
    score: float = 0.0
    written: int = 0
    others: tuple[RowResult, ...] = ()

    @property
    def texts(self) -> tuple[RowResult, ...]:
        """All texts of the row."""
        return (self, *self.others)


@dataclass(frozen=True)
class RowRequest:
    """The generation request of a row, and `write`, which converts the result to a line of the output.

    `constraint`: its kind and text; `processors`, `fuse`: by name; `diffusion`: how a diffusion model decodes, None:
    as the batch says; `choices`: how many texts; `stride`: between their seeds; `error`: the reason if the row is
    invalid.
    """

    write: Callable[[RowResult], Out]
    ids: Sequence[int] = ()
    config: GenerationConfig = field(default_factory=GenerationConfig)
    constraint: tuple[str, str] | None = None
    processors: Words = ()
    fuse: Words = ()
    diffusion: str | None = None
    choices: Choices = ONE
    stride: int = 1
    error: str = ""


@dataclass(frozen=True)
class Defaults:
    """The options of rows that do not set them. `seed`: row i draws with seed + i; `column`: of the prompt; `choices`:
    how many texts of each."""

    config: GenerationConfig = field(default_factory=GenerationConfig)
    constraint: tuple[str, str] | None = None
    seed: int = 0
    column: str = "prompt"
    processors: Words = ()
    fuse: Words = ()
    choices: Choices = ONE


def messages(given: object) -> list[dict[str, object]]:
    """Messages for a chat template; content in parts of text is joined."""
    if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
        raise UsageError('messages: must be a list of {"role": …, "content": …}')
    found = []
    for message in given:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part if isinstance(part, dict) else {} for part in content]
            if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
                raise UsageError("messages: of the parts of a content only text can be read")
            content = "".join(part["text"] for part in parts)
        if not isinstance(message.get("role"), str) or not isinstance(content, str):
            raise UsageError("messages: each needs a role and a content, both text")
        found.append({**message, "content": content})
    return found
