"""What a language server writes, as it is read."""

from __future__ import annotations

from io import BytesIO
from queue import SimpleQueue
from typing import Any

import pytest

from edgedec.constraints.automata.language_server import _length, _name_of, _read


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"Content-Length: 12\r\n\r\n", 12),
        (b"content-length: 12\r\nContent-Type: x\r\n\r\n", 12),
        (b"Content-Type: x\r\nContent-Length:7\n\n", 7),
        (b"Content-Length: 16777216\r\n\r\n", 16_777_216),
        (b"Content-Length: 16777217\r\n\r\n", 0),
        (b"hello\r\nContent-Length: 12\r\n\r\n", 0),
        (b"Content-Length: 12\r\n", 0),
        (b"", 0),
        (b"X: " + b"a" * 1100 + b"\r\nContent-Length: 12\r\n\r\n", 0),
        (b"X: " + b"a" * 900 + b"\r\nContent-Length: 12\r\n\r\n", 12),
    ],
)
def test_the_length_of_a_message(header: bytes, length: int) -> None:
    assert _length(BytesIO(header)) == length


def test_messages_until_one_is_none() -> None:
    texts = [b'{"a": 1}', b"[2]", b'{"b": 3}', b"{", b'{"c": 4}']
    stream = BytesIO(b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(text), text) for text in texts))
    found = SimpleQueue[Any]()
    _read(stream, found)  # type: ignore[arg-type]
    assert [found.get() for _ in range(3)] == [{"a": 1}, {"b": 3}, None]
    assert found.empty()


def test_the_name_of_a_completion() -> None:
    items = [{"insertText": "name(x)", "label": "other"}, {"insertText": "(", "label": "other()"}, {"label": "9a"}, {}]
    assert [_name_of(item) for item in items] == ["name", "other", "", ""]
