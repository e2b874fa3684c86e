"""Checks before any route: Host header, API key, CORS. Counts every answer."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from edgedec.server.answers import JsonAnswer
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# One line per answered request: method, path, status, seconds; never its content.
log = logging.getLogger("edgedec.requests")
# Paths that need no key: monitoring has none, and the page has a field for it.
_OPEN = ("/health", "/")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class AccessPolicy:
    """key: the API key, None for none; origin: the one web origin that CORS allows; local: accept local host names
    only, so that no web page can reach the server through a name of its own (DNS rebinding)."""

    key: str | None = None
    origin: str | None = None
    local: bool = True


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
        if self._policy.local and host_of(headers.get("host", "")) not in _LOCAL:
            raise APIError(403, "this server answers to localhost and 127.0.0.1 only", code="wrong_host")

    def _check_key(self, headers: Headers) -> None:
        if self._policy.key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Raw bytes, because compare_digest accepts only ASCII in strings.
        if scheme.lower() != "bearer" or not compare_digest(given.strip().encode("latin-1"), self._policy.key.encode()):
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
