"""Where everything in a weights file lies: the sizes of each format by hand, and which facts go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.bundle.extents import extents
from edgedec.bundle.manifest import KVScales, Manifest, Tensor
from edgedec.errors import BundleCorrupt
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytest.importorskip("onnx", reason="bundles are written with onnx")

MATRIX, VECTOR = "blocks.0.qkv", "final_norm"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    spec = MODELS["plain"]
    return write_bundle(tmp_path_factory.mktemp("extents") / "b", spec, random_weights(spec)).manifest


def of(manifest: Manifest, name: str, **facts: Any) -> list[tuple[str, int, int]]:
    """What lies in the file for one tensor."""
    found = extents(replace(manifest, tensors={name: Tensor(**facts)}))
    return [(part, offset, size) for part, offset, size in found if part.startswith(name)]


# (format, shape, block, what else) -> bytes of the data, of the scales, and of what else there is.
SIZES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"format": "int8", "shape": (20, 64), "block": 32}, {"": 20 * 64, " (scales)": 20 * 2 * 2}),
    # Three blocks, of which the last is filled up.
    ({"format": "int4", "shape": (20, 70), "block": 32}, {"": 20 * 3 * 16, " (scales)": 20 * 3 * 2}),
    ({"format": "int3", "shape": (4, 64), "block": 64}, {"": 4 * 24, " (scales)": 4 * 2}),
    ({"format": "int2", "shape": (4, 64), "block": 32}, {"": 4 * 16, " (scales)": 4 * 2 * 2}),
    ({"format": "int5", "shape": (4, 64), "block": 32}, {"": 4 * 2 * 20, " (scales)": 4 * 2 * 2}),
    ({"format": "nl4", "shape": (4, 64), "block": 32}, {"": 4 * 2 * 16, " (scales)": 4 * 2 * 2}),
    # Rows are filled up to 32.
    (
        {"format": "int8", "shape": (20, 64), "block": 32, "layout": "interleave16", "zeros": 640},
        {"": 32 * 64, " (scales)": 32 * 2 * 2, " (zeros)": 32 * 2},
    ),
    # Two zero points of three blocks in a byte: two bytes a row; interleaved, one and a half.
    (
        {"format": "int4", "shape": (20, 96), "block": 32, "zeros": 640},
        {"": 20 * 48, " (scales)": 20 * 3 * 2, " (zeros)": 20 * 2},
    ),
    (
        {"format": "int4", "shape": (20, 96), "block": 32, "layout": "interleave16", "zeros": 640},
        {"": 32 * 48, " (scales)": 32 * 3 * 2, " (zeros)": 32 * 3 // 2},
    ),
    (
        {"format": "int5", "shape": (4, 64), "block": 32, "offsets": 640},
        {"": 4 * 2 * 20, " (scales)": 4 * 2 * 2, " (offsets)": 4 * 2 * 2},
    ),
    (
        {"format": "int6", "shape": (4, 512), "block": 16, "parts": 640},
        {"": 4 * 32 * 12, " (scales)": 4 * 2 * 2, " (parts)": 4 * 32},
    ),
    (
        {"format": "uint2", "shape": (4, 512), "block": 16, "parts": 640},
        {"": 4 * 32 * 4, " (scales)": 4 * 2 * 2 * 2, " (parts)": 4 * 32},
    ),
    ({"format": "f32", "shape": (4, 6)}, {"": 96}),
    ({"format": "f16", "shape": (4, 6)}, {"": 48}),
]


@pytest.mark.parametrize(("facts", "sizes"), SIZES, ids=[f"{f['format']} {f.get('layout', '')}" for f, _ in SIZES])
def test_the_bytes_of_a_tensor(manifest: Manifest, facts: dict[str, Any], sizes: dict[str, int]) -> None:
    found = of(manifest, MATRIX, data=64, **facts, **({} if len(sizes) == 1 else {"scales": 320}))
    at = {"": 64, " (scales)": 320, " (zeros)": 640, " (offsets)": 640, " (parts)": 640}
    assert sorted(found) == sorted((MATRIX + part, at[part], size) for part, size in sizes.items())


# What docs/bundle-format.md names for each: all that is, and its nearest neighbours that are not.
INT8, INT4 = {"format": "int8", "shape": (4, 512), "block": 32}, {"format": "int4", "shape": (4, 512), "block": 32}
SIXTEEN = {"shape": (4, 512), "block": 16, "parts": 640}
GOOD: list[dict[str, Any]] = [
    *({"format": fmt, "shape": (4, 512), "block": n} for fmt in ("int8", "int4") for n in (16, 32, 64, 128, 256)),
    *({"format": fmt, "shape": (4, 512), "block": n} for fmt in ("int3", "int2") for n in (32, 64, 128, 256)),
    *({"format": fmt, "shape": (4, 512), "block": 32} for fmt in ("int5", "nl4", "mx4")),
    *(SIXTEEN | {"format": fmt} for fmt in ("int3", "int6", "uint2")),
    *(whole | {"zeros": 640, "block": n} for whole in (INT8, INT4) for n in (32, 256)),
    *({"format": fmt, "shape": (4, 512), "block": 32, "offsets": 640} for fmt in ("int8", "int4", "int5")),
    INT8 | {"row_scales": True},
    INT8 | {"row_scales": True, "shape": (4, 131072)},
]
BAD: list[tuple[dict[str, Any], str]] = [
    *((whole | {"block": n}, f"block {n} of shape") for whole in (INT8, INT4) for n in (0, 8, 48, 512)),
    *(({"format": fmt, "shape": (4, 512), "block": 16}, "block 16 of") for fmt in ("int3", "int2", "int6", "uint2")),
    *(({"format": fmt, "shape": (4, 512), "block": n}, "block") for fmt in ("int6", "uint2") for n in (32, 256)),
    *(({"format": fmt, "shape": (4, 512), "block": n}, "block") for fmt in ("int5", "nl4", "mx4") for n in (16, 64)),
    *((SIXTEEN | {"format": fmt}, "block 16 of") for fmt in ("int8", "int4", "int2", "int5")),
    (SIXTEEN | {"format": "int6", "block": 32}, "block 32 of"),
    (SIXTEEN | {"format": "int6", "shape": (4, 384)}, "block 16 of"),
    (SIXTEEN | {"format": "int6", "offsets": 960}, "block 16 of"),
    (SIXTEEN | {"format": "int6", "zeros": 960}, "block 16 of"),
    (INT8 | {"zeros": 640, "block": 16}, "int8 with zero points in blocks of 16"),
    *(({"format": fmt, "shape": (4, 64), "block": 32, "zeros": 640}, "zero points") for fmt in ("int3", "int5", "nl4")),
    (INT8 | {"zeros": 640, "offsets": 960}, "int8 with offsets in blocks of 32"),
    (INT8 | {"offsets": 640, "block": 64}, "int8 with offsets in blocks of 64"),
    *(({"format": fmt, "shape": (4, 64), "block": 32, "offsets": 640}, "offsets in") for fmt in ("int3", "nl4", "mx4")),
    *(({"format": "f32", "shape": (4, 64), what: 640}, "f32 with zero") for what in ("zeros", "offsets", "parts")),
    ({"format": "f16", "shape": (4, 64), "layout": "interleave16"}, "f16 in the layout interleave16"),
    (INT4 | {"row_scales": True}, "int4 in blocks of 32 with scales of rows"),
    *((INT8 | {"row_scales": True, what: 640}, "with scales of rows") for what in ("zeros", "offsets")),
    (INT8 | {"row_scales": True, "block": 64}, "int8 in blocks of 64 with scales of rows"),
    (INT8 | {"row_scales": True, "shape": (4, 131104)}, "with scales of rows"),
    ({"format": "f32", "shape": (4, 64), "row_scales": True}, "f32 with zero points, offsets, parts or scales of rows"),
]


@pytest.mark.parametrize("facts", GOOD, ids=[str(facts) for facts in GOOD])
def test_what_goes_together(manifest: Manifest, facts: dict[str, Any]) -> None:
    assert of(manifest, MATRIX, data=64, scales=320, **facts)


@pytest.mark.parametrize(("facts", "words"), BAD, ids=[str(facts) for facts, _ in BAD])
def test_what_does_not_go_together_is_refused(manifest: Manifest, facts: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=f"tensor {MATRIX}: .*{words}"):
        of(manifest, MATRIX, data=64, scales=320, **facts)


def test_only_matrices_are_quantized_and_the_embedding_has_no_zero_points(manifest: Manifest) -> None:
    assert of(manifest, "embed", data=64, scales=320, **INT8)
    with pytest.raises(BundleCorrupt, match=f"tensor {VECTOR}: block 32"):
        of(manifest, VECTOR, data=64, scales=320, **INT8)
    with pytest.raises(BundleCorrupt, match="tensor embed: int8 with zero points"):
        of(manifest, "embed", data=64, scales=320, zeros=640, **INT8)


def test_ropes_and_scales_of_the_cache(manifest: Manifest) -> None:
    """Two ropes of 16 and of 8 pairs, 384 positions; three layers of two heads of 32 values, keys and values."""
    placed = replace(manifest, tensors={}, ropes=((64, 128), (192, 256)), kv_scales=KVScales(int8=320, int4=384))
    ropes = [("rope 0", at, 4 * 384 * 16) for at in (64, 128)] + [("rope 1", at, 4 * 384 * 8) for at in (192, 256)]
    scales = {kv: (f"kv_scales.{kv}", at, 4 * 3 * 2 * 2 * 32) for kv, at in (("int8", 320), ("int4", 384))}
    for formats, names in (
        (("f32", "f16"), []),
        (("int8",), ["int8"]),
        (("int4", "f32"), ["int4"]),
        (("int8", "int4"), ["int8", "int4"]),
    ):
        found = list(extents(replace(placed, kv_formats=formats)))
        assert found == [*ropes, *(scales[name] for name in names)]
    with pytest.raises(BundleCorrupt, match="not one table for each rope"):
        list(extents(replace(placed, ropes=((64, 128),))))
    with pytest.raises(BundleCorrupt, match=r"ropes\[1\]: expected a cos and a sin offset"):
        list(extents(replace(placed, ropes=((64, 128), (192,)))))
    with pytest.raises(BundleCorrupt, match=r"kv_scales\.int4: missing"):
        list(extents(replace(placed, kv_formats=("int8", "int4"), kv_scales=KVScales(int8=320))))
