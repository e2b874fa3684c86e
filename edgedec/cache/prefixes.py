"""A radix index of cached texts: a text with the same prefix as another one continues from its pages.

    insert "the cat sat", "the cat ran", "a dog":   the cat ─┬─ sat
                                                             └─ ran
                                                    a dog
    match "the cat ran off" -> the cache of "the cat ran", and how many tokens the two share

Only leaves hold caches: a text that is a prefix of another one is contained in its pages. Texts of different adapters
are separate, as their keys and values differ. When room is needed the least recently used leaf is evicted first (vLLM,
SGLang's RadixAttention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar
from weakref import ReferenceType, ref

# The cache of a text: in memory, or in a file.
T = TypeVar("T")
_STRIDE = 64


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two texts."""
    longest, at = min(len(a), len(b)), 0
    if not longest or a[0] != b[0]:
        return 0
    while at < longest and list(a[at : at + _STRIDE]) == list(b[at : at + _STRIDE]):
        at += _STRIDE
    pairs = zip(a[at : at + _STRIDE], b[at : at + _STRIDE], strict=False)
    return next((at + i for i, (x, y) in enumerate(pairs) if x != y), longest)


class PrefixMatch(NamedTuple, Generic[T]):
    """A cache whose first `n` tokens are those of the text that was looked up; None if there is none."""

    cache: T | None = None
    n: int = 0


@dataclass(eq=False)
class _Node(Generic[T]):
    """The tokens on the way here from its parent; a leaf has a cache that holds all tokens down to it."""

    tokens: list[int]
    above: ReferenceType[_Node[T]] | None = None  # weak: an index that is dropped frees its pages at once
    children: dict[int, _Node[T]] = field(default_factory=dict)
    cache: T | None = None
    used: int = 0

    @property
    def parent(self) -> _Node[T] | None:
        return self.above() if self.above is not None else None

    def leaves(self) -> Iterator[_Node[T]]:
        stack = [self]
        while stack:
            node = stack.pop()
            if node.cache is not None:
                yield node
            stack += node.children.values()


class PrefixIndex(Generic[T]):
    """Not for two threads at once; `SharedPrefixes` is. `key`: the adapter's digest, empty for none."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node[T]] = {}
        self._clock = self._held = 0

    def __len__(self) -> int:
        """The number of caches that are held."""
        return self._held

    def caches(self) -> Iterator[T]:
        """The caches that are held."""
        for root in self._roots.values():
            yield from (leaf.cache for leaf in root.leaves() if leaf.cache is not None)

    def insert(self, ids: Sequence[int], cache: T, key: str = "") -> None:
        """Hold a cache of the text `ids`, all of which it has committed. It must not change from now on: give a
        fork."""
        if not ids:
            return
        node, at = self._walk(ids, key, split=True)
        if at == len(ids) and (node.children or node.cache is not None):
            self._touch(next(node.leaves()))
            return
        if node.cache is not None:
            node.tokens += ids[at:]  # its text is a beginning of the new one
        elif at < len(ids):
            below = node.children[ids[at]] = _Node(list(ids[at:]), ref(node))
            node = below
        self._held += node.cache is None
        node.cache = cache
        self._touch(node)

    def match(self, ids: Sequence[int], key: str = "") -> PrefixMatch[T]:
        """The held cache with the longest prefix of `ids`."""
        if key not in self._roots:
            return PrefixMatch()
        node, depth = self._walk(ids, key, split=False)
        leaf = next(node.leaves(), None)
        if leaf is None or not depth:
            return PrefixMatch()
        self._touch(leaf)
        return PrefixMatch(leaf.cache, depth)

    def evict(self, enough: Callable[[], bool], leaving: Callable[[list[int], T, str], None] | None = None) -> None:
        """Evict caches, the least recently used first, until `enough()` or none is left. leaving: called with each
        evicted cache, its text and its key."""
        if enough():
            return
        leaves = [(leaf, key) for key, root in self._roots.items() for leaf in root.leaves()]
        for leaf, key in sorted(leaves, key=lambda item: item[0].used):
            if enough():
                return
            if leaving is not None and leaf.cache is not None:
                leaving(self._text(leaf), leaf.cache, key)
            self._remove(leaf)

    def _text(self, leaf: _Node[T]) -> list[int]:
        node: _Node[T] | None = leaf
        found = list[list[int]]()
        while node is not None:
            found.append(node.tokens)
            node = node.parent
        return [token for tokens in reversed(found) for token in tokens]

    def clear(self) -> None:
        self._roots.clear()
        self._held = 0

    def _touch(self, leaf: _Node[T]) -> None:
        self._clock += 1
        leaf.used = self._clock

    def _walk(self, ids: Sequence[int], key: str, split: bool) -> tuple[_Node[T], int]:
        """The node below which all texts begin with ids[:n], and n. `split`: create a node if the match ends inside an
        edge."""
        node, at = self._roots.setdefault(key, _Node([])), 0
        while at < len(ids) and (child := node.children.get(ids[at])) is not None:
            same = common(child.tokens, ids[at : at + len(child.tokens)])
            at += same
            if same < len(child.tokens):
                return (self._split(child, same) if split else child), at
            node = child
        return node, at

    def _split(self, child: _Node[T], n: int) -> _Node[T]:
        """A node after the first `n` tokens of an edge."""
        assert child.parent is not None
        middle = _Node(child.tokens[:n], child.above)
        child.parent.children[child.tokens[0]] = middle
        child.tokens, child.above = child.tokens[n:], ref(middle)
        middle.children[child.tokens[0]] = child
        return middle

    def _remove(self, node: _Node[T]) -> None:
        """Remove a leaf, and nodes that have no leaves any more."""
        node.cache = None
        self._held -= 1
        while (parent := node.parent) is not None and not node.children and node.cache is None:
            del parent.children[node.tokens[0]]
            node = parent
