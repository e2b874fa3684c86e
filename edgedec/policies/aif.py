"""Hides the image rows that text looks at without a pattern from the rows of text (AIF); keeps all slots.

Liu et al. 2026, "Aligning What Vision-Language Models See and Perceive with Adaptive Information Flow"
(arXiv:2604.15809). What a question is about, text looks at in a few layers; what distracts, in any. So, once a prompt
is read, with a[l, t, i] the attention of text row t to image row i in layer l:

    d[l, i]    max over t of a[l, t, i], t the last `window` rows that a prompt's reading runs
    H[i]       entropy of d[:, i] over the layers, divided by log(layers); low: important
    share r    of .1, .2, ... .9 the one of the largest |S(r) - S(0)|, where S(r) is the entropy of the attention to the
               rows that stay if the share r of the highest H is hidden
    steps      rows of text do not see what is hidden; image rows are as they were read

    layers 3   row 0: d 0 .6 0 -> H 0     row 1: d .2 .2 .2 -> H 1     row 2: d .1 0 .1 -> H .63     r = 1/3 hides row 1

From the text as others quote it. Ours: the attention of a layer is the mean over its heads; S is of sum over l of
d[l, i], divided by the log of the count, as a plain entropy falls with every row that is hidden; a row that no text
looks at has H 1. Hidden are rows of whole pages before the last 64 slots of the prompt only: what a step sees of later
pages cannot be chosen by slots (`runtime.view`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from copy import copy
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError
from edgedec.plugins import Opt
from edgedec.policies import Chunk, PolicyFacts, PolicyHost, PolicyState
from edgedec.policies._eviction import BasePolicy
from edgedec.policies._images import Marks, check_images, marked, marks_state, of_images, restored_marks
from edgedec.policies._options import Window
from edgedec.runtime import PAGE, Adapter, Call, CallResult, Outputs, Rows, View

_LOOK = Outputs(attention=True)
_SHARES = tuple(tenth / 10 for tenth in range(1, 10))
_HIDDEN = "hidden"
ADAPTIVE = -1.0
Array = NDArray[np.float64]
Ints = NDArray[np.int64]

FACTS = PolicyFacts(
    ("attention_sums", "views", "embeddings"), kinds=("attention", "mlp", "moe"), paper="arXiv:2604.15809"
)


def make(
    host: PolicyHost,
    share: Annotated[float, Opt("Share of the image rows that is hidden from text; -1: chosen.", -1, 1)] = ADAPTIVE,
    window: Window = 16,
) -> Aif:
    check_images("aif", host.images)
    return Aif(host, share, window)


def entropies(d: Array) -> Array:
    """[layers, rows] -> of each row over the layers, from 0 to 1."""
    total = d.sum(axis=0)
    p = np.divide(d, total, out=np.full(d.shape, 1 / len(d)), where=total > 0)
    logs = np.log(p, out=np.zeros(d.shape), where=p > 0)
    found: Array = -(p * logs).sum(axis=0) / max(np.log(len(d)), 1e-9)
    return found


def spread(mass: Array) -> float:
    """The entropy of attention [rows], from 0 (one row has all) to 1."""
    p = mass[mass > 0] / max(mass.sum(), 1e-300)
    return float(-(p * np.log(p)).sum() / np.log(len(mass))) if len(mass) > 1 else 0.0


def hidden_rows(d: Array, share: float = ADAPTIVE) -> Ints:
    """The image rows that are hidden, by their numbers; of equal entropies the later ones."""
    n = d.shape[1]
    order, mass = np.argsort(entropies(d), kind="stable"), d.sum(axis=0)
    if share < 0:
        whole = spread(mass)
        share = max(_SHARES, key=lambda r: abs(spread(mass[order[: n - round(r * n)]]) - whole))
    return np.sort(order[n - round(share * n) :]).astype(np.int64)


class Aif(BasePolicy):
    """`_looked`: d so far, by block; `_hidden`: slots that steps do not see."""

    def __init__(self, host: PolicyHost, share: float, window: int) -> None:
        self.spec, self._share, self.window = host.spec, share, window
        self._images: Marks = ()
        self._looked = dict[int, Array]()
        self._hidden: Ints = np.zeros(0, np.int64)
        self._made: tuple[int, dict[int, View]] = (-1, {})

    def mark(self, start: int, stop: int) -> None:
        """Mark the rows at positions from `start` to before `stop` as an image."""
        self._images = marked("aif", self._images, start, stop)

    # ---- a prompt ------------------------------------------------------------------------------

    def read_rows(
        self, cache: Cache, rows: Rows, most: int, adapter: Adapter | None = None
    ) -> Generator[Call, Any, None]:
        """Read a prompt given as rows; commits them and decides."""
        at = 0
        while at < len(rows):
            size, outputs = self.chunk(cache, len(rows) - at, most)
            assert rows.embeddings is not None
            part = Rows.embedded(rows.embeddings[at : at + size], cache.length)
            done = yield Call(part, cache, outputs=outputs, adapter=adapter)
            cache.commit(range(len(part)))
            self.read(cache, done.result)
            at += size
        self.end(cache)

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        return Chunk(min(most, left - self.window)) if left > self.window else Chunk(1, _LOOK)

    def read(self, cache: Cache, result: CallResult) -> None:
        for b, paid in result.attention.items():
            new = paid.sum(axis=0).astype(np.float64) / self.spec.attention[b].n_heads
            if (old := self._looked.get(b)) is not None:
                np.maximum(new[: len(old)], old, out=new[: len(old)])
            self._looked[b] = new

    def end(self, cache: Cache) -> None:
        end = max(0, (cache.length - PAGE) // PAGE * PAGE)
        slots = np.flatnonzero(of_images(self._images, np.arange(end)))
        if self._looked and len(slots):
            d = np.stack([np.pad(row, (0, max(0, end - len(row))))[slots] for row in self._looked.values()])
            self._hidden = slots[hidden_rows(d, self._share)].astype(np.int64)
        self._looked, self._made = {}, (-1, {})

    # ---- steps ---------------------------------------------------------------------------------

    def shape(self, call: Call) -> Call:
        if not len(self._hidden):
            return call
        # Run the whole stack, even if a drafter has run the first blocks of the row.
        return call._replace(blocks=None, hidden=None, views=self._views(call.cache.length // PAGE * PAGE))

    def _views(self, end: int) -> dict[int, View]:
        """All slots before `end` but the hidden ones; later ones are seen in any case."""
        if self._made[0] != end:
            seen = np.setdiff1d(np.arange(end), self._hidden)
            blocks = self.spec.attention.items()
            self._made = end, {b: View(0, PAGE, slots=[seen] * block.n_kv_heads) for b, block in blocks}
        return self._made[1]

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._images, self._looked, self._hidden, self._made = (), {}, np.zeros(0, np.int64), (-1, {})

    def trim(self, cache: Cache) -> None:
        self._hidden, self._made = self._hidden[self._hidden < cache.length], (-1, {})

    def fork(self) -> Aif:
        twin = copy(self)
        twin._looked = {b: row.copy() for b, row in self._looked.items()}
        return twin

    def state(self) -> PolicyState:
        return {**marks_state(self._images), **({_HIDDEN: self._hidden} if len(self._hidden) else {})}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        marks, rest = restored_marks(self.name, state)
        hidden = rest.pop(_HIDDEN, np.zeros(0, np.int64))
        super().restore(rest, cache)
        good = hidden.ndim == 1 and hidden.dtype == np.int64 and (hidden[1:] > hidden[:-1]).all()
        if not good or (len(hidden) and not (hidden[0] >= 0 and hidden[-1] < cache.length)):
            raise SessionError(f"{_HIDDEN}: the saved state is not of cache policy {self.name}")
        self._images, self._hidden, self._made = marks, np.array(hidden), (-1, {})

    def report(self, cache: Cache) -> dict[str, Any]:
        return {**super().report(cache), "hidden": len(self._hidden)}
