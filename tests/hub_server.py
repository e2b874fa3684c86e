"""A stand-in of the Hugging Face Hub: model info, trees, files with ETags and ranges, downloads that break off."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGE = 4096  # files of more bytes have the hash of their content, as those in the Hub's large file storage


class HubServer:
    """`repositories`: {id: folder}. `cut`: files whose next whole download ends half-way. `asked`: (method, path,
    range) of every request."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories, self.cut, self.asked = repositories, set[str](), list[tuple[str, str, str]]()
        self.wrong: dict[str, bytes] = {}
        # What it says instead of the right commit, ETag and names of files.
        self.lies: dict[str, str] = {}

    def commit(self, id: str) -> str:  # noqa: A002
        """Of what the folder holds now."""
        if "commit" in self.lies:
            return self.lies["commit"]
        parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.files(id)]
        return hashlib.sha1(" ".join([id, *parts]).encode()).hexdigest()

    def files(self, id: str) -> list[Path]:  # noqa: A002
        return sorted(path for path in self.repositories[id].iterdir() if path.is_file())

    def fetched(self, name: str) -> list[str]:
        """The ranges that were asked for of a file ("" of the whole)."""
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(f"/{name}")]


def etag(data: bytes) -> str:
    if len(data) > LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        id, rest = self._repository(path.removeprefix("/api/models"))  # noqa: A001
        if id is None:
            self._json(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models"):
            self._api(id, rest)
        else:
            self._file(id, rest)

    def _repository(self, path: str) -> tuple[str | None, list[str]]:
        parts = path.strip("/").split("/")
        id = "/".join(parts[:2])  # noqa: A001
        return (id if id in self.hub.repositories else None), parts[2:]

    def _api(self, id: str, rest: list[str]) -> None:  # noqa: A002
        commit, files = self.hub.commit(id), self.hub.files(id)
        if len(rest) > 1 and rest[1] not in ("main", commit):
            self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        elif rest[:1] == ["tree"]:
            found = []
            for path in files:
                data = path.read_bytes()
                oid, name = self.hub.lies.get("etag") or etag(data), self.hub.lies.get("name") or path.name
                entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
                if len(data) > LARGE:
                    entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 130}
                found.append(entry)
            self._json(200, found)
        else:
            siblings = [{"rfilename": self.hub.lies.get("name") or path.name} for path in files]
            self._json(
                200, {"id": id, "modelId": id, "sha": commit, "siblings": siblings, "private": False, "tags": []}
            )

    def _file(self, id: str, rest: list[str]) -> None:  # noqa: A002
        path = self.hub.repositories[id] / rest[-1]
        if rest[0] != "resolve" or not path.is_file():
            self._json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        data = path.read_bytes()
        headers = {
            "ETag": f'"{self.hub.lies.get("etag") or etag(data)}"',
            "X-Repo-Commit": self.hub.commit(id),
            "Accept-Ranges": "bytes",
        }
        data = self.hub.wrong.get(path.name, data)
        span, total, start = self.headers.get("Range", ""), len(data), 0
        if span.startswith("bytes="):
            start = int(span.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        self._begin(206 if start else 200, total - start, headers)
        if self.command == "HEAD":
            return
        if path.name in self.hub.cut and not start:
            self.hub.cut.discard(path.name)
            self.wfile.write(data[: total // 2])
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self._begin(status, len(text), {"Content-Type": "application/json", **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(text)

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()


@contextmanager
def serving_hub(repositories: dict[str, Path]) -> Iterator[tuple[str, HubServer]]:
    """(its address, the hub)."""
    hub = HubServer(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
