"""The limits of a server, of its engines and of its connections."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.errors import UsageError

# Bytes of a request: what schemas, tools and options may take, and for each token of the context, whether it is text,
# escaped text or a number.
_BODY, _TOKEN = 1 << 20, 32


@dataclass(frozen=True)
class ServerLimits:
    """slots: texts at a time, of `context` tokens each; tokens: the most tokens in all caches, 0: as many as the slots
    need; queue: the most waiting requests; seconds: the time limit of a request; offload: a folder for ended texts that
    the caches have no room for, and its size limit in bytes, 0: none; held: the most tokens of a text in the cache at a
    time, 0: all; scorers: requests may name searches that run programs or open files."""

    slots: int = 4
    context: int = 1024
    queue: int = 64
    seconds: float = 600.0
    speculate: str = "auto"
    tokens: int = 0
    offload: tuple[str, int] = ("", 0)
    held: int = 0
    scorers: bool = False

    def __post_init__(self) -> None:
        if 0 < self.tokens < self.each:
            raise UsageError(
                f"{self.tokens} tokens for all caches: a text of {self.context} would never fit; allow more, or take "
                "a smaller context"
            )

    @property
    def each(self) -> int:
        """The most cache tokens of a text."""
        return self.held or self.context

    @property
    def room(self) -> int:
        """Tokens in all caches."""
        return self.tokens or self.slots * self.each


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds: `header`: from the first byte of a request, or from the connection on, to the end of its header; `body`:
    without progress of a body, or of an answer that the client does not read; `idle`: between two requests. most:
    connections at a time, 0: as descriptors allow."""

    header: float = 10.0
    body: float = 30.0
    idle: float = 60.0
    most: int = 0


def most_body(context: int) -> int:
    """The bytes of a request that a context can need."""
    return _BODY + _TOKEN * context
