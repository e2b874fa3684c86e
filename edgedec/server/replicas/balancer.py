"""Load balancing: a request goes to the replica with the longest cached prefix of it, unless that one is much busier.

A replica continues a text from the cache of a text with the same prefix (`decoding.sharing`). The router does not query
the replicas; it records the pieces of the requests that it sent to each: chats repeat the conversation with every turn.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Characters of a piece; the most pieces of a text that are compared; the pieces that are stored for each replica.
_PIECE, _MOST, _REMEMBERED = 128, 512, 1 << 16
# The members before a prompt's text in the cache, and the text; in the order of templates.
_SAME = ("model", "adapter", "instructions", "system", "tools")
_TEXT = ("messages", "input", "context", "prompt")


def beginning(body: Mapping[str, Any]) -> str:
    """A request's text in the order of its prompt, so that requests with a common prompt prefix have a common prefix
    here."""
    same = json.dumps([body.get(name) for name in _SAME])
    return same + "".join(json.dumps(body[name]) for name in _TEXT if name in body)


def pieces(text: str) -> Iterator[int]:
    """A hash for each prefix of a text, piece by piece; without the last piece if it is not full."""
    key = 0
    for at in range(0, min(len(text), _PIECE * _MOST) - _PIECE + 1, _PIECE):
        key = hash((key, text[at : at + _PIECE]))
        yield key


class ReadTexts:
    """Prefixes that a replica has read; the least recently used are dropped first."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._keys, self._most = OrderedDict[int, None](), most

    def __len__(self) -> int:
        return len(self._keys)

    def common(self, keys: Iterable[int]) -> int:
        """The number of pieces at a text's beginning that were read."""
        n = 0
        for n, key in enumerate(keys, 1):
            if key not in self._keys:
                return n - 1
        return n

    def add(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        self._keys.clear()


class Load:
    """A replica's load: running texts, and the prefixes that it has read. `last`: the turn in which it was last
    chosen."""

    def __init__(self) -> None:
        self.up, self.running, self.last = False, 0, 0
        self.read, self.chosen, self.matched = ReadTexts(), 0, 0


class Balancer:
    """slack: the most texts that a replica may have above the least busy one and still be chosen for its cached
    prefix."""

    def __init__(self, loads: list[Load], slack: int) -> None:
        self.loads, self._slack, self._turn = loads, max(slack, 1), 0

    def choose(self, keys: list[int], besides: frozenset[int] = frozenset()) -> int | None:
        """The number of the replica for a request, None if none is up; `besides`: excluded replicas."""
        up = [k for k, load in enumerate(self.loads) if load.up and k not in besides]
        if not up:
            return None
        fewest = min(self.loads[k].running for k in up)
        free = [k for k in up if self.loads[k].running < fewest + self._slack]
        common = {k: self.loads[k].read.common(keys) for k in free}
        chosen = min(free, key=lambda k: (-common[k], self.loads[k].running, self.loads[k].last))
        self._take(self.loads[chosen], keys, common[chosen])
        return chosen

    def _take(self, load: Load, keys: list[int], common: int) -> None:
        self._turn += 1
        load.last, load.chosen = self._turn, load.chosen + 1
        load.matched += common > 0
        load.read.add(keys)
