"""A runtime without weights, drafters that are right or wild, a simple constraint.

`FakeRuntime` is a decoder whose every logit depends on every token and position the row can see,
read back through the cache and the mask. A row that lost an ancestor, kept a wrong one or stands
at a wrong position says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.decoding.context import Context
from edgedec.drafters import Draft, Drafter, BaseDrafter, StepResult
from edgedec.errors import UsageError
from edgedec.runtime import Begun, Call, Hidden, Logits, Want
from edgedec.runtime.rows import Rows
from edgedec.spec import Layer, ModelSpec, Rope

if TYPE_CHECKING:
    from edgedec.runtimes.reference import Reference

_SMALL = 101  # what is written to a cache stays below it, so that all formats hold it
_HASH = (1 << 24) - 1  # a float32 holds such an integer exactly
_SHIFTS = np.array([30, 27, 31], np.uint64)
_STIR = np.array(0xBF58476D1CE4E5B9, np.uint64)


def tiny_spec(window: int | None = None, **changes: Any) -> ModelSpec:
    """A model of three small layers; `window` goes to the middle one."""
    spec = ModelSpec(
        architecture="llama",
        vocab_size=13,
        hidden_size=16,
        intermediate_size=24,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        context_length=64,
        layers=(Layer(), Layer(window=window), Layer()),
        ropes=(Rope((1.0, 0.3, 0.1, 0.03)),),
        norm_eps=1e-5,
        attn_scale=8**-0.5,
        tied=False,
    )
    return replace(spec, **changes).check()


class FakeRuntime:
    """A `Runtime` of hashes: the same text gives the same logits, and nothing else does.

    Hidden states are [token, hash, 0, ...]. The attention of a layer writes token, position and the
    hash so far into the cache, reads what the mask lets it see, and hashes that.
    `calls` and `rows` count what `run` was asked for.
    """

    name = "fake"
    invariant = True

    def __init__(self, spec: ModelSpec | None = None, kv: str = "f32", seed: int = 0, spread: float = 6.0) -> None:
        self.spec, self.kv = spec or tiny_spec(), kv
        if self.spec.vocab_size > _SMALL or self.spec.head_dim < 4 or self.spec.hidden_size < 2:
            raise UsageError(f"FakeRuntime: needs a vocabulary up to {_SMALL}, head_dim from 4 and hidden_size from 2")
        self.calls = self.rows = 0
        self._seed, self._spread = seed, spread

    def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> None:
        """Nothing quicker than embed, run and head."""

    def call_all(self, calls: Sequence[Call]) -> None:
        """Nothing quicker than one after the other."""

    def new_cache(self, capacity: int) -> Cache:
        return Cache(self.spec, capacity, self.kv)

    def embed(self, tokens: NDArray[np.int64]) -> Hidden:
        hidden = np.zeros((len(tokens), self.spec.hidden_size), np.float32)
        hidden[:, 0] = tokens
        return hidden

    def run(self, hidden: Hidden, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Hidden:
        if len(hidden) != rows.count:
            raise UsageError(f"{len(hidden)} hidden states for {rows.count} rows")
        self.calls, self.rows = self.calls + 1, self.rows + rows.count
        cache.reserve(len(rows))
        hidden = hidden.copy()
        for block in blocks:
            layer, is_mlp = divmod(block, 2)
            heard = [b""] * rows.count if is_mlp else self._attend(layer, hidden, rows, cache)
            for row, seen in zip(hidden, heard, strict=True):
                row[1] = crc32(seen + bytes([block]), int(row[1])) & _HASH
        return hidden

    def head(self, hidden: Hidden) -> Logits:
        """Each row's hash and the token number, stirred into a number from -spread/2 to spread/2."""
        vocab = self.spec.vocab_size
        x = hidden[:, 1].astype(np.uint64)[:, None] * np.array(vocab, np.uint64) + np.arange(vocab, dtype=np.uint64)
        x += np.array(self._seed, np.uint64)
        for shift in _SHIFTS:  # splitmix64; products wrap
            x = (x ^ (x >> shift)) * _STIR
        unit = (x >> _SHIFTS[0]).astype(np.float64) / 2.0**34
        return ((unit - 0.5) * self._spread).astype(np.float32)

    def _attend(self, layer: int, hidden: Hidden, rows: Rows, cache: Cache) -> list[bytes]:
        """What each computed row sees in this layer, as bytes."""
        slots = slice(cache.length + rows.first, cache.length + len(rows))
        keys, values = cache.keys(layer), cache.values(layer)
        keys[:, slots, 0], keys[:, slots, 1] = hidden[:, 0], hidden[:, 1] % _SMALL
        values[:, slots, 0] = rows.positions[rows.first :] % _SMALL
        seen = np.stack([keys[..., 0], keys[..., 1], values[..., 0]], axis=-1)[:, : slots.stop].astype(np.uint8)
        mask = rows.mask(cache.length, self.spec.layers[layer].window)
        return [np.ascontiguousarray(seen[:, row]).tobytes() for row in mask]


