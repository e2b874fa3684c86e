"""simd/wasm.h: a multiply-add that rounds once, made of doubles, and float16, against the C library and numpy."""

from __future__ import annotations

import ctypes
import ctypes.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from weblibrary import NODE, ROOT, needs_web

pytestmark = needs_web
HERE = Path(__file__).parent
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fma") / "fma.wasm"
    exports = [f"-Wl,--export={name}" for name in ("fma_all", "halves_all", "to_halves_all")]
    flags = ["-target", "wasm32-wasi", "-msimd128", "-O2", "-std=c++17", "-ffp-contract=off", "-mexec-model=reactor"]
    command = [sys.executable, "-m", "ziglang", "c++", *flags, *exports]
    command += [f"-I{ROOT / 'kernels' / 'cpu'}", str(HERE / "fma_check.cpp"), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def run(module: Path, name: str, dtype: type, n: int, *inputs: NDArray[np.generic]) -> NDArray[np.generic]:
    files = []
    for i, array in enumerate(inputs):
        files.append(module.with_name(f"{i}.bin"))
        array.tofile(files[-1])
    size = n * np.dtype(dtype).itemsize
    out = module.with_name("out.bin")
    command = [str(NODE), HERE / "numbers.mjs", module, name, str(size), str(n), out, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, dtype)


def exact(a: Floats, b: Floats, c: Floats) -> Floats:
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return np.array([fmaf(x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist())], np.float32)


def cases(seed: int, n: int) -> tuple[Floats, Floats, Floats]:
    """Random bits, sums that lie halfway between two floats or next to that, and results around the smallest floats."""
    r = np.random.default_rng(seed)
    a, b, c = (r.integers(0, 1 << 32, n, np.uint32).view(np.float32).copy() for _ in range(3))
    third = n // 3
    # An odd number of 25 bits as a sum is halfway; the product adds or takes next to nothing.
    whole = (r.integers(1 << 24, 1 << 25, third) | 1).astype(np.float64)
    part = 2.0 ** r.integers(-60, 1, third) * r.choice([-1, 0, 1, 3], third)
    odd = r.integers(0, 1 << 12, third) * 2 + 1
    c[:third] = whole - 1
    a[:third], b[:third] = odd, (1 / odd).astype(np.float32)
    c[third // 2 : third], a[third // 2 : third] = part[third // 2 :], whole[third // 2 :] // odd[third // 2 :]
    b[third // 2 : third] = odd[third // 2 :]
    tiny = slice(third, 2 * third)
    a[tiny] = r.normal(size=third) * 2.0 ** r.integers(-80, -60, third)
    b[tiny] = r.normal(size=third) * 2.0 ** r.integers(-80, -60, third)
    c[tiny] = r.normal(size=third) * 2.0 ** r.integers(-149, -120, third)
    return a, b, c


def test_multiply_adds_round_once(module: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("needs the C library's fmaf")
    n = 240_000
    a, b, c = cases(1, n)
    with np.errstate(all="ignore"):
        want = exact(a, b, c)
        twice = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    got = run(module, "fma_all", np.float32, n, a, b, c).view(np.float32)
    nan = np.isnan(want)
    assert np.isnan(got[nan]).all()
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))
    # The cases are hard enough: rounding twice, or not fusing at all, would be seen.
    assert (twice[~nan] != want[~nan]).sum() > 10
    with np.errstate(all="ignore"):
        assert ((a * b + c)[~nan] != want[~nan]).mean() > 0.05


def test_halves(module: Path) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    got, want = run(module, "halves_all", np.uint32, 1 << 16, every), every.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    assert np.array_equal(got[~nan], want[~nan].view(np.uint32))
    assert np.array_equal(got[nan], want[nan].view(np.uint32) | 0x400000)
    r = np.random.default_rng(2)
    floats = r.integers(0, 1 << 32, 1 << 18, np.uint32)
    floats[: 1 << 17] = (
        (r.normal(size=1 << 17) * 2.0 ** r.integers(-28, 17, 1 << 17)).astype(np.float32).view(np.uint32)
    )
    floats[: 1 << 15] = (want[: 1 << 15].view(np.uint32).astype(np.int64) + r.integers(-1, 2, 1 << 15)).clip(0)
    with np.errstate(all="ignore"):
        halves = floats.view(np.float32).astype(np.float16)
    made = run(module, "to_halves_all", np.uint16, len(floats), floats)
    known = ~np.isnan(halves)
    assert np.array_equal(made[known], halves.view(np.uint16)[known])
