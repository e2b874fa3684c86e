"""Who may speak to the server: keys, origins, host names; and bodies that end too early."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.cli import main
from edgedec.errors import UsageError

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")

from serving import serving  # noqa: E402

from edgedec.server.access import AccessMiddleware, AccessPolicy, is_local  # noqa: E402
from edgedec.server.app import build  # noqa: E402


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def status_of(policy: AccessPolicy, *headers: tuple[bytes, bytes], app: Any = None, receive: Any = _nothing) -> int:
    """The answer's status for a request with these headers."""
    found: list[int] = []

    async def send(message: Any) -> None:
        found.extend([message["status"]] if "status" in message else [])

    async def good(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [*headers]}
    middleware = AccessMiddleware(app or good, policy, lambda path, status: None)
    asyncio.run(middleware(scope, receive, send))
    return found[0]


# ---- keys


@pytest.mark.parametrize(
    "key",
    [
        "sk-plain",
        "with spaces inside",
        "".join(map(chr, range(33, 127))),
        "schl\u00fcssel",
        "ends with \u00e0",  # whose last byte is Latin-1's space
        "\u043a\u043b\u044e\u0447",
        b"raw \xfc bytes".decode("utf-8", "surrogateescape"),  # as EDGEDEC_API_KEY gives them
    ],
)
def test_a_key_of_any_printable_bytes(key: str) -> None:
    policy = AccessPolicy(key, local=False)
    sent = key.encode("utf-8", "surrogateescape")
    assert status_of(policy, (b"authorization", b"Bearer " + sent)) == 200
    assert status_of(policy, (b"authorization", b"bearer  " + sent + b" ")) == 200
    assert status_of(policy, (b"authorization", b"Bearer " + sent + b"x")) == 401
    assert status_of(policy, (b"authorization", b"Bearer " + sent[:-1])) == 401


def test_a_key_of_latin_1_letters_is_sent_in_either_form() -> None:
    policy = AccessPolicy("schl\u00fcssel", local=False)
    assert status_of(policy, (b"authorization", b"Bearer schl\xfcssel")) == 200
    assert status_of(policy, (b"authorization", b"Bearer schl\xfdssel")) == 401


@pytest.mark.parametrize("key", ["", " a", "a ", "a\nb", "a\r\n", "a\tb", "a\x00", "a\x7f"])
def test_a_key_that_cannot_be_sent_is_refused_at_the_start(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="API key"):
        AccessPolicy(key)
    assert main(["serve", "-m", "nano", "--port", "0", "--api-key", key]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "key" in line


# ---- origins and host names


@pytest.mark.parametrize("origin", ["https://a.example\r\nX-Evil: 1", "https://a.example\n", "a b", "", "https://"])
def test_an_origin_that_no_header_can_carry_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="CORS"):
        AccessPolicy(origin=origin)


@pytest.mark.parametrize("origin", ["*", "null", "https://a.example", "http://localhost:3000", "capacitor://localhost"])
def test_origins(origin: str) -> None:
    assert AccessPolicy(origin=origin).origin == origin


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.2:8080", "127.1.2.3", "localhost:1", "[::1]:80", "LOCALHOST"])
def test_loopback_addresses_are_local(host: str) -> None:
    assert status_of(AccessPolicy(), (b"host", host.encode())) == 200
    assert is_local("127.0.0.2")


@pytest.mark.parametrize("host", ["a.example", "127.0.0.1.a.example", "10.0.0.1", "", "[fe80::1]", "127.0.0.2.nip.io"])
def test_other_names_are_not(host: str) -> None:
    assert status_of(AccessPolicy(), (b"host", host.encode())) == 403


# ---- bodies


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[tuple[str, Any]]:
    with serving(edgedec.open(nano, threads=1)) as found:
        yield found


def test_an_upload_that_breaks_off_is_a_400(served: tuple[str, Any]) -> None:
    """It was an error of the server's, with its traceback in the log."""
    parts = [{"type": "http.request", "body": b'{"prompt', "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"100")]
    assert status_of(AccessPolicy(), *headers, app=build(served[1]), receive=receive) == 400


def test_a_broken_chunk_is_a_400(served: tuple[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    host, port = served[0].removeprefix("http://").split(":")
    lines = [
        "POST /v1/completions HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json",
        "Transfer-Encoding: chunked", "", "5", '{"pro', "ZZ", "",
    ]  # fmt: skip
    with socket.create_connection((host, int(port)), timeout=30) as client, caplog.at_level(logging.ERROR):
        client.sendall("\r\n".join(lines).encode())
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        assert client.recv(1000) is not None
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
