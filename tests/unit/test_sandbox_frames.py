"""Frames between the program and its worker processes: what is sent arrives; what arrives is a frame or refused."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.sandbox import channel

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.dictionaries(st.text(max_size=6), JSON, max_size=4)
FRAMES = st.lists(st.tuples(MESSAGES, st.binary(max_size=5000)), min_size=1, max_size=4)


def child() -> Any:
    """The worker's program as a module, with its own code for the same frames."""
    spec = importlib.util.spec_from_file_location("child", Path(channel.__file__).with_name("child.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHILD = child()


def chunks(raw: bytes, data: st.DataObject) -> Iterator[bytes]:
    while raw:
        n = data.draw(st.integers(1, max(len(raw), 1)))
        yield raw[:n]
        raw = raw[n:]


@settings(max_examples=100, deadline=None)
@given(FRAMES, st.data())
def test_frames_arrive_however_they_are_cut(frames: list[tuple[dict[str, Any], bytes]], data: st.DataObject) -> None:
    """By the worker's packing, through a socket and through pipes."""
    raw = b"".join(CHILD.pack(*frame) for frame in frames)
    parts = list(chunks(raw, data))
    ours, theirs = socket.socketpair()
    found = channel.SocketChannel(ours)
    sender = threading.Thread(target=lambda: [theirs.sendall(part) for part in parts])
    sender.start()
    assert [found.receive(5) for _ in frames] == frames
    sender.join()
    theirs.close()
    with pytest.raises(EOFError):
        found.receive(5)
    found.close()
    source, sink = os.pipe()
    with os.fdopen(sink, "wb") as writer, open(os.devnull, "wb") as nothing, os.fdopen(source, "rb") as reader:
        piped = channel.PipeChannel(nothing, reader)
        for part in parts:
            writer.write(part)
            writer.flush()
        assert [piped.receive(5) for _ in frames] == frames
        writer.close()
        with pytest.raises(EOFError):
            piped.receive(5)


@settings(max_examples=100, deadline=None)
@given(FRAMES, st.data())
def test_the_worker_reads_what_is_packed_here(frames: list[tuple[dict[str, Any], bytes]], data: st.DataObject) -> None:
    parts = chunks(b"".join(channel.packed(*frame) for frame in frames), data)
    left = bytearray()

    def source(n: int) -> bytes:
        if not left:
            left.extend(next(parts))
        found = bytes(left[:n])
        del left[:n]
        return found

    read = CHILD._Stream(source).read
    assert [CHILD.receive(read) for _ in frames] == frames


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), MESSAGES, st.binary(max_size=50), st.data())
def test_what_a_worker_that_was_taken_over_sends_is_a_frame_or_an_error(
    noise: bytes, message: dict[str, Any], blob: bytes, data: st.DataObject
) -> None:
    """Noise, and frames with bytes exchanged: nothing but the errors that the host expects, and no wait."""
    raw = bytearray(data.draw(st.sampled_from([noise, CHILD.pack(message, blob), CHILD.pack(message, blob) + noise])))
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    ours, theirs = socket.socketpair()
    found = channel.SocketChannel(ours)
    theirs.sendall(bytes(raw))
    theirs.close()
    try:
        for _ in range(10):
            values, rest = found.receive(5)
            assert isinstance(values, dict)
            assert isinstance(rest, bytes)
    except (EOFError, ValueError):
        pass
    found.close()


def test_deeply_nested_frames_are_refused() -> None:
    ours, theirs = socket.socketpair()
    found, text = channel.SocketChannel(ours), b"[" * 100_000
    sender = threading.Thread(target=lambda: theirs.sendall(channel._HEAD.pack(len(text), 0) + text))
    sender.start()
    with pytest.raises(ValueError, match="nested too deeply"):
        found.receive(5)
    sender.join()
    found.close()
    theirs.close()


def test_a_frame_beyond_the_limit_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    found = channel.SocketChannel(ours)
    theirs.sendall(channel._HEAD.pack(channel.LARGEST, 1))
    with pytest.raises(EOFError, match="too large"):
        found.receive(5)
    theirs.sendall(json.dumps({}).encode())
    found.close()
    theirs.close()
