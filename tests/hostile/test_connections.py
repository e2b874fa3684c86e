"""Connections that say nothing, too little or too slowly: they end in time, and never keep others out."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import fetch, serving, wait_for  # noqa: E402

from edgedec.server import accepting, bodies  # noqa: E402
from edgedec.server.accepting import OncePer, Quieter, accept  # noqa: E402
from edgedec.server.connections import Connections, most_connections  # noqa: E402
from edgedec.server.errors import APIError  # noqa: E402
from edgedec.server.limits import ConnectionLimits  # noqa: E402
from hostile.servers import server  # noqa: E402
from hostile.watch import connected, request  # noqa: E402


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A connection of uvicorn: `cycle` is its request, `ended` whether it was closed."""

    def __init__(self, found: Connections) -> None:
        self.cycle: Any = None
        self.ended, self.unread = False, 0
        self.transport = SimpleNamespace(abort=self._abort, get_write_buffer_size=lambda: self.unread)
        self._found = found
        found.add(self)

    def _abort(self) -> None:
        self.ended = True
        self._found.remove(self)

    def does(self, response_complete: bool, more_body: bool, fresh: bool = True) -> None:
        self.cycle = SimpleNamespace(response_complete=response_complete, more_body=more_body)
        self._found.note(self, fresh)


def made(most: int = 100) -> tuple[Connections, Clock]:
    clock = Clock()
    return Connections(ConnectionLimits(header=10, body=30, idle=60, most=most), clock), clock


def test_a_header_has_its_time_however_many_bytes_come() -> None:
    found, clock = made()
    silent, drips, busy = Fake(found), Fake(found), Fake(found)
    busy.does(response_complete=False, more_body=False)
    for _ in range(9):
        clock.now += 1
        found.note(drips, True)
        found.sweep()
    assert not silent.ended
    clock.now += 2
    found.sweep()
    assert (silent.ended, drips.ended, busy.ended) == (True, True, False)


def test_a_kept_connection_is_idle_for_longer_but_its_next_header_is_not() -> None:
    found, clock = made()
    kept, next_one = Fake(found), Fake(found)
    for one in (kept, next_one):
        one.does(response_complete=False, more_body=False)
    clock.now += 500  # long answers
    for one in (kept, next_one):
        one.does(response_complete=True, more_body=False, fresh=False)
    found.note(next_one, True)
    clock.now += 11
    found.sweep()
    assert (kept.ended, next_one.ended) == (False, True)
    clock.now += 500
    found.sweep()
    assert kept.ended


def test_an_answer_that_is_not_read_ends_and_one_that_is_read_slowly_does_not() -> None:
    found, clock = made()
    stuck, slow = Fake(found), Fake(found)
    for one in (stuck, slow):
        one.does(response_complete=False, more_body=False)
        one.unread = 10_000
        found.note_unread(one, True)
    for _ in range(40):
        clock.now += 1
        slow.unread -= 1
        found.sweep()
    assert (stuck.ended, slow.ended) == (True, False)
    found.note_unread(slow, False)
    clock.now += 100
    found.sweep()
    assert not slow.ended


def test_the_one_that_is_silent_longest_makes_room() -> None:
    async def run() -> None:
        found, clock = made(most=3)
        ones = []
        for _ in range(3):
            ones.append(Fake(found))
            clock.now += 1
        ones[0].does(response_complete=False, more_body=False)
        await found.room()
        assert [one.ended for one in ones] == [False, True, False]
        Fake(found).does(response_complete=False, more_body=False)
        ones[2].does(response_complete=False, more_body=False)
        waits = asyncio.create_task(found.room())
        await asyncio.sleep(0)
        assert not waits.done(), "none is silent"
        ones[0].does(response_complete=True, more_body=False, fresh=False)
        await asyncio.wait_for(waits, 20)
        assert ones[0].ended
        assert found.closed == 2

    asyncio.run(run())


def test_half_a_body_makes_room_too_but_is_not_swept() -> None:
    async def run() -> None:
        found, clock = made(most=1)
        uploads = Fake(found)
        uploads.does(response_complete=False, more_body=True)
        clock.now += 1000
        found.sweep()
        assert not uploads.ended, "its reader limits it"
        await found.room()
        assert uploads.ended

    asyncio.run(run())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of descriptors")
