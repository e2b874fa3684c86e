"""Everything in blocks of integers: the rounding beside a plain one, and that each part is rounded alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench.block_parts import PARTS, in_blocks, rounding
from bundles import ODD, random_weights

from edgedec.runtime import Rows, logits_of
from edgedec.runtimes.reference import Reference

SPEC = ODD["plain"]
HELD = {name: random_weights(SPEC, 0)(name) for name in SPEC.tensors()}


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_are_rounded_to_the_least_power_of_two(bits: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32) * np.float32([[1], [100], [0]])
    x[0, 3] = -np.inf
    found, top = in_blocks(x, bits, 8), 2 ** (bits - 1) - 1
    for row, other in zip(x, found, strict=True):
        for at in range(0, 20, 8):
            block = row[at : at + 8]
            most = np.abs(block[np.isfinite(block)]).max()
            step = next(2.0**e for e in range(-40, 40) if 2.0**e * top >= most) if most else 1.0
            for value, stored in zip(block, other[at : at + 8], strict=True):
                assert stored == (np.rint(value / step) * step if np.isfinite(value) else value)
    assert in_blocks(np.float32([top]), bits, 8) == top  # a step of one reaches it


def logits() -> Any:
    runtime = Reference(SPEC, lambda name, a, b: HELD[name][a:b])
    return logits_of(runtime, Rows.chain(np.arange(20) % SPEC.vocab_size, 0), runtime.new_cache(20))


def test_parts_are_rounded_alone_and_only_meanwhile() -> None:
    plain, changed = logits(), dict[str, Any]()
    for part in PARTS[1:]:
        with rounding((part,), 4, 8):
            changed[part] = logits()
        assert np.isfinite(changed[part]).all()
        assert (changed[part] != plain).any()
    assert len({found.tobytes() for found in changed.values()}) == len(PARTS) - 1
    assert logits().tobytes() == plain.tobytes()
