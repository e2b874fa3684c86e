"""A runtime without weights, and one with random weights, over models of a few small layers.

Every logit of `FakeRuntime` depends on every token and position that its row can see, read back through the cache and
the mask: a row that lost an ancestor, kept a wrong one or has a wrong position gets other logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import HostCache
from edgedec.cache.recurrent import Recurrent
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Capabilities, Hidden, Logits, Rows, check_calls, head_outputs
from edgedec.spec import KV_FORMATS, Attention, Block, Mlp, ModelSpec, Rope, Ssm

if TYPE_CHECKING:
    from edgedec.runtimes.reference import Reference

_KINDS = ("attention", "mlp", "moe", "ssm")
_SMALL = 101  # what is written to a cache stays below it, so that all formats hold it
_HASH = (1 << 24) - 1  # a float32 holds such an integer exactly
_SHIFTS = np.array([30, 27, 31], np.uint64)
_MIX = np.array(0xBF58476D1CE4E5B9, np.uint64)


def tiny_layer(window: int | None = None, inner_size: int = 24, **attention: Any) -> tuple[Block, ...]:
    """An attention block with a window, and an mlp block."""
    facts = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "scale": 8**-0.5, "window": window} | attention
    return Attention(**facts), Mlp(inner_size)


def tiny_spec(window: int | None = None, n_layers: int = 3, inner_size: int = 24, **changes: Any) -> ModelSpec:
    """A model of a few small layers; `window` goes to the middle one."""
    windows = [window if i == n_layers // 2 else None for i in range(n_layers)]
    spec = ModelSpec(
        architecture="llama",
        vocab_size=13,
        hidden_size=16,
        context_length=64,
        layers=tuple(tiny_layer(window, inner_size) for window in windows),
        ropes=(Rope((1.0, 0.3, 0.1, 0.03)),),
        norm_eps=1e-5,
        tied=False,
    )
    return replace(spec, **changes).check()


class FakeRuntime:
    """A `Runtime` of hashes: the same text gives the same logits, and nothing else does.

    Hidden states are [token, hash, 0, ...]. An attention block writes token, position and the hash so far into the
    cache, reads what the mask shows it, and hashes that; a recurrent block hashes the state of the row's parent.
    `calls` and `rows` count what was run, `forwards` holds the number of calls in each forward. `capabilities` may
    be changed by keyword; a call that goes beyond them is refused.
    """

    name = "fake"

    def __init__(
        self, spec: ModelSpec | None = None, kv: str = "f32", seed: int = 0, spread: float = 6.0, **capabilities: Any
    ) -> None:
        self.spec, self.kv = spec or tiny_spec(), kv
        narrow = any(block.head_dim < 4 for block in self.spec.attention.values())
        if self.spec.vocab_size > _SMALL or narrow or self.spec.hidden_size < 2:
            raise UsageError(f"FakeRuntime: needs a vocabulary up to {_SMALL}, head_dim from 4 and hidden_size from 2")
        declared: dict[str, Any] = {
            "kinds": ("attention", "mlp", "moe", "ssm"),
            "kv_formats": KV_FORMATS,
            "batch_invariant": True,
            "temperatures": True,
            "entropy": True,
        }
        self.capabilities = Capabilities(**declared | capabilities)
        self.calls = self.rows = 0
        self.forwards: list[int] = []
        self._seed, self._spread = seed, spread

    def load(self) -> None:
        """Nothing to open."""

    def release(self) -> None:
        """Nothing to give back."""

    def new_cache(self, capacity: int) -> HostCache:
        return HostCache(self.spec, capacity, self.kv)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        self.forwards.append(len(calls))
        self.calls, self.rows = self.calls + len(calls), self.rows + sum(call.rows.count for call in calls)
        return [self._forward(call) for call in calls]

    def head(self, hidden: Hidden) -> Logits:
        """Each row's hash and the token number, mixed to a number from -spread/2 to spread/2."""
        vocab = self.spec.vocab_size
        x = hidden[:, 1].astype(np.uint64)[:, None] * np.array(vocab, np.uint64) + np.arange(vocab, dtype=np.uint64)
        x += np.array(self._seed, np.uint64)
        for shift in _SHIFTS:  # splitmix64; products wrap
            x = (x ^ (x >> shift)) * _MIX
        unit = (x >> _SHIFTS[0]).astype(np.float64) / 2.0**34
        return ((unit - 0.5) * self._spread).astype(np.float32)

    def _forward(self, call: Call) -> CallResult:
        rows, cache, wanted = call.rows, call.cache, call.outputs
        assert isinstance(cache, HostCache)
        blocks = range(self.spec.n_blocks) if call.blocks is None else call.blocks
        hidden = self._embed(rows) if call.hidden is None else call.hidden.copy()
        states = {-1: hidden.copy()} if -1 in wanted.hidden else {}
        paid: dict[int, NDArray[np.float32]] = {}
        spans = cache.write(blocks, rows)
        for b in blocks:
            attention = self.run_block(b, hidden, call, spans.get(b, (0, 0)))
            if wanted.attention and attention is not None:
                paid[b] = attention
            if b in wanted.hidden:
                states[b] = hidden.copy()
        result = head_outputs(self.head(hidden[wanted.logits_from :]), wanted) if wanted.head else CallResult()
        return replace(result, hidden=states, attention=paid)

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> NDArray[np.float32] | None:
        """Run block b on `hidden` [count, hidden_size], in place: the attention paid, if it is an attention block.
        span: the slots of the computed rows."""
        assert isinstance(call.cache, HostCache)
        salt = b"" if call.adapter is None else call.adapter.digest.encode()
        seen, paid = [b""] * len(hidden), None
        match self.spec.blocks[b]:
            case Attention():
                seen, paid = self._attend(b, hidden, call.rows, call.cache, span)
            case Ssm():
                seen = _recur(b, hidden, call.rows, call.cache)
        for row, data in zip(hidden, seen, strict=True):
            row[1] = crc32(data + salt + bytes([b]), int(row[1])) & _HASH
        return paid

    def _embed(self, rows: Rows) -> Hidden:
        if rows.embeddings is not None:
            return rows.embeddings.astype(np.float32)
        hidden = np.zeros((rows.count, self.spec.hidden_size), np.float32)
        hidden[:, 0] = rows.tokens[rows.first :]
        return hidden

    def _attend(
        self, b: int, hidden: Hidden, rows: Rows, cache: HostCache, span: tuple[int, int]
    ) -> tuple[list[bytes], NDArray[np.float32]]:
        """What each computed row sees in block b, as bytes, and the attention paid: the same to each slot it sees."""
        block, (keys, values), slots = self.spec.attention[b], cache.data(b), slice(*span)
        keys[:, slots, 0], keys[:, slots, 1] = hidden[:, 0], hidden[:, 1] % _SMALL
        values[:, slots, 0] = rows.positions[rows.first :] % _SMALL
        seen = np.stack([keys[..., 0], keys[..., 1], values[..., 0]], axis=-1)[:, : span[1]].astype(np.uint8)
        mask = rows.mask(cache.positions(b), block.window, block.sinks)
        paid = (mask / mask.sum(axis=1, keepdims=True)).sum(axis=0) * (block.n_heads // block.n_kv_heads)
        found = [np.ascontiguousarray(seen[:, row]).tobytes() for row in mask]
        return found, np.tile(paid.astype(np.float32), (block.n_kv_heads, 1))


def _recur(b: int, hidden: Hidden, rows: Rows, cache: HostCache) -> list[bytes]:
    """The state that each computed row of block b starts from, as bytes; the state after it is a hash of both."""
    kept, seen, states = cache.state(b), list[bytes](), list[Recurrent]()
    for i, row in enumerate(hidden):
        parent = int(rows.parents[rows.first + i]) - rows.first
        before = states[parent] if parent >= 0 else kept.before(rows, rows.first + i)
        seen.append(before.state.tobytes())
        value = crc32(seen[-1] + row[:2].tobytes()) & _HASH
        states.append(Recurrent(before.conv, np.full_like(before.state, value)))
    kept.write(rows, [lambda state=state: state for state in states])  # type: ignore[misc]
    return seen


def random_reference(spec: ModelSpec | None = None, seed: int = 0, kv: str = "f32") -> Reference:
    """The numpy runtime on random float weights: real arithmetic without a bundle (`kv`: f32 or f16)."""
    from edgedec.runtimes.reference import Reference

    spec = spec or tiny_spec()
    rng = np.random.default_rng(seed)
    weights = {name: _random_weight(rng, name, shape) for name, shape in spec.tensors().items()}
    return Reference(spec, lambda name, start, stop: weights[name][start:stop], kv)


def _random_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Matrices that keep a row's size, norms around one, negative decays of a recurrent block."""
    values = rng.standard_normal(shape, np.float32)
    if name.endswith(".a"):
        return -np.exp(values)
    return values * np.float32(2 / shape[-1] ** 0.5) if len(shape) == 2 else 1 + np.float32(0.2) * values
