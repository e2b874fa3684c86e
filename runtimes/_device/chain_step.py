"""The step of one text's chain of rows, which plain decoding calls for with every token: written at once, without what
only trees, batches, windows and policies have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtime import Call
from edgedec.runtimes._device.table import PageTable
from edgedec.spec import ModelSpec

# int32 of 16 bytes: arrays begin at multiples of these.
_LINE = 4
_HEADER = -(-structs.STEP.size // 16) * _LINE
# In the order in which they lie here; what a chain does not have is empty, and begins anywhere.
_EMPTY = ("path", "slot_positions", "given", "recurrent", "updates", "update_ends", "taps", "bounds", "plans")


def fits(calls: Sequence[Call], spec: ModelSpec, tables: Sequence[Sequence[PageTable]]) -> bool:
    """Is the step of one chain of tokens, in a model without windows and states?"""
    if len(calls) != 1 or not tables or spec.recurrent or any(b.window for b in spec.attention.values()):
        return False
    call = calls[0]
    tokens = call.hidden is None and call.rows.embeddings is None
    return tokens and call.rows.is_chain and not call.outputs.attention


@dataclass(frozen=True)
class ChainStep:
    """image: the header's place and the arrays after it; places: where each array begins, in int32; items: of
    attention; head: rows of the head."""

    image: NDArray[np.int32]
    places: dict[str, int]
    items: int
    head: int

    @property
    def nbytes(self) -> int:
        return int(self.image.nbytes)

    def addresses(self, base: int, names: Sequence[str]) -> list[int]:
        """Of arrays, if the image lies at `base`."""
        return [base + 4 * self.places[name] for name in names]


def chain_step(call: Call, tables: Sequence[PageTable], tile: int) -> ChainStep:
    """The arrays of a chain's step, as `StepMemory.write` has them. tables: of each view."""
    rows, n = call.rows, call.rows.count
    chunks = -(-(max(table.start for table in tables) + len(rows)) // structs.CHUNK)
    items = -(-n // tile) * chunks
    head = n - call.outputs.logits_from if call.outputs.head else 0
    pages = [table.pool.address(page) for table in tables for page in table.pages]
    counts = dict.fromkeys(("tokens", "positions", "at", "begin", "end", "chunks", "sequence", "part", "part_row"), n)
    counts |= {"items": 4 * items, "head_rows": head, "heat": head, "pages": 2 * len(pages)}
    counts |= dict.fromkeys(("views", "paid"), 4 * len(tables))
    image, places = _placed(counts)
    image[places["tokens"] :][:n] = rows.tokens[rows.first :]
    image[places["positions"] :][:n] = rows.positions[rows.first :]
    image[places["begin"] : places["chunks"]] = -1
    image[places["chunks"] :][:n] = chunks
    _number(image, places, rows.first, n, tile, chunks)
    if head:
        image[places["head_rows"] :][:head] = np.arange(n - head, n) if n > 1 else 0
        image[places["heat"] :][:head].view(np.float32)[:] = 1 / call.outputs.temperature
    image[places["pages"] :][: 2 * len(pages)].view(np.uint64)[:] = pages
    first = 0
    for i, table in enumerate(tables):
        image[places["views"] + 4 * i :][:4] = (table.start, 0, first, -1)
        image[places["paid"] + 4 * i :][:4] = (-1, 0, n, 0)
        first += len(table.pages)
    return ChainStep(image, places, items, head)


def _placed(counts: dict[str, int]) -> tuple[NDArray[np.int32], dict[str, int]]:
    """Zeros for arrays of so many int32, and where each begins."""
    places, at = dict.fromkeys(_EMPTY, _HEADER), _HEADER
    for name, count in counts.items():
        places[name] = at
        at += -(-count // _LINE) * _LINE
    return np.zeros(at, np.int32), places


def _number(image: NDArray[np.int32], places: dict[str, int], first: int, n: int, tile: int, chunks: int) -> None:
    """Rows by their number in the text, and by their place among the items of attention."""
    items = image[places["items"] :][: 4 * -(-n // tile) * chunks].reshape(-1, chunks, 4)
    items[:, :, 3] = np.arange(chunks) if chunks > 1 else 0
    if n == 1:
        image[places["at"]] = first
        items[0, :, 2] = 1
        return
    row = np.arange(n)
    image[places["at"] :][:n] = first + row
    image[places["part"] :][:n] = row // tile * chunks
    image[places["part_row"] :][:n] = row % tile
    starts = row[::tile]
    items[:, :, 1] = starts[:, None]
    items[:, :, 2] = np.minimum(tile, n - starts)[:, None]
