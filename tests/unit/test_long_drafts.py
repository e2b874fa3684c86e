"""The bench of drafts after long texts: rows whose parts stand anywhere in order, and means over texts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the target is trained with torch")
pytest.importorskip("safetensors", reason="nano's training keeps safetensors")
# In a process of its own: the recipe's modules have plain names such as `model` and `data`.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "bench")!r})
import long_drafts as bench
import numpy as np
import torch

rng, last, size = np.random.default_rng(1), [], bench.ROW // bench.PARTS
for _ in range(50):
    at = bench.places(rng).numpy()
    steps = np.diff(at)
    assert at[0] >= 0 and steps.min() >= 1
    assert set(np.flatnonzero(steps > 1) + 1) <= {{size, 2 * size, 3 * size}}
    last.append(int(at[-1]))
assert max(last) < bench.LONGEST and max(last) - min(last) > bench.LONGEST // 4

cos, sin = bench.tables(torch.tensor([[0, 3]]))
assert cos.shape == sin.shape == (1, 1, 2, bench.net.HD)
slowest = 3 * bench.THETA ** (2 / bench.net.HD - 1)
assert abs(float(sin[0, 0, 1, -1]) / np.sin(slowest) - 1) < 1e-4
assert abs(float(cos[0, 0, 1, 0]) - np.cos(3.0)) < 1e-5
assert torch.equal(cos[0, 0, 0], torch.ones(bench.net.HD))

one, two = (dict(context=8, tokens_per_call=x, state_bytes=64) for x in (1.0, 2.0))
assert bench.mean([[one], [two]]) == [dict(context=8, tokens_per_call=1.5, state_bytes=64)]
"""


def test_rows_positions_and_means() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
