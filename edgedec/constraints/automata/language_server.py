"""A language server as an analysis: completions over its standard input and output (LSP 3.17, JSON-RPC)."""

from __future__ import annotations

import json
import queue
import re
import shlex
import subprocess
import threading
import weakref
from collections.abc import Sequence
from time import monotonic
from typing import IO, Any

from edgedec.errors import UsageError
from edgedec.text.tokenizer import one_line

_NAME = re.compile(r"[^\W\d]\w*")
_MOST = 1 << 24  # bytes of a message
_COMPLETION = {"dynamicRegistration": False, "completionItem": {"snippetSupport": False}}


class LanguageServer:
    """Started once, for one file. seconds: how long an answer may take."""

    def __init__(self, command: str, uri: str, language: str, seconds: float) -> None:
        self._command, self._uri, self._language, self._seconds = command, uri, language, seconds
        self._number, self._version, self._lock = 0, 0, threading.Lock()
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        try:
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(shlex.split(command), stdin=pipe, stdout=pipe, stderr=null)
        except (OSError, ValueError, IndexError) as error:
            raise UsageError(f"monitor: the language server {command!r} cannot be started: {one_line(error)}") from None
        self.close = weakref.finalize(self, _end, self._process)
        threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True).start()
        root = {"processId": None, "rootUri": None, "capabilities": {"textDocument": {"completion": _COMPLETION}}}
        self._ask("initialize", root)
        self._send("initialized", {})

    def names(self, text: str) -> Sequence[str]:
        """The names that the server would complete the text with, at its end."""
        with self._lock:
            self._show(text)
            line, _, rest = text.rpartition("\n")
            at = {"line": line.count("\n") + 1 if "\n" in text else 0, "character": len(rest.encode("utf-16-le")) // 2}
            found = self._ask("textDocument/completion", {"textDocument": {"uri": self._uri}, "position": at})
        items = found.get("items", []) if isinstance(found, dict) else found or []
        return [name for item in items if isinstance(item, dict) and (name := _name_of(item))]

    def _show(self, text: str) -> None:
        self._version += 1
        document = {"uri": self._uri, "version": self._version}
        if self._version == 1:
            self._send(
                "textDocument/didOpen", {"textDocument": {**document, "languageId": self._language, "text": text}}
            )
        else:
            self._send("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request; UsageError if there is none in time."""
        self._number += 1
        self._send(method, params, id=self._number)
        until = monotonic() + self._seconds
        while True:
            try:
                answer = self._answers.get(timeout=max(until - monotonic(), 0.0))
            except queue.Empty:
                self.close()
                raise UsageError(f"{self._where} gave no answer to {method} in {self._seconds:g} s") from None
            if answer is None:
                raise UsageError(f"{self._where} ended ({self._exit()})")
            if "method" in answer and "id" in answer:  # a question of the server's own: nothing is configured
                self._write({"id": answer["id"], "result": None})
            elif answer.get("id") == self._number and "method" not in answer:
                if "error" in answer:
                    raise UsageError(f"{self._where} refused {method}: {json.dumps(answer['error'])[:200]}")
                return answer.get("result")

    @property
    def _where(self) -> str:
        return f"monitor: the language server {self._command!r}"

    def _exit(self) -> str:
        """How it ended."""
        try:
            return f"exit code {self._process.wait(1)}"
        except subprocess.TimeoutExpired:
            self.close()
            return "it wrote something that is no message"

    def _send(self, method: str, params: dict[str, Any], **more: int) -> None:
        self._write({**more, "method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise UsageError(f"{self._where} ended ({self._exit()})") from None


def _name_of(item: dict[str, Any]) -> str:
    """The name of a completion: of what it inserts, or of its label."""
    for key in ("insertText", "label"):
        found = _NAME.match(str(item.get(key) or ""))
        if found:
            return found[0]
    return ""


def _read(stream: IO[bytes] | None, answers: queue.Queue[dict[str, Any] | None]) -> None:
    """Pass on messages until the stream ends or is no longer one of messages."""
    try:
        while stream is not None and (length := _length(stream)):
            message = json.loads(stream.read(length))
            if isinstance(message, dict):
                answers.put(message)
    except (OSError, ValueError):
        pass
    answers.put(None)


def _length(stream: IO[bytes]) -> int:
    """The length of the next message; 0 at the end."""
    length = 0
    while line := stream.readline(1024):
        if line in (b"\r\n", b"\n"):
            return length if length <= _MOST else 0
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
        elif not value:
            return 0
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
