"""Fewer key and value heads than a checkpoint has, by low rank: `export --kv-heads N`.

After Effectively Compress KV Heads for LLM: the best combination of a group's heads is computed from the caches of
calibration text and folded into the weights. The result is an ordinary model with grouped queries. Rests on the
abstract and on summaries by others; how heads are grouped, and how blocks share a budget, is our own.

* Values: of the group's v_1 ... v_t (t * d numbers) the d combinations c that keep most of what reaches the hidden
  state; W_v becomes that of c, W_o of each query head what brings its v back from c.
* Keys rotate with the position, pair by pair, so only pairs with the same rotation may be combined. Pair j of the
  group's heads is t complex numbers, and any complex combination of them rotates as they do. So each pair keeps the
  one combination that explains most (rank one of t), weighted by the queries' mean square; W_q is multiplied by its
  conjugate. Dims without rotation are combined as values are.

Tokens are weighted by the attention paid to them: the first one, an attention sink, more than all others. Both
are exact where the heads of a group already depend on each other. Which heads make a group is chosen by what is left of
their keys and values, the best first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.export.passes._routing import with_blocks
from edgedec.spec import Attention, ModelSpec
from edgedec.spec.newer import CLIP, DIFFERENTIAL, EARLY_ROUTER, GATES, K_IS_V, SINK_LOGIT, V_NORM, newer

Array = NDArray[np.float64]
Read = Callable[[str, int, int], NDArray[np.float32]]
# Of each attention block, or a share of all.
Heads = int | float
# So many ways to make groups are tried; beyond that neighbours are grouped.
_TRIES = 2000


@dataclass(frozen=True)
class Folding:
    """What becomes of an attention block. groups: the old kv heads of each new one; keys, values: [new heads, t * d, d]
    the combination c = x @ keys of the old heads' x; queries: [old kv heads, d, d] what a query is multiplied by;
    outputs: [old kv heads, d, d] what brings a value back, v = c @ outputs."""

    groups: tuple[tuple[int, ...], ...]
    keys: Array
    queries: Array
    values: Array
    outputs: Array


def check_heads(spec: ModelSpec, heads: Heads) -> None:
    """UsageError where a model cannot have so many key and value heads in each attention block."""
    if not spec.attention:
        raise UsageError("--kv-heads: the model has no attention")
    refused = (CLIP, DIFFERENTIAL, EARLY_ROUTER, GATES, K_IS_V, SINK_LOGIT, V_NORM)
    others = [fact for fact in newer(spec) if fact in refused]
    others += ["latent attention"] if "latent" in spec.kinds else []
    others += ["a pre-router"] if "pre_router" in spec.kinds else []
    others += ["blocks that read the slots of others"] if spec.shared else []
    if others:
        raise UsageError(f"--kv-heads: the model has {', '.join(others)}, of which no heads are combined")
    if isinstance(heads, float) and not 0 < heads < 1:
        raise UsageError(f"--kv-heads {heads:.0%}: must be more than 0% and less than 100%")
    for b, block in spec.attention.items():
        if isinstance(heads, int) and (heads >= block.n_kv_heads or block.n_kv_heads % heads):
            raise UsageError(
                f"--kv-heads {heads}: block {b} has {block.n_kv_heads} key and value heads; choose a divisor of them"
            )
        if block.qk_norm != "none":
            raise UsageError(f"--kv-heads: block {b} norms its keys, and no combination of heads passes a norm")
    if isinstance(heads, float) and budget(spec, heads) < len(spec.attention):
        least = len(spec.attention) / sum(block.n_kv_heads for block in spec.attention.values())
        raise UsageError(f"--kv-heads {heads:.0%}: each attention block needs one head; give {least:.0%} or more")


def budget(spec: ModelSpec, share: float) -> int:
    """How many heads of the attention blocks together a share of them is."""
    return int(share * sum(block.n_kv_heads for block in spec.attention.values()) + 1e-6)


def smaller(spec: ModelSpec, heads: Mapping[int, int]) -> ModelSpec:
    """The model with so many key and value heads in these attention blocks."""
    changed = {b: replace(spec.attention[b], n_kv_heads=n) for b, n in heads.items()}
    return with_blocks(spec, changed)


def fold(
    spec: ModelSpec, b: int, heads: int, caches: NDArray[np.float32], queries: NDArray[np.float32], output: Array
) -> Folding:
    """How block b gets `heads` key and value heads. caches: its keys and values [2, n_kv_heads, n, d] of a text, keys
    as they are turned; queries [n_heads, n, d]; output [hidden, n_heads * d]: W_o."""
    block, d = spec.attention[b], spec.attention[b].head_dim
    keys, values = caches.astype(np.float64)
    pairs = 0 if block.rope is None else len(spec.ropes[block.rope].inv_freq)
    looks, metrics = _looks(block, queries), _metrics(block, output)
    groups = _grouped(block, heads, keys, values, looks, metrics, pairs)
    folded = Folding(
        groups,
        np.zeros((heads, block.n_kv_heads // heads * d, d)),
        np.zeros((block.n_kv_heads, d, d)),
        np.zeros((heads, block.n_kv_heads // heads * d, d)),
        np.zeros((block.n_kv_heads, d, d)),
    )
    for g, group in enumerate(groups):
        members = list(group)
        down, up, _ = _keys(keys[members], looks[members], pairs)
        folded.keys[g], folded.queries[members] = down, up.transpose(0, 2, 1)
        down, up, _ = _low_rank(values[members], metrics[members])
        folded.values[g], folded.outputs[members] = down, up
    return folded


def mean_pooling(block: Attention, heads: int) -> Folding:
    """What grouped-query checkpoints begin with: the mean of neighbouring heads."""
    d, t = block.head_dim, block.n_kv_heads // heads
    groups = tuple(tuple(range(g * t, (g + 1) * t)) for g in range(heads))
    mean, same = np.tile(np.eye(d) / t, (heads, t, 1)), np.tile(np.eye(d), (block.n_kv_heads, 1, 1))
    return Folding(groups, mean, same, mean, same)


def fold_qkv(block: Attention, folding: Folding, qkv: Array) -> Array:
    """qkv [(n_heads + 2 n_kv_heads) * d, k], a matrix or a bias with k 1 -> of the smaller block."""
    d, share = block.head_dim, block.n_heads // block.n_kv_heads
    q, k, v = np.split(qkv, [block.q_dim, block.q_dim + block.kv_dim])
    q, k, v = (part.reshape(-1, d, qkv.shape[1]) for part in (q, k, v))
    made = [folding.queries[h].T @ q[h * share + i] for group in folding.groups for h in group for i in range(share)]
    for old, down in ((k, folding.keys), (v, folding.values)):
        made += [down[g].T @ old[list(group)].reshape(-1, qkv.shape[1]) for g, group in enumerate(folding.groups)]
    return np.concatenate(made)


def fold_o(block: Attention, folding: Folding, o: Array) -> Array:
    """o [hidden, n_heads * d] -> of the smaller block, its query heads in the order of the groups."""
    d, share = block.head_dim, block.n_heads // block.n_kv_heads
    heads = o.reshape(len(o), -1, d)
    made = [
        heads[:, h * share + i] @ folding.outputs[h].T for group in folding.groups for h in group for i in range(share)
    ]
    return np.concatenate(made, axis=1)


def _looks(block: Attention, queries: NDArray[np.float32]) -> Array:
    """The mean square of the queries of each kv head [n_kv_heads, d]."""
    squares = np.square(queries.astype(np.float64)).mean(axis=1)
    return squares.reshape(block.n_kv_heads, -1, block.head_dim).mean(axis=1) + 1e-12


def _metrics(block: Attention, output: Array) -> Array:
    """The weight of an error of a value in the hidden state [n_kv_heads, d, d]."""
    heads = output.astype(np.float64).reshape(len(output), block.n_kv_heads, -1, block.head_dim)
    found = np.einsum("ohid,ohie->hde", heads, heads)
    return found + np.eye(block.head_dim) * (np.trace(found, axis1=1, axis2=2).mean() * 1e-6 + 1e-12)


def _keys(keys: Array, looks: Array, pairs: int) -> tuple[Array, Array, float]:
    """keys [t, n, d] -> the combination [t * d, d], what brings each head back [t, d, d], and the error."""
    t, _, d = keys.shape
    down, up, error = np.zeros((t, d, d)), np.zeros((t, d, d)), 0.0
    for j in range(pairs):
        weight = np.sqrt(looks[:, j] + looks[:, j + pairs])
        turned = (keys[:, :, j] + 1j * keys[:, :, j + pairs]) * weight[:, None]
        values, vectors = np.linalg.eigh(turned @ turned.conj().T)
        best = vectors[:, -1]
        error += float(values[:-1].sum())
        for h in range(t):
            _set_pair(down[h], j, pairs, best[h].conj() * weight[h])
            _set_pair(up[h], j, pairs, best[h] / weight[h])
    rest = slice(2 * pairs, d)
    if 2 * pairs < d:
        metric = np.stack([np.diag(look[rest]) for look in looks])
        down[:, rest, rest], up[:, rest, rest], more = _split(_low_rank(keys[:, :, rest], metric), t)
        error += more
    return down.reshape(t * d, d), up, error


def _set_pair(matrix: Array, j: int, pairs: int, z: complex) -> None:
    """Row vector (x_j, x_{j + pairs}) @ matrix is the complex product x * z."""
    i = j + pairs
    matrix[j, j] = matrix[i, i] = z.real
    matrix[j, i], matrix[i, j] = z.imag, -z.imag


def _low_rank(x: Array, metric: Array) -> tuple[Array, Array, float]:
    """x [t, n, d], errors weighed by metric [t, d, d] -> the combination [t * d, d], what brings each head back
    [t, d, d], and the error."""
    t, n, d = x.shape
    root = np.linalg.cholesky(metric)  # |e|^2 weighed: |e @ root|^2
    weighed = np.einsum("tnd,tde->nte", x, root).reshape(n, t * d)
    values, vectors = np.linalg.eigh(weighed.T @ weighed)
    best = vectors[:, -d:].reshape(t, d, d)
    down = np.einsum("tde,tef->tdf", root, best).reshape(t * d, d)
    up = np.einsum("tef,ted->tfd", best, np.linalg.inv(root))
    return down, up, float(values[:-d].sum())


def _split(found: tuple[Array, Array, float], t: int) -> tuple[Array, Array, float]:
    down, up, error = found
    return down.reshape(t, -1, down.shape[1]), up, error


def _grouped(
    block: Attention, heads: int, keys: Array, values: Array, looks: Array, metrics: Array, pairs: int
) -> tuple[tuple[int, ...], ...]:
    """The old heads of each new one: again and again the group that loses least of what is left."""
    t, left = block.n_kv_heads // heads, list(range(block.n_kv_heads))
    neighbours = tuple(tuple(range(g * t, (g + 1) * t)) for g in range(heads))
    if _ways(len(left), t) > _TRIES:
        return neighbours
    scale_k = float(np.einsum("tnd,td->", np.square(keys), looks))
    scale_v = float(np.einsum("tnd,tde,tne->", values, metrics, values))

    def loss(group: Sequence[int]) -> float:
        members = list(group)
        of_keys, of_values = _keys(keys[members], looks[members], pairs), _low_rank(values[members], metrics[members])
        return of_keys[2] / scale_k + of_values[2] / scale_v

    losses = {group: loss(group) for group in combinations(left, t)}
    found = list[tuple[int, ...]]()
    while left:
        found.append(min((group for group in losses if set(group) <= set(left)), key=losses.__getitem__))
        left = [head for head in left if head not in found[-1]]
    return min(tuple(sorted(found)), neighbours, key=lambda groups: sum(losses[group] for group in groups))


def _ways(n: int, t: int) -> int:
    ways = 1
    for i in range(t):
        ways = ways * (n - i) // (i + 1)
    return ways


class SmallerHeads:
    """A model's weights with fewer key and value heads in some blocks, `heads`: `read` gives its tensors."""

    def __init__(self, spec: ModelSpec, heads: Mapping[int, int], read: Read) -> None:
        self.old, self.spec, self._heads, self._inner = spec, smaller(spec, heads), heads, read
        self.foldings: dict[int, Folding] = {}
        self._own: dict[str, NDArray[np.float32]] = {}
        self._last: tuple[str, NDArray[np.float32]] = ("", np.zeros(0, np.float32))

    def learn(self, b: int, caches: NDArray[np.float32], queries: NDArray[np.float32]) -> None:
        """Choose what becomes of attention block b from the caches and queries of a text."""
        output = self._whole(f"blocks.{b}.o")
        self.foldings[b] = fold(self.old, b, self._heads[b], caches, queries, output)

    def pool(self, b: int) -> None:
        """Let attention block b have the means of neighbouring heads, to compare with."""
        self.foldings[b] = mean_pooling(self.old.attention[b], self._heads[b])

    def changes(self, name: str) -> bool:
        """Whether this tensor differs from the checkpoint's."""
        block, part = _place(name)
        return block in self._heads and part in ("qkv", "qkv_bias", "o")

    def read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of a tensor of the smaller model."""
        if name in self._own:
            return self._own[name][start:stop]
        if not self.changes(name):
            return self._inner(name, start, stop)
        if self._last[0] != name:
            self._last = name, self._folded(name)
        return self._last[1][start:stop]

    def put(self, name: str, tensor: NDArray[np.float32]) -> None:
        """Take a tensor that was trained."""
        self._own[name] = tensor

    def _folded(self, name: str) -> NDArray[np.float32]:
        b, part = _place(name)
        block, folding, whole = self.old.attention[b], self.foldings[b], self._whole(name).astype(np.float64)
        if part == "o":
            return fold_o(block, folding, whole).astype(np.float32)
        made = fold_qkv(block, folding, whole.reshape(len(whole), -1)).astype(np.float32)
        return made if whole.ndim > 1 else made[:, 0]

    def _whole(self, name: str) -> Any:
        return self._inner(name, 0, self.old.tensors()[name][0])


def _place(name: str) -> tuple[int, str]:
    """blocks.12.qkv -> 12, "qkv"; -1 for a tensor of no block."""
    parts = name.split(".", 2)
    return (int(parts[1]), parts[2]) if parts[0] == "blocks" else (-1, name)
