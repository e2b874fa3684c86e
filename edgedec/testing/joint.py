"""A fake runtime of a small joint distribution: a row's logits are the logs of the masked conditionals, exactly.

Every claim about the tokens that diffusion decoding draws can be counted with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.host import HostCache
from edgedec.runtime import Call, CallResult, Capabilities, check_calls, head_outputs
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

Texts = Mapping[tuple[int, ...], float]


def joint_spec(vocab: int) -> ModelSpec:
    """A layer whose cache keeps a token and its position."""
    layer = Attention(n_heads=1, n_kv_heads=1, head_dim=4, scale=0.5), Mlp(8)
    return ModelSpec("llama", vocab, 8, 512, (layer,), 1e-5, False, (Rope((1.0, 0.1)),))


class JointRuntime:
    """texts: the probability of each text that may stand at positions `start` to `start` + its length. The conditional
    of a position is given everything that a row sees there but masks; what no text allows has all tokens alike. shift:
    a row predicts the position after its own. `calls`, `rows`: what ran."""

    name = "joint"

    def __init__(
        self,
        texts: Texts,
        vocab: int,
        mask: int,
        start: int = 1,
        shift: bool = False,
        **capabilities: object,
    ) -> None:
        self.spec, self.mask, self._start, self._shift = joint_spec(vocab), mask, start, int(shift)
        self._texts = np.array(list(texts), np.int64)
        self._p = np.array(list(texts.values()), np.float64)
        declared: dict[str, object] = {
            "kinds": ("attention", "mlp"),
            "kv_formats": ("f32",),
            "batch_invariant": True,
            "entropy": True,
        }
        self.capabilities = Capabilities(**declared | capabilities)  # type: ignore[arg-type]
        self.calls = self.rows = 0

    def load(self) -> None:
        """Nothing to open."""

    def release(self) -> None:
        """Nothing to give back."""

    def new_cache(self, capacity: int) -> HostCache:
        return HostCache(self.spec, capacity, "f32")

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        self.calls, self.rows = self.calls + len(calls), self.rows + sum(call.rows.count for call in calls)
        return [self._forward(call) for call in calls]

    def _forward(self, call: Call) -> CallResult:
        rows, cache, wanted = call.rows, call.cache, call.outputs
        assert isinstance(cache, HostCache)
        span = cache.write(range(2), rows)[0]
        keys, values = cache.data(0)
        keys[:, slice(*span), 0], values[:, slice(*span), 0] = rows.tokens[rows.first :], rows.positions[rows.first :]
        tokens, places = keys[0, : span[1], 0].astype(np.int64), values[0, : span[1], 0].astype(np.int64)
        sees = rows.mask(cache.positions(0))
        if not wanted.head:
            return CallResult()
        logits = np.stack(
            [
                self._conditional(int(position) + self._shift, tokens[seen], places[seen])
                for position, seen in zip(rows.positions[rows.first :], sees, strict=True)
            ]
        )
        return head_outputs(logits[wanted.logits_from :], wanted)

    def _conditional(self, position: int, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float32]:
        """The logits [vocab] of a position, given tokens at places."""
        vocab, n, at = self.spec.vocab_size, self._texts.shape[1], position - self._start
        fits = np.ones(len(self._p), bool)
        for token, place in zip(tokens.tolist(), (places - self._start).tolist(), strict=True):
            if token != self.mask and 0 <= place < n and place != at:
                fits &= self._texts[:, place] == token
        p = np.zeros(vocab)
        if 0 <= at < n:
            np.add.at(p, self._texts[fits, at], self._p[fits])
        if p.sum() == 0:
            p[:] = 1
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(p / p.sum()), -60).astype(np.float32)


def random_joint(seed: int, length: int, tokens: int, count: int, sharp: float = 3.0) -> dict[tuple[int, ...], float]:
    """`count` random texts of `length` tokens below `tokens`, with random probabilities."""
    rng = np.random.default_rng(seed)
    texts = {tuple(rng.integers(0, tokens, length).tolist()): float(np.exp(sharp * rng.random())) for _ in range(count)}
    total = sum(texts.values())
    return {text: p / total for text, p in texts.items()}
