"""Many streams from `edgedec serve`: speed, and the time between the tokens that a client gets.

The client is one thread with a selector and one socket a stream. While it measures it stores the bytes and the time of
their arrival; texts are read from them afterwards.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter

from edgedec.bench.batch import SEQUENTIAL, BatchWork, Took
from edgedec.errors import RuntimeUnavailable

_CHUNK = re.compile(rb"([0-9a-fA-F]+)\r\n")
_EVENT = b"data: {"
# Batches use none of the settings that a model suggests.
_GREEDY = {"temperature": 0, "repetition_penalty": 1, "ignore_eos": True, "stream": True}
_SILENCE_S = 120.0
_READ = 1 << 16


@dataclass
class Stream:
    """One answer: its pieces as they came, and when."""

    pieces: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals of text."""
        times = [time for time, piece in zip(self.times, self.pieces, strict=True) if _EVENT in piece]
        return [b - a for a, b in pairwise(times)]

    def text(self) -> tuple[str, str]:
        """The text, and why it ended. RuntimeUnavailable if the answer is not a whole stream."""
        raw = b"".join(self.pieces)
        head, _, body = raw.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeUnavailable(f"edgedec serve: {raw[:300].decode(errors='replace')}")
        text, finish = "", ""
        for line in _unchunked(body).decode().splitlines():
            if line.startswith(_EVENT.decode()):
                chunk = json.loads(line.removeprefix("data: "))
                if "choices" not in chunk:
                    raise RuntimeUnavailable(f"edgedec serve: {line[:300]}")
                text += chunk["choices"][0]["text"]
                finish = chunk["choices"][0]["finish_reason"] or finish
        return text, finish


class Served:
    """`edgedec serve` with a slot for each stream; started anew for every turn, so that no prompt is in its cache.
    Starting, and one text a stream to warm up, are not counted."""

    def __init__(self, path: str, speculate: str, flags: Sequence[str]) -> None:
        """flags: of `edgedec serve`, such as --threads."""
        self._command = [sys.executable, "-m", "edgedec", "serve", "-m", path, "--spec", speculate, *flags]

    def run(self, work: BatchWork, size: int) -> Took:
        assert size != SEQUENTIAL
        # Other prompts than those that are measured.
        warm = replace(work, prompts=tuple(ids[::-1] for ids in work.prompts[:size]))
        with self._serving(work, size) as port:
            stream_all(port, warm, size)
            began = perf_counter()
            streams = stream_all(port, work, size)
            seconds = perf_counter() - began
        texts = []
        for stream in streams:
            text, finish = stream.text()
            if finish != "length":
                raise RuntimeUnavailable(f"edgedec serve: a text ended early: {finish or 'no finish_reason'}")
            texts.append(text)
        return Took(seconds, texts, [gap for stream in streams for gap in stream.gaps])

    @contextmanager
    def _serving(self, work: BatchWork, size: int) -> Iterator[int]:
        limits = ["--port", "0", "--slots", str(size), "-c", str(work.longest + 1), "--queue", str(size)]
        with subprocess.Popen([*self._command, *limits], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                said: list[str] = []
                for line in process.stderr:
                    said.append(line)
                    if found := re.search(r" at http://[^/]*:(\d+)/", line):
                        yield int(found[1])
                        return
                raise RuntimeUnavailable(f"edgedec serve did not start: {' '.join(''.join(said).split())[-300:]}")
            finally:
                process.terminate()


def stream_all(port: int, work: BatchWork, size: int) -> list[Stream]:
    """The answers to all prompts, `size` streams at a time."""
    waiting = deque(_request(ids, work.tokens) for ids in work.prompts)
    streams: list[Stream] = []
    with selectors.DefaultSelector() as selector:

        def start() -> None:
            connection = socket.create_connection(("127.0.0.1", port), timeout=_SILENCE_S)
            connection.sendall(waiting.popleft())
            connection.setblocking(False)
            streams.append(Stream())
            selector.register(connection, selectors.EVENT_READ, streams[-1])

        try:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < size:
                    start()
                ready = selector.select(_SILENCE_S)
                if not ready:
                    raise RuntimeUnavailable(f"edgedec serve: nothing came for {_SILENCE_S:.0f} s")
                for key, _ in ready:
                    _receive(selector, key)
        finally:
            for key in list(selector.get_map().values()):
                _connection(key).close()
    return streams


def _receive(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Store what has arrived on a connection; forget it at its end."""
    connection = _connection(key)
    piece = connection.recv(_READ)
    if piece:
        key.data.pieces.append(piece)
        key.data.times.append(perf_counter())
    else:
        selector.unregister(connection)
        connection.close()


def _connection(key: selectors.SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj


def _request(ids: Sequence[int], tokens: int) -> bytes:
    asked = {"prompt": list(ids), "max_tokens": tokens, **_GREEDY}
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _unchunked(body: bytes) -> bytes:
    """A body without its chunk sizes."""
    parts, at = list[bytes](), 0
    while found := _CHUNK.match(body, at):
        size = int(found[1], 16)
        parts.append(body[found.end() : found.end() + size])
        at = found.end() + size + 2
    return b"".join(parts)
