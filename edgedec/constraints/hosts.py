"""Where matchers live: a worker process, or this process."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from edgedec.constraints._matcher_guest import Matchers
from edgedec.sandbox import Reply


class MatcherHost(Protocol):
    """A worker process, or a local substitute."""

    def send(self, blob: bytes = b"", **message: Any) -> None: ...

    def receive(self) -> Reply: ...

    def ready(self, seconds: float = 0.0) -> bool: ...

    def size(self) -> int: ...

    def lower(self, priority: int) -> None: ...


class LocalHost:
    """Matchers in this process, without limits of memory and time: for `EDGEDEC_SANDBOX=off`."""

    def __init__(self, matchers: Matchers) -> None:
        self._matchers = matchers
        self._replies: deque[Reply] = deque()

    def send(self, blob: bytes = b"", **message: Any) -> None:
        try:
            self._replies.append(Reply(*self._matchers.handle(message)))
        except ValueError as error:
            self._replies.append(Reply({}, b"", " ".join(str(error).split())[:300]))

    def receive(self) -> Reply:
        return self._replies.popleft()

    def ready(self, seconds: float = 0.0) -> bool:
        return True

    def size(self) -> int:
        return 0

    def lower(self, priority: int) -> None:
        """This process keeps its priority."""