def random_reference(spec: ModelSpec | None = None, seed: int = 0, kv: str = "f32") -> Reference:
    """The numpy runtime on random float weights: real arithmetic without a bundle (`kv`: f32 or f16)."""
    from edgedec.runtimes.reference import Reference

    spec = spec or tiny_spec()
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.standard_normal(shape, np.float32) * np.float32(2 / shape[-1] ** 0.5)
        if len(shape) == 2
        else 1 + np.float32(0.2) * rng.standard_normal(shape, np.float32)
        for name, shape in spec.tensors().items()
    }
    return Reference(spec, lambda name, start, stop: weights[name][start:stop], kv)


class PerfectDrafter(BaseDrafter):
    """Knows the whole text, prompt included, and drafts what comes next as far as it may.

    With `decoys`, every right token stands behind that many wrong siblings, so that accepted rows
    are not neighbours and have to be moved in the cache.
    """

    def __init__(self, tokens: Sequence[int], decoys: int = 0, vocab: int = 13) -> None:
        self.tokens, self.decoys, self.vocab = list(tokens), decoys, vocab
        self.observed: list[int] = []
        self.resets = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        ids = context.ids
        coming = self.tokens[len(ids) :] if list(ids) == self.tokens[: len(ids)] else []
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in coming[: nodes // (self.decoys + 1)]:
            tokens += [(token + 1 + i) % self.vocab for i in range(self.decoys)] + [token]
            parents += [parent] * (self.decoys + 1)
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))

    def observe(self, step: StepResult) -> None:
        self.observed.append(len(seen.path) - 1)

    def reset(self) -> None:
        self.resets += 1


class RandomDrafter(BaseDrafter):
    """Random trees of up to `nodes` tokens, twin siblings included."""

    def __init__(self, seed: int, vocab: int = 13) -> None:
        self._rng, self.vocab = np.random.default_rng(seed), vocab

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        n = int(self._rng.integers(0, nodes + 1))
        tokens = self._rng.integers(0, self.vocab, n).tolist()
        return Draft(tuple(tokens), tuple(int(self._rng.integers(-1, i)) for i in range(n)))


Followers = Callable[[int], Collection[int]] | Mapping[int, Collection[int]]


class SetConstraint:
    """Says which tokens may follow which: a function or table last token -> allowed; -1 is the beginning.

    `accepted` holds what was generated, `asked` the paths that `mask` was asked about.
    """

    done = False

    def __init__(self, followers: Followers, vocab: int = 13) -> None:
        self._followers = followers.__getitem__ if isinstance(followers, Mapping) else followers
        self._vocab = vocab
        self.accepted: list[int] = []
        self.asked: list[list[int]] = []

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        self.asked.append(list(path))
        last = [-1, *self.accepted, *path][-1]
        allowed = np.zeros(self._vocab, bool)
        allowed[list(self._followers(last))] = True
        return allowed

    def accept(self, token: int) -> None:
        self.accepted.append(int(token))

    def forced(self) -> Sequence[int]:
        return ()

    def reset(self) -> None:
        self.accepted.clear()

    def fork(self) -> SetConstraint:
        twin = SetConstraint(self._followers, self._vocab)
        twin.accepted = list(self.accepted)
        return twin


class Limited(BaseDrafter):
    """Another drafter, held to so many tokens."""

    def __init__(self, drafter: Drafter, nodes: int) -> None:
        self.drafter, self.nodes, self.wants = drafter, nodes, drafter.wants

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return self.drafter.propose(context, min(nodes, self.nodes), min_path_prob)

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(seen)

    def reset(self) -> None:
        self.drafter.reset()
