"""Chat templates: a conversation as the model was trained to read it.

A template is an untrusted program. It runs in Jinja's sandbox, in a worker process with limits of time and memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from queue import Empty, Full, LifoQueue
from typing import Any

from edgedec.errors import LimitExceeded, TextError
from edgedec.sandbox import GuestLimits, GuestWorker, Sandbox, enabled
from edgedec.text import _template_guest as guest

_LIMITS = GuestLimits(seconds=1.0, memory=256)
# Workers that are kept for the next chat, and how many chats each renders.
_IDLE, _CHATS = 4, 2000


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    **names: object,
) -> str:
    """A chat as the model's own Jinja template writes it; `names` are bos_token, eos_token and the like.

    The template sees plain data only, and may not write more than 4 MiB, take more than 1 s or 256 MiB.
    """
    try:
        values: dict[str, Any] = {"tools": _plain(tools), "documents": None}
        values |= {name: _plain(value) for name, value in names.items() if value is not None}
        values |= {"messages": _plain(messages), "add_generation_prompt": add_generation_prompt}
        if not enabled():
            return guest.render(template, values)
        blob = json.dumps(values).encode()
    except RecursionError:
        raise TextError("messages: are nested too deeply") from None
    except ValueError as error:
        raise TextError(str(error)) from error
    return _renderers().render(template, blob)


def start() -> None:
    """Start the template renderers, so that the first chat does not wait for them."""
    if enabled():
        _renderers().sandbox.start()


class _Renderers:
    """Workers that render templates, one for each thread that does so at the moment."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(Path(guest.__file__), limits=_LIMITS)
        self._idle: LifoQueue[tuple[GuestWorker, int, int]] = LifoQueue(_IDLE)

    def render(self, template: str, blob: bytes) -> str:
        worker, left = self._take()
        try:
            reply = worker.call(blob, template=template)
        except LimitExceeded as error:
            raise TextError(f"chat template: {error}") from None
        if reply.error:
            worker.close()
            raise TextError(reply.error)
        self._give(worker, left - 1)
        return reply.blob.decode("utf-8", "surrogatepass")

    def _take(self) -> tuple[GuestWorker, int]:
        """An idle worker or a new one; not one of the process that this one was forked from."""
        while True:
            try:
                worker, left, owner = self._idle.get_nowait()
            except Empty:
                return self.sandbox.worker(), _CHATS
            if owner == os.getpid() and worker.alive:
                return worker, left

    def _give(self, worker: GuestWorker, left: int) -> None:
        if left <= 0 or self._idle.full():
            worker.close()
            return
        try:
            self._idle.put_nowait((worker, left, os.getpid()))
        except Full:
            worker.close()


@cache
def _renderers() -> _Renderers:
    return _Renderers()


def _plain(value: object) -> Any:
    """A copy in exact JSON types, because an untrusted template must not get objects with methods."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str() of a str enum would be its name
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    raise TextError(f"messages: {type(value).__name__} is no plain data; use dicts, lists, strings and numbers")
