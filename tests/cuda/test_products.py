"""Products with zero points and blocks of every size, by dot products and by tensor cores, against numpy in the order
of kernels/cpu/kernels.h."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.bundle.integers import BITS, packed, stands_for_zero, step_of, values
from edgedec.bundle.interleave import pack
from edgedec.kernels.cuda import emulated
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import WIDE, Buffer
from edgedec.kernels.device.structs import DeviceWeights, Prepared, Product

pytestmark = pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Through long doubles: rounded once to float32, but for halfway cases of no consequence here."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


class Problem:
    """Weights [n, k] with zero points or without, rows [m, k] made ready, and their product."""

    def __init__(self, fmt: str, n: int, k: int, block: int, m: int, zeros: bool) -> None:
        rng = np.random.default_rng(n + k + m)
        top, self.fmt, self.block, self.m = 1 << BITS[fmt], fmt, block, m
        self.blocks, self.kpad, self.step = -(-k // block), -(-k // block) * block, 16 if block == 16 else 32
        self.w = rng.integers(0, top, (n, self.kpad), np.uint8)
        self.scales = (rng.random((n, self.blocks)) * 0.01 + 0.001).astype(np.float16)
        self.zeros = rng.integers(0, top, (n, self.blocks), np.uint8) if zeros else None
        self.q = rng.integers(-127, 128, (m, self.kpad)).astype(np.int8)
        self.x_scale = (rng.random((m, self.kpad // self.step)) * 0.1).astype(np.float32)
        self.sums = self.q.reshape(m, -1, self.step).sum(axis=2, dtype=np.int32)
        self.n, self.k = n, k

    def expected(self) -> np.ndarray:
        middle = stands_for_zero(self.fmt)
        in_steps = self.zeros is not None and self.fmt == "int4"
        zero = np.repeat(self.zeros, self.block, axis=1).astype(np.int64) if in_steps else middle
        parts = np.einsum(
            "mti,nti->tmn",
            self.q.reshape(self.m, -1, self.step).astype(np.int64),
            (self.w.astype(np.int64) * step_of(self.fmt) - zero).reshape(self.n, -1, self.step),
        ).astype(np.float32)
        by_block = self.zeros is not None and not in_steps
        return self._added_by_block(parts, middle) if by_block else self._added(parts)

    def _added(self, parts: np.ndarray) -> np.ndarray:
        acc, each = np.zeros((self.m, self.n), np.float32), self.block // self.step
        for t, part in enumerate(parts):
            scale = self.scales[:, t // each].astype(np.float32)[None]
            acc = fma(part, scale * self.x_scale[:, t : t + 1], acc)
        return acc

    def _added_by_block(self, parts: np.ndarray, middle: int) -> np.ndarray:
        acc, each = np.zeros((self.m, self.n), np.float32), self.block // self.step
        sums = self.block_sums()
        for b in range(self.blocks):
            of_block = (middle - self.zeros[:, b].astype(np.float32))[None] * sums[:, b : b + 1]
            for t in range(b * each, (b + 1) * each):
                of_block = fma(parts[t], self.x_scale[:, t : t + 1], of_block)
            acc = fma(self.scales[:, b].astype(np.float32)[None], of_block, acc)
        return acc

    def block_sums(self) -> np.ndarray:
        parts = (self.x_scale * self.sums.astype(np.float32)).reshape(self.m, self.blocks, -1)
        total = np.zeros((self.m, self.blocks), np.float32)
        for i in range(parts.shape[2]):
            total = total + parts[:, :, i]
        return total

    def run(self, device: emulated.Emulated, kernel: str, tile: int) -> np.ndarray:
        held = [Buffer.of(device, array) for array in self._arrays()]
        at = [buffer.at for buffer in held]
        zeros = at[2] if self.zeros is not None else 0
        w = DeviceWeights(at[0], at[1], zeros, structs.FORMATS[self.fmt], self.n, self.k, self.block)
        out = Buffer(device, 4 * self.m * self.n)
        step = Buffer.of(device, np.frombuffer(structs.STEP.pack(*[0] * 21, self.m, 0, 0, 1, 0, 0, 0, 0, 0), np.uint8))
        p = Product(w, out.at, self.n, a=Prepared(at[3], at[4], at[5], at[6]))
        wide = kernel.startswith("matrix")
        grid = (
            (-(-self.n // structs.MATRIX_OUTPUTS), -(-self.m // 64), 1)
            if wide
            else (-(-self.n // 16), -(-self.m // tile), 1)
        )
        shared = structs.MATRIX_BYTES if wide else WIDE.product + tile * WIDE.product_row
        device.launch(kernel, grid, 256, shared, p.pack(step.at))
        found = np.full((self.m, self.n), np.nan, np.float32)
        device.read(out.at, found)
        return found

    def _arrays(self) -> list[np.ndarray]:
        nibbles = self.fmt == "int4"
        data = packed(self.w, self.fmt)
        order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
        q = self.q.reshape(self.m, -1, 8)[:, :, order].reshape(self.m, -1) if nibbles else self.q
        zeros = np.zeros((self.n, self.blocks), np.uint8) if self.zeros is None else self.zeros
        points = pack(zeros, 0)
        if nibbles:
            points = points[..., :8] | points[..., 8:] << 4
        words = np.ascontiguousarray(data).view(np.uint32)
        scales = pack(self.scales.view(np.uint16), 0)
        arrays = [pack(words, 0), scales, points, q, self.x_scale, self.sums, self.block_sums()]
        return [np.ascontiguousarray(array) for array in arrays]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("fmt", ["int4", "int8"])
@pytest.mark.parametrize(
    ("kernel", "tile", "n", "k", "block", "m"),
    [
        ("product", 1, 40, 320, 32, 1),
        ("product", 2, 32, 128, 64, 3),
        ("product", 4, 20, 2176, 128, 4),  # more steps than fit at once
        ("product", 8, 48, 100, 16, 13),
        ("matrix", 0, 88, 352, 32, 70),
        ("matrix", 0, 64, 256, 128, 33),
    ],
)
def test_products_are_in_the_order_of_the_cpu(fmt, zeros, kernel, tile, n, k, block, m):
    if zeros and block == 16:
        block = 32  # zero points come with blocks of 32 or more
    problem = Problem(fmt, n, k, block, m, zeros)
    name = f"{kernel}_{fmt}" + (f"_{tile}" if tile else "_zeros" if zeros else "")
    found, expected = problem.run(emulated.Emulated(), name, tile), problem.expected()
    assert np.isfinite(found).all()
    assert np.abs(expected).max() > 1
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("fmt", ["int3", "int2"])
@pytest.mark.parametrize(
    ("kernel", "tile", "n", "k", "block", "m"),
    [
        ("product", 1, 40, 320, 32, 1),
        ("product", 2, 32, 128, 64, 3),
        ("product", 4, 20, 2176, 128, 4),
        ("product", 8, 48, 300, 256, 13),
        ("matrix", 0, 88, 352, 32, 70),
        ("matrix", 0, 40, 200, 64, 33),
        ("matrix", 0, 64, 256, 256, 65),
    ],
)
def test_products_of_planes_are_in_the_order_of_the_cpu(fmt, kernel, tile, n, k, block, m):
    problem = Problem(fmt, n, k, block, m, False)
    found = problem.run(emulated.Emulated(), f"{kernel}_{fmt}" + (f"_{tile}" if tile else ""), tile)
    assert np.abs(problem.expected()).max() > 1
    assert found.tobytes() == problem.expected().tobytes()


@pytest.mark.parametrize("fmt", ["int3", "int2"])
@pytest.mark.parametrize("block", [32, 64, 128, 256])
@pytest.mark.parametrize(("kernel", "tile"), [("product", 8), ("matrix", 0)])
def test_every_code_of_a_plane_is_read_where_it_lies(fmt, block, kernel, tile):
    """Rows with a single 1 read the weights one by one: all codes at every place of a block, the least and the most in
    whole rows."""
    codes = 1 << BITS[fmt]
    problem = Problem(fmt, codes + 2, block, block, block, False)
    problem.w = (np.arange(block)[None] + np.arange(codes + 2)[:, None]).astype(np.uint8) % codes
    problem.w[-2:] = [[0], [codes - 1]]
    problem.q = np.eye(block, dtype=np.int8)
    problem.sums = problem.q.reshape(block, -1, 32).sum(axis=2, dtype=np.int32)
    problem.scales[:], problem.x_scale[:] = 1, 1
    found = problem.run(emulated.Emulated(), f"{kernel}_{fmt}" + (f"_{tile}" if tile else ""), tile)
    assert sorted(set(found.ravel())) == ([-4, -3, -2, -1, 0, 1, 2, 3] if fmt == "int3" else [-3, -1, 1, 3])
    np.testing.assert_array_equal(found.T, values(problem.w, fmt))


@pytest.mark.parametrize("fmt", ["int3", "int2"])
@pytest.mark.parametrize(("kernel", "tile"), [("product", 4), ("matrix", 0)])
def test_the_largest_sums_of_planes_are_whole(fmt, kernel, tile):
    problem = Problem(fmt, 32, 64, 32, 4, False)
    problem.w[:] = np.where(np.arange(32)[:, None] % 2, (1 << BITS[fmt]) - 1, 0)
    problem.q[:] = np.array([127, -127, -128, 127], np.int8)[:, None]
    problem.sums = problem.q.reshape(4, -1, 32).sum(axis=2, dtype=np.int32)
    found = problem.run(emulated.Emulated(), f"{kernel}_{fmt}" + (f"_{tile}" if tile else ""), tile)
    assert found.tobytes() == problem.expected().tobytes()


def test_the_order_of_the_sums_matters():
    """The oracle is no reordering away from passing: summed the other way round it has other bytes."""
    problem = Problem("int4", 32, 512, 32, 4, False)
    other = Problem("int4", 32, 512, 32, 4, False)
    for name in ("w", "q", "x_scale", "sums", "scales"):
        setattr(other, name, np.ascontiguousarray(getattr(problem, name)[:, ::-1]))
    assert np.allclose(problem.expected(), other.expected(), atol=1e-3)
    assert problem.expected().tobytes() != other.expected().tobytes()
