"""Statistics for passes: the inputs of every matrix while the float model reads calibration text, block by block.

A matrix's second moments X^T X are kept in diagonal blocks of at most `WIDEST` inputs, so that those of the widest
matrix take no more memory than those of one block of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.numeric import Array, Weights, expert_name, normed
from edgedec.spec import Mlp, ModelSpec, Moe
from edgedec.spec.branches import may_enter
from edgedec.spec.newer import BRANCH, EARLY_ROUTER, FEEDS, newer

Ids = NDArray[np.int64]
Float64 = NDArray[np.float64]
# A multiple of every block size.
WIDEST = 2048


@dataclass
class Moments:
    """Of the inputs X of a matrix with k of them. diagonal: X^T X of inputs 0..w, w..2w, ...; drift: (F - X)^T X of the
    same, where F is what the float model gives this matrix; magnitude: the sum of |x| [k]; rows: how many."""

    diagonal: list[Float64]
    drift: list[Float64]
    magnitude: Float64
    rows: int = 0

    @classmethod
    def of(cls, k: int) -> Moments:
        widths = [min(WIDEST, k - at) for at in range(0, k, WIDEST)]
        return cls([np.zeros((width, width)) for width in widths], [], np.zeros(k))

    def add(self, x: Array, floats: Array | None = None) -> None:
        """x [n, k]: inputs of n rows; floats: those of the float model."""
        if floats is not None and not self.drift:
            self.drift = [np.zeros_like(part) for part in self.diagonal]
        for i, total in enumerate(self.diagonal):
            columns = slice(i * WIDEST, i * WIDEST + len(total))
            part = np.ascontiguousarray(x[:, columns])
            total += part.T @ part
            if floats is not None:
                self.drift[i] += (floats[:, columns] - part).T @ part
        self.magnitude += np.abs(x).sum(axis=0, dtype=np.float64)
        self.rows += len(x)

    @property
    def squares(self) -> Float64:
        """The sum of x^2 of each input [k]."""
        return np.concatenate([np.diag(part) for part in self.diagonal])


MomentsOf = dict[str, Moments]


@dataclass
class WatchedInputs:
    """An adapter that changes nothing and keeps what matrices get to multiply: those named, or all but experts."""

    names: frozenset[str] | None = None
    digest: str = ""
    seen: dict[str, list[Array]] = field(default_factory=dict)

    def apply(self, name: str, x: Array, y: Array) -> Array:
        wanted = "[" not in name if self.names is None else name in self.names  # experts are named one by one
        if wanted:
            self.seen.setdefault(name, []).append(x)
        return y

    def inputs(self) -> dict[str, Array]:
        """By matrix, in the order of use [n, k]."""
        return {name: np.concatenate(parts) for name, parts in self.seen.items()}


class _Loaded:
    """Tensors read once for all texts; `forget` when a block is done or its weights have changed."""

    def __init__(self, read: Weights, spec: ModelSpec) -> None:
        self._read, self._shapes, self._held = read, spec.tensors(), dict[str, Array]()

    def __call__(self, name: str, start: int, stop: int) -> Array:
        if not name.startswith("blocks."):
            return self._read(name, start, stop)
        if name not in self._held:
            self._held[name] = self._read(name, 0, self._shapes[name][0])
        return self._held[name][start:stop]

    def forget(self) -> None:
        self._held.clear()


class CalibrationRun:
    """A model on its way through the texts, block by block. `read` may give other weights from call to call."""

    def __init__(self, spec: ModelSpec, read: Weights, texts: Sequence[Ids]) -> None:
        if not all(may_enter(spec, b) for b in range(spec.n_blocks)):
            have = [fact for fact in newer(spec) if fact in (BRANCH, EARLY_ROUTER, FEEDS)]
            raise UsageError(
                f"--passes: {spec.architecture} has {' and '.join(have)}; calibration goes from one block to the next"
            )
        if spec.head_layer is not None:
            raise UsageError(f"--passes: {spec.architecture} has a layer before its head, which calibration leaves out")
        self.spec, self._texts, self._shapes = spec, texts, spec.tensors()
        self._weights = _Loaded(read, spec)
        self._runtime = Reference(spec, self._weights)
        self._hidden = [self._runtime.embed(Rows.chain(ids, 0)) for ids in texts]

    def order(self, b: int) -> list[str]:
        """The matrices of block b whose inputs can be watched, in the order in which they are used."""
        watch = WatchedInputs()
        self._one(b, 0, watch, rows=1)
        return [name for name in watch.seen if name in self._shapes]

    def moments(self, b: int, names: frozenset[str] | None = None, floats: CalibrationRun | None = None) -> MomentsOf:
        """Those of block b's matrices (all, or the ones named); the state stays before the block. floats: the float
        model before the same block, for `Moments.drift`."""
        found = dict[str, Moments]()
        self._weights.forget()
        for i in range(len(self._texts)):
            theirs = {} if floats is None else floats.inputs(b, i, names)
            for name, x in self.inputs(b, i, names).items():
                found.setdefault(name, Moments.of(x.shape[1])).add(x, theirs.get(name))
        return found

    def expert_moments(self, b: int, name: str, experts: Sequence[int]) -> dict[int, Moments]:
        """Those of some experts of a stacked matrix, which only the rows that are routed to them count for; of one that
        no row is routed to, none."""
        found = self.moments(b, frozenset(expert_name(name, expert) for expert in experts))
        return {expert: found[expert_name(name, expert)] for expert in experts if expert_name(name, expert) in found}

    def inputs(self, b: int, i: int, names: frozenset[str] | None) -> dict[str, Array]:
        """What matrices of block b get to multiply in text i."""
        watch = WatchedInputs(names)
        self._one(b, i, watch)
        return watch.inputs()

    def advance(self, b: int) -> None:
        """Take the texts through block b."""
        self._weights.forget()
        self._hidden = [self._one(b, i) for i in range(len(self._texts))]
        self._weights.forget()

    def head_moments(self, floats: CalibrationRun | None = None) -> Moments:
        """Of what the head reads, after the last block."""
        found = Moments.of(self.spec.hidden_size)
        for i in range(len(self._texts)):
            found.add(self.normed(i), None if floats is None else floats.normed(i))
        return found

    def normed(self, i: int) -> Array:
        """What the head reads of text i."""
        spec = self.spec
        weight = None if spec.final_norm == "none" else self._weights("final_norm", 0, spec.hidden_size)
        bias = self._weights("final_norm_bias", 0, spec.hidden_size) if spec.final_norm == "layer" else None
        return normed(self._hidden[i], spec.final_norm, weight, bias, spec.norm_eps)

    def logits(self, i: int) -> Array:
        """Of text i, after the last block [n, vocab_size]."""
        return self._runtime.head(self._hidden[i])

    def state(self) -> list[Array]:
        """Where the texts are: hidden states [n, hidden_size] of each."""
        return self._hidden

    def resume(self, hidden: list[Array]) -> None:
        """Go back to a `state`."""
        self._hidden = hidden

    def _one(self, b: int, i: int, watch: WatchedInputs | None = None, rows: int | None = None) -> Array:
        """Text i (its first `rows`) through block b."""
        ids, hidden = self._texts[i][:rows], self._hidden[i]
        cache, chunk, parts = self._runtime.new_cache(len(ids)), self._runtime.capabilities.prefill_chunk, []
        for at in range(0, len(ids), chunk):
            chain, outputs = Rows.chain(ids[at : at + chunk], at), Outputs(logits=False, hidden=(b,))
            call = Call(chain, cache, (b,), hidden[at : at + len(chain)], outputs, watch)
            parts.append(forward_one(self._runtime, call).hidden[b])
            if not isinstance(self.spec.blocks[b], Mlp | Moe):  # these keep nothing
                cache.commit(range(len(chain)))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Statistics:
    """The calibration texts, on which passes run models. texts: of equal length but for the last."""

    texts: tuple[Ids, ...]

    def first(self, tokens: int) -> Statistics:
        """Of the first texts only, with at least so many tokens if there are."""
        ends = np.cumsum([len(ids) for ids in self.texts])
        return Statistics(self.texts[: 1 + int(np.searchsorted(ends, tokens))])

    def run(self, spec: ModelSpec, read: Weights) -> CalibrationRun:
        """The model before its first block."""
        return CalibrationRun(spec, read, self.texts)

    def blocks(self, spec: ModelSpec, read: Weights) -> Iterator[tuple[int, MomentsOf]]:
        """(block, moments of its matrices) for every block of a model that stays as it is."""
        run = self.run(spec, read)
        for b in range(spec.n_blocks):
            yield b, run.moments(b)
            run.advance(b)
