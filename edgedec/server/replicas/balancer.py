"""Which replica a request goes to: the one that has read most of its beginning, unless that one has much more to do.

A replica continues a text from the cache of one that began alike (`decoding.sharing`). What each has read is not asked
for but remembered, by pieces of the request's own text: chats send what was said again with every turn.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Letters of a piece; pieces of a text that are looked at; pieces that are remembered of each replica.
_PIECE, _MOST, _REMEMBERED = 128, 512, 1 << 16
# What comes before the text of a prompt in its cache, and the text; in the order in which templates write it.
_SAME = ("model", "adapter", "instructions", "system", "tools")
_TEXT = ("messages", "input", "context", "prompt")


def beginning(body: Mapping[str, Any]) -> str:
    """The text of a request that its prompt is made of, so that requests whose prompts begin alike begin alike."""
    same = json.dumps([body.get(name) for name in _SAME])
    return same + "".join(json.dumps(body[name]) for name in _TEXT if name in body)


def pieces(text: str) -> Iterator[int]:
    """A number for each beginning of a text, piece by piece; a last piece that is not full has none."""
    key = 0
    for at in range(0, min(len(text), _PIECE * _MOST) - _PIECE + 1, _PIECE):
        key = hash((key, text[at : at + _PIECE]))
        yield key


class ReadTexts:
    """Beginnings that a replica has read, those used least recently forgotten first."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._keys, self._most = OrderedDict[int, None](), most

    def __len__(self) -> int:
        return len(self._keys)

    def common(self, keys: Iterable[int]) -> int:
        """Pieces of a text, from its beginning, that were read."""
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
    """What a replica has to do: texts under way, and what it has read. `last`: the turn in which it was chosen."""

    def __init__(self) -> None:
        self.up, self.running, self.last = False, 0, 0
        self.read, self.chosen, self.matched = ReadTexts(), 0, 0


class Balancer:
    """slack: so many more texts than the replica with the fewest one may have and still get what it has read."""

    def __init__(self, loads: list[Load], slack: int) -> None:
        self.loads, self._slack, self._turn = loads, max(slack, 1), 0

    def choose(self, keys: list[int], besides: frozenset[int] = frozenset()) -> int | None:
        """The number of a replica that is up, None if none is; `besides`: not these."""
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
