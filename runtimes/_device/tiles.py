"""Tile sizes of attention that fit in shared memory. The results do not depend on them, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import NARROW, Device
from edgedec.spec import Attention


def attend_bytes(queries: int, dim: int, row_bytes: int, keys: int) -> int:
    """Bytes of shared memory of a thread block: queries, scores and sums, a tile of keys and their factors."""
    floats = queries * (-(-dim // 16) * 16 + structs.CHUNK + dim) + keys
    return 4 * floats + keys * row_bytes


def most_rows(blocks: Mapping[int, Attention], row_bytes: Mapping[int, int], shared: int) -> int:
    """The most rows of a sequence that may share an attention item in all of these blocks."""
    most = min((structs.MOST_QUERIES // group_of(block) for block in blocks.values()), default=structs.MOST_QUERIES)
    for number, block in blocks.items():
        while (
            most > 1 and attend_bytes(most * group_of(block), block.head_dim, row_bytes[number], NARROW.keys) > shared
        ):
            most -= 1
    return max(1, most)


def keys_at_once(queries: int, dim: int, row_bytes: int, shared: int, most: int = NARROW.keys) -> int:
    """The number of keys, `most` or fewer, that fit in shared memory after the queries; 0 if none does."""
    keys = most
    while keys and attend_bytes(queries, dim, row_bytes, keys) > shared:
        keys //= 2
    return keys


def group_of(block: Attention) -> int:
    """The number of query heads per kv head."""
    return block.n_heads // block.n_kv_heads


def check_fits(device: Device, blocks: Iterable[tuple[Attention, int]], kv: str) -> None:
    """RuntimeUnavailable if a row of one of these blocks, whose keys have so many bytes, does not fit the device."""
    for block, row_bytes in blocks:
        group, dim, shared = group_of(block), block.head_dim, device.shared_bytes
        if not keys_at_once(group, dim, row_bytes, shared):
            need = attend_bytes(group, dim, row_bytes, 1)
            raise RuntimeUnavailable(
                f"{device.name}: attention of {group} heads of {dim} values with a cache of {kv} needs {need:,} bytes "
                f"of memory that a work-group shares, of {shared:,}; use another device, as --device cpu"
            )
