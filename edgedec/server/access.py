"""Checks before any route: Host header, API key, CORS. Counts every answer."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from edgedec.errors import UsageError
from edgedec.server.answers import JsonAnswer
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# One line per answered request: method, path, status, seconds; never its content.
log = logging.getLogger("edgedec.requests")
# Paths that need no key: monitoring has none, and the page has a field for it.
_OPEN = ("/health", "/")
# What a header's value may hold, but for spaces at its ends, which HTTP cuts off.
_SENDABLE = re.compile(rb"[\x20-\x7e\x80-\xff]*")
_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[!-.0-~]+")


@dataclass(frozen=True)
class AccessPolicy:
    """key: the API key, None for none; origin: the one web origin that CORS allows; local: accept local host names
    only, so that no web page can reach the server through a name of its own (DNS rebinding)."""

    key: str | None = None
    origin: str | None = None
    local: bool = True

    def __post_init__(self) -> None:
        if self.key is not None and (not self.keys or any(key.strip(b" ") != key for key in self.keys)):
            raise UsageError("the API key is empty, or no header can carry it: no spaces at its ends, no line ends")
        if self.origin is not None and not _ORIGIN.fullmatch(self.origin):
            raise UsageError(f"CORS: {self.origin!r} is not an origin, such as https://a.example")

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The key as clients may send it: as UTF-8, some as Latin-1; none if no header can carry it."""
        key = self.key or ""
        spelled = [key.encode("utf-8", "surrogateescape")]
        if key.isascii() is False and all(ord(character) < 256 for character in key):
            spelled.append(key.encode("latin-1"))
        return tuple(one for one in spelled if one and _SENDABLE.fullmatch(one))


class AccessMiddleware:
    """ASGI middleware that refuses what the policy does not allow, and marks and counts all answers."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, on_answer: Callable[[str, int], None]) -> None:
        self._app, self._policy, self._on_answer = app, policy, on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began, status = perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                self._mark(message)
                status = message["status"]
                # Only known paths, so that a scanner makes no endless list of them.
                known = "endpoint" in scope and status != 404
                self._on_answer(_route(scope) if known else "other", status)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                log.info("%s %s %d %.3f s", scope["method"], ascii(scope["path"])[1:-1], status, perf_counter() - began)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, counted)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if scope["method"] == "OPTIONS" and self._policy.origin and "access-control-request-method" in headers:
                return Response(status_code=204)
            if scope["path"] not in _OPEN:
                self._check_key(headers)
        except APIError as error:
            return JsonAnswer(error.body_for(scope["path"]), error.status, error.headers)
        return None

    def _check_host(self, headers: Headers) -> None:
        if self._policy.local and not is_local(host_of(headers.get("host", ""))):
            raise APIError(403, "this server answers to localhost and 127.0.0.1 only", code="wrong_host")

    def _check_key(self, headers: Headers) -> None:
        if self._policy.key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Raw bytes, because compare_digest accepts only ASCII in strings; strip() alone would cut Latin-1's own spaces.
        sent = given.strip(" \t").encode("latin-1")
        if scheme.lower() != "bearer" or not any(compare_digest(sent, key) for key in self._policy.keys):
            raise APIError(401, "give the server's API key: Authorization: Bearer KEY", code="invalid_api_key")

    def _mark(self, message: Message) -> None:
        headers = MutableHeaders(scope=message)
        headers["X-Content-Type-Options"] = "nosniff"
        if self._policy.origin:
            headers["Access-Control-Allow-Origin"] = self._policy.origin
            headers["Access-Control-Allow-Headers"] = "authorization, content-type"
            headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"
            headers.add_vary_header("Origin")


def _route(scope: Scope) -> str:
    """The path without its parameters: an endless list of names otherwise."""
    path = str(scope["path"])
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(str(value), f"{{{name}}}")
    return path


def host_of(header: str) -> str:
    """A Host header's name without its port: "[::1]:8080" -> "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_local(host: str) -> bool:
    """Whether a bind address is local to this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
