"""Makes `tests/golden/samplers.json` with llama.cpp's samplers (the package llama-cpp-python):

python -m tests.record_samplers
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "samplers.json"
SIZE = 24


def rows(seed: int, n: int = 4) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [[round(float(x), 3) for x in rng.normal(0, scale, SIZE)] for scale in np.linspace(0.5, 3, n)]


class Applied:
    """A row of logits as llama.cpp's candidates."""

    def __init__(self, lib: Any, row: list[float]) -> None:
        self._lib = lib
        self._data = (lib.llama_token_data * len(row))(*[lib.llama_token_data(i, x, 0.0) for i, x in enumerate(row)])
        self.array = lib.llama_token_data_array(self._data, len(row), -1, False)

    def apply(self, sampler: Any) -> Applied:
        self._lib.llama_sampler_apply(sampler, ctypes.byref(self.array))
        return self

    def values(self, of: str, missing: float) -> list[float]:
        found = [missing] * SIZE
        for i in range(self.array.size):
            found[self.array.data[i].id] = float(getattr(self.array.data[i], of))
        return [round(x, 8) if np.isfinite(x) else missing for x in found]

    @property
    def picked(self) -> int:
        return int(self.array.data[self.array.selected].id)


def chain(lib: Any, name: str, settings: dict[str, Any], make: Callable[[], list[Any]]) -> dict[str, Any]:
    """Probabilities after these samplers."""
    found = []
    for row in rows(len(name)):
        applied = Applied(lib, row)
        for sampler in make():
            applied.apply(sampler)
        found.append(applied.apply(lib.llama_sampler_init_dist(1)).values("p", 0.0))
    return {"name": name, "settings": settings, "rows": rows(len(name)), "texts": [[]] * 4, "probs": found}


def text_rules(lib: Any, name: str, settings: dict[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
    """Logits after a sampler that has accepted a text."""
    rng, texts, found = np.random.default_rng(len(name)), [], []
    for row, n in zip(rows(len(name)), (3, 12, 40, 90), strict=True):
        sampler, ids = make(), rng.integers(0, 4, n).tolist()
        for token in ids:
            lib.llama_sampler_accept(sampler, token)
        found.append(Applied(lib, row).apply(sampler).values("logit", 0.0))
        texts.append(ids)
    return {"name": name, "settings": settings, "rows": rows(len(name)), "texts": texts, "probs": found, "logits": True}


def with_state(lib: Any, name: str, settings: dict[str, Any], sampler: Any) -> dict[str, Any]:
    """Probabilities of a sampler that draws, one after another, and what it drew."""
    given, found, picked = rows(len(name), 12), [], []
    for row in given:
        applied = Applied(lib, row).apply(sampler)
        found.append(applied.values("p", 0.0))
        picked.append(applied.picked)
        lib.llama_sampler_accept(sampler, picked[-1])
    return {"name": f"state {name}", "settings": settings, "rows": given, "picked": picked, "probs": found}


def record() -> list[dict[str, Any]]:
    import llama_cpp as lib

    def xtc() -> list[Any]:
        return [lib.llama_sampler_init_xtc(1.0, 0.08, 1, 1)]

    # Not after top-n-sigma: its candidates of probability 0 make the entropy of llama.cpp's typical sampling NaN.
    ordered = {"samplers": "top_k;typ_p;top_p;min_p;temperature"}
    values = {"top_k": 18, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7}
    cases = [
        chain(lib, "top_n_sigma", {"top_n_sigma": 1.0}, lambda: [lib.llama_sampler_init_top_n_sigma(1.0)]),
        chain(lib, "typical", {"typical_p": 0.7}, lambda: [lib.llama_sampler_init_typical(0.7, 1)]),
        chain(lib, "xtc", {"xtc_probability": 1.0, "xtc_threshold": 0.08}, xtc),
        chain(
            lib,
            "dynatemp",
            {"temperature": 0.9, "dynatemp_range": 0.6, "dynatemp_exponent": 1.3},
            lambda: [lib.llama_sampler_init_temp_ext(0.9, 0.6, 1.3)],
        ),
        chain(
            lib,
            "all in order",
            ordered | values,
            lambda: [
                lib.llama_sampler_init_top_k(18),
                lib.llama_sampler_init_typical(0.95, 1),
                lib.llama_sampler_init_top_p(0.9, 1),
                lib.llama_sampler_init_min_p(0.02, 1),
                lib.llama_sampler_init_temp(0.7),
            ],
        ),
        text_rules(
            lib,
            "penalties",
            {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.4, "repeat_last_n": 8},
            lambda: lib.llama_sampler_init_penalties(SIZE, 8, 1.3, 0.2, 0.4),
        ),
    ]
    for allowed, last in ((2, 4096), (1, 10)):
        options = {"dry_multiplier": 0.8, "dry_allowed_length": allowed, "dry_penalty_last_n": last}
        cases.append(
            text_rules(
                lib,
                f"dry {allowed} {last}",
                options,
                lambda allowed=allowed, last=last: lib.llama_sampler_init_dry(None, 0.8, 1.75, allowed, last, None, 0),
            )
        )
    one, two = lib.llama_sampler_init_mirostat(SIZE, 1, 3.0, 0.1, 100), lib.llama_sampler_init_mirostat_v2(1, 3.0, 0.1)
    cases.append(with_state(lib, "mirostat", {"mirostat": 1, "mirostat_tau": 3.0}, one))
    cases.append(with_state(lib, "mirostat 2", {"mirostat": 2, "mirostat_tau": 3.0}, two))
    if hasattr(lib, "llama_sampler_init_adaptive_p"):
        sampler = lib.llama_sampler_init_adaptive_p(0.4, 0.7, 1)
        cases.append(with_state(lib, "adaptive", {"adaptive_target": 0.4, "adaptive_decay": 0.7}, sampler))
    return cases


if __name__ == "__main__":
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(case) for case in record()) + "\n]\n", "utf-8")
