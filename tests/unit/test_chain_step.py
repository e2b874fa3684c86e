"""A chain's step is written at once, and says what the step of any calls says."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtime import Call, Outputs, Rows
from edgedec.runtimes._device import chain_step
from edgedec.runtimes._device.call_views import Views
from edgedec.runtimes._device.step import _FIELDS, _MORE_FIELDS, StepMemory, StepSize
from edgedec.testing.conformance.models import MODELS

SPEC = MODELS["plain"]


class Memory:
    """A device whose memory is the host's."""

    def __init__(self) -> None:
        self.held = dict[int, NDArray[np.uint8]]()

    def allocate(self, size: int) -> int:
        memory = np.full(size, 0xEE, np.uint8)
        self.held[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        self.held.pop(address)

    def write(self, address: int, array: NDArray[Any]) -> None:
        assert array.nbytes <= len(self.held[address])
        ctypes.memmove(address, array.ctypes.data, array.nbytes)


def table(start: int, pages: int) -> Any:
    pool = SimpleNamespace(address=lambda page: 0x7000_0000_0000 + 4096 * page)
    return SimpleNamespace(start=start, pages=list(range(3, 3 + pages)), pool=pool)


def told(step: StepMemory, size: StepSize, tables: list[Any]) -> dict[str, bytes]:
    """Every array of a step by its name, and the counts."""
    header = structs.STEP.unpack((ctypes.c_char * structs.STEP.size).from_address(step.at).raw)
    places = dict(zip((*_FIELDS, *_MORE_FIELDS), (*header[:21], *header[27:]), strict=True))
    rows = ("tokens", "positions", "sequence", "at", "begin", "end", "part", "part_row", "chunks")
    counts = dict.fromkeys(rows, size.rows) | {"items": 4 * size.items, "head_rows": size.head, "heat": size.head}
    counts |= {"pages": 2 * sum(len(each.pages) for each in tables), "views": 4 * len(tables), "paid": 4 * len(tables)}
    assert all(places[name] % 16 == step.at % 16 for name, count in counts.items() if count)
    found = {name: ctypes.string_at(places[name], 4 * count) for name, count in counts.items()}
    return found | {"counts": repr(header[21:27]).encode()}


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 70), first=st.integers(0, 5), tile=st.sampled_from([1, 8, 256]),
    starts=st.lists(st.integers(0, 900), min_size=1, max_size=3),
    top=st.booleans(), logits_from=st.integers(0, 3), temperature=st.sampled_from([1.0, 0.7]),
)  # fmt: skip
def test_a_chains_step_is_the_general_one(
    n: int, first: int, tile: int, starts: list[int], top: bool, logits_from: int, temperature: float
) -> None:
    outputs = Outputs(top=2 if top else 0, logits_from=min(logits_from, n - 1), temperature=temperature)
    tables = [table(start, -(-(start + n + first) // 64)) for start in starts]
    call = Call(_rows(n, first), SimpleNamespace(spec=SPEC), outputs=outputs)  # type: ignore[arg-type]
    views = Views({b: i % len(tables) for i, b in enumerate(SPEC.attention)}, [[each] for each in tables])
    assert chain_step.fits([call], SPEC, views.tables)
    found = []
    for quick in (True, False):
        step = StepMemory(Memory())  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            if not quick:
                patch.setattr(chain_step, "fits", lambda *_: False)
            size = step.write([call], [call.cache], range(SPEC.n_blocks), views, tile)  # type: ignore[list-item]
        found.append((size, told(step, size, tables)))
    assert found[0] == found[1]


def _rows(n: int, first: int) -> Rows:
    ids = np.arange(5, 5 + n + first)
    return Rows(ids, np.arange(7, 7 + n + first), np.arange(-1, n + first - 1), first)


def test_what_is_no_chain_takes_the_other_way() -> None:
    tables, cache = [[table(0, 1)]], SimpleNamespace(spec=SPEC)
    chain = Call(Rows.chain([1, 2], 0), cache)  # type: ignore[arg-type]
    tree = Call(Rows.tree([1, 2, 3], [-1, 0, 0], 0), cache)  # type: ignore[arg-type]
    paid = Call(chain.rows, cache, outputs=Outputs(attention=True))  # type: ignore[arg-type]
    assert chain_step.fits([chain], SPEC, tables)
    assert not any(chain_step.fits(calls, SPEC, tables) for calls in ([tree], [paid], [chain, chain]))
    assert not chain_step.fits([chain], SPEC, [])
    for name in ("windows", "hybrid"):
        assert not chain_step.fits([chain], MODELS[name], tables)
