"""What ends with an error keeps no cache, process or session until the next garbage collection."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest

import edgedec

for package in ("starlette", "uvicorn", "llguidance"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
from serving import serving, wait_for  # noqa: E402

from edgedec.constraints.vocabulary import vocabulary  # noqa: E402
from edgedec.decoding.merging import _Part  # noqa: E402
from edgedec.decoding.messages import DecodeLoop, Token  # noqa: E402
from edgedec.errors import UsageError, without_frames  # noqa: E402
from edgedec.sandbox.worker import GuestWorker  # noqa: E402
from hostile.soak import children  # noqa: E402
from hostile.watch import PROMPT, connected, request  # noqa: E402

LONG = {"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 40}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_text_whose_worker_is_killed_leaves_no_pages(model: edgedec.Model, uncollected: None) -> None:
    with serving(model, slots=2) as (place, server):
        for prompt in range(3):
            body = {"prompt": f"{PROMPT} {prompt}", "max_tokens": 300, "json_schema": LONG, "stream": True}
            with connected(place) as end:
                end.sendall(request("POST", "/v1/completions", body, "Connection: close\r\n"))
                found = b""
                while b"data: {" not in found:
                    found += end.recv(1 << 16)
                for worker in [pid for host in children(os.getpid()) for pid in children(host)]:
                    os.kill(worker, signal.SIGKILL)
                while piece := end.recv(1 << 16):
                    found += piece
            assert b"too complex to follow further" in found, found[-300:]
        batch, slots = server.engine._batch, model.runtime.capabilities.page_slots
        wait_for(lambda: server.engine.idle and not batch.running)
        assert len(batch.prefixes) > 0  # what was read stays, for texts that begin alike
        attending = sum(block.kind == "attention" for block in model.spec.blocks)
        assert model.runtime.pages == attending * batch.held() // slots


def test_a_refused_grammar_leaves_no_process(model: edgedec.Model, uncollected: None) -> None:
    grammars = vocabulary(model).grammars
    before = count(GuestWorker)
    for name in "ab":
        with pytest.raises(UsageError, match="json_schema"):
            grammars.matcher("json_schema", f"{name}: not a schema", {})
    assert count(GuestWorker) == before


def test_a_matcher_that_waits_is_freed_with_its_group(model: edgedec.Model, uncollected: None) -> None:
    group = vocabulary(model).matchers("regex")
    matcher = group.compiled("regex", "a+", {})
    matcher.hand_on([0])
    assert matcher.waits
    found = ref(group)
    del group, matcher
    assert found() is None


def test_a_branch_that_fails_is_freed() -> None:
    def refused() -> DecodeLoop:
        yield Token(1)
        raise UsageError("refused")

    part = _Part(0, refused(), lambda number, token: True, lambda number: None)
    part.advance(None)
    assert str(part.error) == "refused"
    found = ref(part)
    del part
    assert found() is None


def test_frames_of_causes_go_too() -> None:
    def short() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise UsageError("short") from None

    with pytest.raises(UsageError) as caught:
        short()
    error = caught.value
    assert error.__traceback__ is not None
    assert error.__context__ is not None
    assert without_frames(error) is error
    assert error.__traceback__ is error.__context__.__traceback__ is None
