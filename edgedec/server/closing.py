"""JSON that was cut off, closed: for answers that hold arguments as objects, not as text."""

from __future__ import annotations

import json
from typing import Any

_CLOSERS = {"{": "}", "[": "]"}


def closed(text: str) -> dict[str, Any]:
    """The object of a text, which may be cut anywhere: with the members and items that are complete, and the beginning
    of a string or number that was cut.

    >>> closed('{"a": [1, {"b": "two, thr'), closed('{"a": 1, "b'), closed('{"a": tr'), closed("")
    ({'a': [1, {'b': 'two, thr'}]}, {'a': 1}, {}, {})
    """
    quoted, escaped = False, False
    ends: list[str] = []
    # A place where the text may be cut, and what closes it there.
    safe = "", "{}"
    for at, sign in enumerate(text):
        if quoted:
            quoted = escaped or sign != '"'
            escaped = not escaped and sign == "\\"
        elif sign in _CLOSERS:
            ends.append(_CLOSERS[sign])
            safe = text[: at + 1], "".join(reversed(ends))
        elif sign == ",":
            safe = text[:at], "".join(reversed(ends))
        elif sign in "]}":
            if not ends:
                return {}
            ends.pop()
        else:
            quoted = sign == '"'
    whole = text + ('"' if quoted else "") + "".join(reversed(ends))
    for candidate in (whole, "".join(safe)):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}