def test_there_is_a_reserve_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for soft, most in ((256, 160), (1024, 768), (20_000, 15_000), (64, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        assert most_connections() == most


def test_errors_of_accepting_are_one_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, left = Clock(), iter(range(101))

    async def sleeps(seconds: float) -> None:
        clock.now += 0.05

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def refuse(place: object) -> Any:
            if next(left) == 100:
                raise asyncio.CancelledError
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(loop, "sock_accept", refuse, raising=False)
        monkeypatch.setattr(accepting, "OncePer", lambda: OncePer(clock=clock))
        monkeypatch.setattr(accepting.asyncio, "sleep", sleeps)
        found, _ = made()
        silent = Fake(found)
        with socket.socket() as place, suppress(asyncio.CancelledError):
            await accept(place, found, asyncio.Protocol)
        assert silent.ended, "its descriptor may be what is missing"

    with caplog.at_level(logging.ERROR, "edgedec.server"):
        asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[0] == "cannot accept connections: Too many open files (1 times)"
    assert sum(int(line.rpartition("(")[2].split()[0]) for line in lines) > 60


def test_a_librarys_warnings_are_one_line_a_second() -> None:
    quieter = Quieter()
    records = [logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid", None, None) for _ in range(50)]
    assert sum(bool(quieter.filter(record)) for record in records) == 1
    assert quieter.filter(logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "Invalid", None, None))


def body_of(parts: list[bytes], pause: float) -> Any:
    async def stream() -> AsyncIterator[bytes]:
        for part in parts:
            await asyncio.sleep(pause)
            yield part

    return SimpleNamespace(stream=stream, headers={})


def test_a_body_has_time_as_long_as_it_goes_on() -> None:
    slow = body_of([b"x"] * 12, 0.2)
    assert asyncio.run(bodies.read_body(slow, 100, 1.5)) == b"x" * 12
    with pytest.raises(APIError, match="nothing more of the request's body came") as error:
        asyncio.run(bodies.read_body(body_of([b"x"], 20), 100, 0.1))
    assert error.value.status == 408


def test_slow_headers_and_idle_connections_end(model: edgedec.Model) -> None:
    limits = ConnectionLimits(header=0.5, body=0.5, idle=0.5)
    with serving(model, connections=limits) as (place, _), ExitStack() as stack:
        silent, half, kept, uploads = (stack.enter_context(connected(place, 30)) for _ in range(4))
        half.sendall(b"GET /health HTTP/1.1\r\nHo")
        kept.sendall(request("GET", "/health"))
        assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200")
        head = request("POST", "/v1/completions", {"prompt": "x" * 100})
        uploads.sendall(head[:-10])
        assert uploads.recv(1 << 16).startswith(b"HTTP/1.1 408")
        for end in (silent, half, kept):
            with suppress(ConnectionResetError):
                while end.recv(1 << 16):
                    pass


def test_an_endless_header_ends(model: edgedec.Model) -> None:
    """httptools, which uvicorn takes where it is installed, would read on."""
    pytest.importorskip("httptools")
    with serving(model) as (place, _), connected(place, 30) as end, suppress(ConnectionError):
        end.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        sent = 0
        while sent < 16 << 20:
            end.sendall(bytes(1 << 16).replace(b"\0", b"x"))
            sent += 1 << 16
        pytest.fail("16 MiB of a header were taken")


def test_silent_connections_keep_nobody_out(model: edgedec.Model) -> None:
    with serving(model, connections=ConnectionLimits(most=8)) as (place, _), ExitStack() as stack:
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{place}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            for _ in range(40):
                stack.enter_context(connected(place, 30)).sendall(b"GET")
            assert "ok" in fetch(f"{place}/health")
            assert list(lines)[-2] == "data: [DONE]", "what runs is not silent"


def test_a_broken_upload_is_no_failure_of_the_server(model: edgedec.Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving(model) as (place, server_):
        for _ in range(3):
            with connected(place) as end:
                end.sendall(request("POST", "/v1/completions", {"prompt": "x" * 1000})[:-300])
        wait_for(lambda: server_.metrics.requests["/v1/completions", 400] == 3)
    assert not caplog.records


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of descriptors")
def test_four_hundred_silent_connections_of_few_descriptors(nano: Path, tmp_path: Path) -> None:
    """The kernel holds what is not accepted yet."""
    log = tmp_path / "log"
    with server(str(nano), ["-t", "1"], 256, log) as (place, _), ExitStack() as stack:
        for i in range(400):
            end = stack.enter_context(connected(place, 30))
            with suppress(OSError):
                end.sendall(b"GET /hea"[: i % 2])
        assert "ok" in fetch(f"{place}/health")
        assert len(log.read_text()) < 10_000


def test_one_connection_that_cannot_be_taken_is_the_only_one(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        taken: list[int] = []

        def protocol() -> asyncio.Protocol:
            taken.append(1)
            if len(taken) == 1:
                raise ValueError("of this one")
            return asyncio.Protocol()

        with socket.create_server(("127.0.0.1", 0)) as place:
            accepting_ = asyncio.create_task(accept(place, made()[0], protocol))
            for _ in range(2):
                _, writer = await asyncio.open_connection(*place.getsockname())
                writer.close()
            while len(taken) < 2:
                await asyncio.sleep(0.01)
            assert not accepting_.done()
            accepting_.cancel()
            await asyncio.gather(accepting_, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert len(caplog.records) == 1
