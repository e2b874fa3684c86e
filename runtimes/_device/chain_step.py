"""Fast path for the step of one sequence's chain of rows, as plain decoding runs it for every token. All arrays are
written at once, without those that only trees, batches, windows and cache policies need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtime import Call
from edgedec.runtimes._device.table import PageTable
from edgedec.spec import Attention, ModelSpec

# int32 of 16 bytes: arrays begin at multiples of these.
_LINE = 4
_HEADER = -(-structs.STEP.size // 16) * _LINE
# The arrays in the order of their memory here; those that a chain does not need are empty.
_EMPTY = ("path", "slot_positions", "given", "recurrent", "updates", "update_ends", "taps", "bounds", "plans")


def placed(block: Attention) -> bool:
    """Whether what the rows of a block see, or how they score it, depends on the positions of keys."""
    return bool(block.window or block.slopes)


def fits(calls: Sequence[Call], spec: ModelSpec, tables: Sequence[Sequence[PageTable]]) -> bool:
    """Whether the step is one chain of tokens in a model without windows, slopes and recurrent states."""
    if len(calls) != 1 or not tables or spec.recurrent or any(placed(b) for b in spec.attention.values()):
        return False
    call = calls[0]
    tokens = call.hidden is None and call.rows.embeddings is None
    return tokens and call.rows.is_chain and not call.outputs.attention


@dataclass(frozen=True)
class ChainStep:
    """image: room for the header and the arrays after it; places: offset of each array, in int32; items: attention
    items; head: rows of the head."""

    image: NDArray[np.int32]
    places: dict[str, int]
    items: int
    head: int

    @property
    def nbytes(self) -> int:
        return int(self.image.nbytes)

    def addresses(self, base: int, names: Sequence[str]) -> list[int]:
        """The addresses of the arrays if the image lies at `base`."""
        return [base + 4 * self.places[name] for name in names]


def chain_step(call: Call, tables: Sequence[PageTable], tile: int) -> ChainStep:
    """The arrays of a chain's step, as `StepMemory.write` makes them. tables: one per view."""
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
    """A zeroed image for arrays of the given numbers of int32, and the offset of each."""
    places, at = dict.fromkeys(_EMPTY, _HEADER), _HEADER
    for name, count in counts.items():
        places[name] = at
        at += -(-count // _LINE) * _LINE
    return np.zeros(at, np.int32), places


def _number(image: NDArray[np.int32], places: dict[str, int], first: int, n: int, tile: int, chunks: int) -> None:
    """Fill in the rows' positions in the text and their places among the attention items."""
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
