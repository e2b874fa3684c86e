"""Texts as vectors: the mean of a bundle's last hidden states, scaled to length 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.errors import BundleNotFound, RuntimeUnavailable, UsageError
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, choose_runtime, forward_one, open_runtime
from edgedec.search.branch import Branch
from edgedec.search.host import SearchHost
from edgedec.search.scoring import Score, checked
from edgedec.text.tokenizer import Tokenizer

Vector = NDArray[np.float32]


class ByVectors:
    """The product of the vectors of the prompt and of the text. encoded: how many texts were."""

    asks = True

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer) -> None:
        self._runtime, self._tokenizer, self.encoded = runtime, tokenizer, 0
        self._prompts: dict[str, Vector] = {}

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        if prompt not in self._prompts:
            self._prompts[prompt] = self._vector(prompt)
        return Score(checked(float(self._prompts[prompt] @ self._vector(text)), "the bundle"))

    def close(self) -> None:
        pass

    def _vector(self, text: str) -> Vector:
        self.encoded += 1
        ids = self._tokenizer.encode(text)[: self._runtime.spec.context_length]
        return mean_state(self._runtime, ids)


def mean_state(runtime: Runtime, ids: Sequence[int]) -> Vector:
    """The mean of the states after the last block, scaled to length 1; zeros for no tokens."""
    last, chunk = runtime.spec.n_blocks - 1, runtime.capabilities.prefill_chunk
    total, cache = np.zeros(runtime.spec.hidden_size), runtime.new_cache(max(len(ids), 1))
    for at in range(0, len(ids), chunk):
        rows = Rows.chain(ids[at : at + chunk], at)
        result = forward_one(runtime, Call(rows, cache, outputs=Outputs(hidden=(last,))))
        total += result.hidden[last].sum(0, dtype=np.float64)
        cache.commit(range(len(rows)))
    found: Vector = (total / (float(np.linalg.norm(total)) or 1.0)).astype(np.float32)
    return found


def bundle_scorer(host: SearchHost, path: str) -> ByVectors:
    """A scorer by the vectors of a bundle, which is opened once a process."""
    if host.config.scorer is not None:
        raise UsageError("--search: a scorer and bundle=… are two scorers; give one")
    runtime, tokenizer = _opened(path)
    if not runtime.capabilities.hidden:
        raise RuntimeUnavailable(f"--search: bundle={path}: its engine {runtime.name} gives no hidden states")
    return ByVectors(runtime, tokenizer)


@lru_cache(4)
def _opened(path: str) -> tuple[Runtime, Tokenizer]:
    try:
        bundle = Bundle.open(find(path))
    except BundleNotFound as error:
        raise UsageError(f"--search: bundle={path}: {error}") from None
    if bundle.manifest.text.tokenizer is None:
        raise UsageError(f"--search: bundle={path}: has no tokenizer")
    runtime = open_runtime(choose_runtime(bundle, "auto", ""), bundle, RuntimeOptions())
    runtime.load()
    return runtime, Tokenizer.load(bundle.file(bundle.manifest.text.tokenizer))
