"""What the others get: gaps between the pieces of their streams, the seconds of /health, the server's memory."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

PROMPT = "Once upon a time"


def request(method: str, path: str, body: object = None, more: str = "") -> bytes:
    """The bytes of a request."""
    content = b"" if body is None else json.dumps(body).encode()
    kind = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}{more}\r\n".encode() + content


def connected(place: str, seconds: float = 60.0) -> socket.socket:
    address = urlsplit(place)
    return socket.create_connection((address.hostname or "", address.port or 0), seconds)


class Watch:
    """Streams and a poller of /health until `stop`: `gaps` and `health` hold (when, seconds)."""

    def __init__(self, place: str, streams: int = 4, tokens: int = 500) -> None:
        self.place, self._tokens, self._over = place, tokens, threading.Event()
        self.gaps: list[tuple[float, float]] = []
        self.health: list[tuple[float, float]] = []
        self.failed: list[str] = []
        work = [self._stream] * streams + [self._poll]
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]

    def start(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def worst(self, since: float, until: float) -> tuple[float, float]:
        """The longest gap and the slowest /health that touch this time."""
        found = [[s for at, s in all_ if at >= since and at - s <= until] for all_ in (self.gaps, self.health)]
        return max(found[0], default=0.0), max(found[1], default=0.0)

    def usual(self, since: float, until: float) -> float:
        """The median gap in this time."""
        found = sorted(s for at, s in self.gaps if since <= at <= until)
        return found[len(found) // 2] if found else 0.0

    def _stream(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": self._tokens, "ignore_eos": True, "stream": True}
        while not self._over.is_set():
            try:
                with connected(self.place, 120) as end:
                    end.sendall(request("POST", "/v1/completions", body, "Connection: close\r\n"))
                    self._read(end)
            except OSError as error:
                self.failed.append(type(error).__name__)
                sleep(0.1)

    def _read(self, end: socket.socket) -> None:
        last = 0.0
        while (piece := end.recv(1 << 16)) and not self._over.is_set():
            if b"data: {" in piece:
                now = monotonic()
                self.gaps += [(now, now - last)] if last else []
                last = now
            elif not last and not piece.startswith(b"HTTP/1.1 200"):
                self.failed.append(piece[:12].decode("latin-1"))

    def _poll(self) -> None:
        while not self._over.is_set():
            began = monotonic()
            try:
                with connected(self.place, 120) as end:
                    end.sendall(request("GET", "/health", more="Connection: close\r\n"))
                    while end.recv(1 << 16):
                        pass
            except OSError as error:
                self.failed.append(f"health: {type(error).__name__}")
            now = monotonic()
            self.health.append((now, now - began))
            sleep(0.02)


def memory(pid: int) -> int:
    """MiB of a process that are its own; 0 where /proc is missing."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon")), 0)
