"""Where everything in a weights file lies, as a manifest says."""

from __future__ import annotations

from collections.abc import Iterator

from edgedec.bundle.integers import is_integer, low_bits, together
from edgedec.bundle.manifest import SUPER, Manifest, Tensor
from edgedec.errors import BundleCorrupt

_WITH_OFFSETS, _WITH_PARTS, _OF_32 = ("int8", "int4", "int5"), ("int3", "int6", "uint2"), ("int5", "nl4", "mx4")

_LONGEST_ROW = 131072  # inputs whose integer sums of products 32 bits hold


def extents(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    """(name, offset, bytes) of everything in the weights file."""
    spec = manifest.spec
    for name, tensor in manifest.tensors.items():
        if is_integer(tensor.format):
            if not _has_blocks(tensor) or name not in spec.matrices:
                raise BundleCorrupt(f"tensor {name}: block {tensor.block} of shape {tensor.shape}")
            yield f"{name} (scales)", tensor.scales, tensor.scale_bytes
            if tensor.zeros and (low_bits([tensor.format]) or tensor.block < 32 or name == "embed"):
                raise BundleCorrupt(f"tensor {name}: {tensor.format} with zero points in blocks of {tensor.block}")
            if tensor.zeros:
                yield f"{name} (zeros)", tensor.zeros, tensor.zero_bytes
            if tensor.offsets and (tensor.zeros or tensor.block != 32 or tensor.format not in _WITH_OFFSETS):
                raise BundleCorrupt(f"tensor {name}: {tensor.format} with offsets in blocks of {tensor.block}")
            if tensor.offsets:
                yield f"{name} (offsets)", tensor.offsets, tensor.offset_bytes
            if tensor.parts:
                yield f"{name} (parts)", tensor.parts, tensor.part_bytes
            if tensor.row_scales and not _may_have_row_scales(tensor):
                raise BundleCorrupt(f"tensor {name}: {tensor.format} in blocks of {tensor.block} with scales of rows")
        elif tensor.zeros or tensor.offsets or tensor.parts or tensor.row_scales:
            raise BundleCorrupt(f"tensor {name}: {tensor.format} with zero points, offsets, parts or scales of rows")
        elif tensor.layout != "rows":
            raise BundleCorrupt(f"tensor {name}: {tensor.format} in the layout {tensor.layout}")
        yield name, tensor.data, tensor.data_bytes
    if len(manifest.ropes) != len(spec.ropes):
        raise BundleCorrupt("ropes: not one table for each rope of the spec")
    for i, (pair, rope) in enumerate(zip(manifest.ropes, spec.ropes, strict=True)):
        if len(pair) != 2:
            raise BundleCorrupt(f"ropes[{i}]: expected a cos and a sin offset")
        for offset in pair:
            yield f"rope {i}", offset, 4 * spec.positions * len(rope.inv_freq)
    for kv in manifest.kv_formats:
        if kv in ("int8", "int4"):
            offset = getattr(manifest.kv_scales, kv)
            if offset is None:
                raise BundleCorrupt(f"kv_scales.{kv}: missing")
            yield f"kv_scales.{kv}", offset, sum(4 * block.kv_parts * block.kv_dim for block in spec.attention.values())


def _may_have_row_scales(tensor: Tensor) -> bool:
    plain = tensor.format == "int8" and tensor.block == 32 and not tensor.zeros and not tensor.offsets
    return plain and tensor.shape[-1] <= _LONGEST_ROW


def _has_blocks(tensor: Tensor) -> bool:
    """Whether the format has blocks of this size, with parts of scales or without."""
    if tensor.parts:
        whole = tensor.block == 16 and tensor.shape[-1] % SUPER == 0
        return whole and tensor.format in _WITH_PARTS and not tensor.zeros and not tensor.offsets
    if tensor.format in _OF_32:
        return tensor.block == 32
    known = tensor.block in (16, 32, 64, 128, 256) and tensor.format not in ("int6", "uint2")
    return known and tensor.block % together(tensor.format) == 0
