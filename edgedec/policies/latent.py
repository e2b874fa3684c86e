"""Adds latent cache entries that a trained coprocessor computes; steps read more (Deliberation in Latent Space).

Liu et al. 2024. After a prompt, trained rows read the whole cache through the model with the coprocessor's low-rank
weights; what becomes of them goes through the model itself, as rows of no token, and their keys and values are attached
to the cache. The model stays as it is; what follows sees `n` entries more than the text has tokens. With `after` they
come when so many tokens were generated: the first of them does not wait, and the calls run beside those of other
texts. Near the end of the capacity, where the rows do not fit any more, there are none. Without a coprocessor at `path`
the text is that of the whole cache.

It is a policy because policies own the slots of a text: forks, saved sessions, batches and drafts then work as with any
other policy. Entries of an earlier prompt are removed when a later one is read.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.coprocessor import Coprocessor, open_coprocessor
from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.plugins import Opt
from edgedec.policies import ANY_ROOM, PolicyFacts, PolicyHost, PolicyState, TextSize
from edgedec.policies._eviction import BasePolicy, held
from edgedec.runtime import Adapter, Call, Outputs, Rows

# Shorter texts get no entries.
_LEAST = 8
_NEVER = -1

FACTS = PolicyFacts(
    ("attach", "embeddings", "hidden", "adapters", "drop"),
    kinds=("attention", "mlp", "moe"),
    budget="",
    paper="Deliberation in Latent Space",
)


def make(
    host: PolicyHost,
    path: Annotated[str, Opt("File of `edgedec train-cache`; by default BUNDLE.coprocessor.")] = "",
    n: Annotated[int, Opt("Latent entries.", 1)] = 4,
    after: Annotated[int, Opt("Generated tokens before they are added.", 0)] = 0,
) -> Latent:
    file = Path(path or f"{host.folder}.coprocessor")
    if path and not file.exists():
        raise UsageError(f"--cache latent: path={path}: no such file; make it with edgedec train-cache")
    found = open_coprocessor(file, host.spec) if file.exists() else None
    if found is not None and n > len(found.soft):
        raise UsageError(f"--cache latent: n={n}: {file} was trained for {len(found.soft)} entries")
    return Latent(host, found, n, after, str(file))


class Latent(BasePolicy):
    def __init__(self, host: PolicyHost, coprocessor: Coprocessor | None, n: int, after: int, file: str) -> None:
        self.spec, self._coprocessor, self._n, self._after, self._file = host.spec, coprocessor, n, after, file
        # The length at which entries are due; the slot of the first entry, and the length at which it was added.
        self._due = self._slot = self._length = _NEVER

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """The prompt in chunks, then the entries if they are due at once."""
        self._forget(cache)
        for at in range(0, len(ids), most):
            chunk = ids[at : at + most]
            yield Call(Rows.chain(chunk, cache.length), cache, adapter=adapter)
            cache.commit(range(len(chunk)))
        if self._coprocessor is not None and cache.length >= _LEAST:
            self._due = cache.length + self._after
            yield from self.work(cache, adapter)

    def work(self, cache: Cache, adapter: Adapter | None) -> Generator[Call, Any, None]:
        """The entries, if they are due."""
        if self._coprocessor is None or self._due == _NEVER or cache.length < self._due:
            return
        if cache.length + self._n > cache.capacity:
            # There is no room for the entries: the text continues without them.
            self._due = _NEVER
            return
        last = self.spec.n_blocks - 1
        soft = self._rows(self._coprocessor.soft[: self._n], cache.length)
        done = yield Call(soft, cache, outputs=Outputs(hidden=(last,)), adapter=self._coprocessor.adapter)
        rows = self._rows(self._coprocessor.rows(done.result.hidden[last]), cache.length)
        yield Call(rows, cache, adapter=adapter)
        self._slot, self._length, self._due = cache.slots(min(self.spec.attention)), cache.length, _NEVER
        cache.attach(self._n)

    def _rows(self, embeddings: NDArray[np.float32], length: int) -> Rows:
        """Rows of no token, all at the position of the last one."""
        return replace(Rows.embedded(embeddings, length), positions=np.full(len(embeddings), length - 1))

    def room(self, length: int) -> int:
        return ANY_ROOM if self._due == _NEVER else max(self._due - 1 - length, 0)

    def peak(self, text: TextSize) -> int:
        return super().peak(text) + (0 if self._coprocessor is None else self._n)

    def _forget(self, cache: Cache) -> None:
        """Drop the entries of an earlier prompt."""
        if self._slot != _NEVER and cache.length >= self._length:
            for block in self.spec.attention:
                cache.drop(block, range(self._slot, self._slot + self._n))
        self.reset()

    def trim(self, cache: Cache) -> None:
        if cache.length < self._length:
            self._slot = self._length = _NEVER

    def reset(self) -> None:
        self._due = self._slot = self._length = _NEVER

    def state(self) -> PolicyState:
        return {"latent": np.array([self._due, self._slot, self._length], np.int64)}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        known = state.get("latent", np.zeros(0))
        if len(state) != 1 or known.shape != (3,) or known.dtype != np.int64 or known.min() < _NEVER:
            raise SessionError(f"the saved state is not of cache policy {self.name}")
        due, slot, length = known.tolist()
        none, held = slot == length == _NEVER, min(cache.slots(block) for block in self.spec.attention)
        if not none and not (slot >= 0 and length <= cache.length and slot + self._n <= held):
            raise SessionError(f"the saved state is not of cache policy {self.name}")
        self._due, self._slot, self._length = due, slot, length

    def report(self, cache: Cache) -> dict[str, Any]:
        there = self._n if self._slot != _NEVER else 0
        absent = {} if self._coprocessor is not None else {"absent": self._file}
        return {"policy": self.words, "lossy": bool(self._coprocessor), "latents": there, **absent, **held(cache)}
