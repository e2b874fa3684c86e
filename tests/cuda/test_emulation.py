"""The emulation of a GPU reports the mistakes that a GPU would not: planted ones are found, by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from struct import pack

import numpy as np
import pytest

from edgedec.kernels.cuda import build, emulated
from edgedec.kernels.device.interface import Buffer, DeviceError

pytestmark = pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")
PLANTED = Path(__file__).with_name("planted.cu")
N = 64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("planted") / "planted.so"
    build.compile_emulation(out, sources=(PLANTED,))
    return out


def run(library: Path, kernel: str, reverse: bool) -> np.ndarray:
    """What a kernel makes of 64 floats."""
    device = emulated.Emulated(reverse, library)
    buffer, out = Buffer(device, 4 * N), np.zeros(N, np.float32)
    device.launch(kernel, (1, 1, 1), N, 4 * N, pack("@Pii", buffer.at, N, 0))
    device.read(buffer.at, out)
    return out


@pytest.mark.parametrize("reverse", [False, True])
def test_a_right_kernel_is_right_in_both_orders(library, reverse):
    assert run(library, "right", reverse).tolist() == list(range(N - 1, -1, -1))


def test_a_missing_barrier_shows_in_the_results(library):
    found = [run(library, "no_barrier", reverse) for reverse in (False, True)]
    right = np.arange(N - 1, -1, -1)
    assert not any(np.array_equal(one, right) for one in found)
    assert np.isnan(found[0]).any()  # shared memory is full of NaN


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kernel", "said"),
    [("divergent", "a lane is not in this collective"), ("missed_barrier", "threads ended before a barrier")],
)
def test_threads_that_do_not_meet_are_reported(library, kernel, said, reverse):
    line = next(i for i, text in enumerate(PLANTED.read_text("utf-8").splitlines(), 1) if f"({kernel}," in text)
    with pytest.raises(DeviceError, match=f"{kernel}, thread .*, line {line + 2}: {said}"):
        run(library, kernel, reverse)
    assert run(library, "right", reverse)[0] == N - 1  # the next launch is a new one


@pytest.mark.parametrize(
    ("kernel", "threads", "shared", "size", "said"),
    [
        ("unknown", N, 0, 16, "no such kernel"),
        ("right", N, 4 * N, 8, "arguments of another size"),
        ("right", 48, 4 * N, 16, "a number of threads that cannot be"),
        ("right", 96, 4 * N, 16, "a number of threads that cannot be"),
        ("right", N, 1 << 20, 16, "more shared memory than a block has"),
    ],
)
def test_launches_that_no_gpu_takes_are_refused(library, kernel, threads, shared, size, said):
    device = emulated.Emulated(library=library)
    with pytest.raises(DeviceError, match=said):
        device.launch(kernel, (1, 1, 1), threads, shared, bytes(size))


def test_recorded_launches_run_when_they_are_replayed(library):
    device = emulated.Emulated(library=library)
    buffer, out = Buffer.of(device, np.zeros(N, np.float32)), np.zeros(N, np.float32)
    arguments = pack("@Pii", buffer.at, N, 0)
    recorded = device.record(lambda: device.launch("right", (1, 1, 1), N, 4 * N, arguments))
    device.read(buffer.at, out)
    assert not out.any()
    recorded.replay()
    device.read(buffer.at, out)
    assert device.launches == 1
    assert out.any()


BOUNDS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_emulation import run
print(run(Path(sys.argv[1]), sys.argv[2], False)[0])
"""


@pytest.mark.parametrize("kernel", ["right", "out_of_bounds", "past_shared"])
def test_an_access_out_of_bounds_is_reported(tmp_path, kernel):
    compiler = shutil.which(os.environ.get("CXX", "c++")) or "c++"
    asan = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(asan).is_file():
        pytest.skip("no address sanitizer with this compiler")
    library = tmp_path / "planted.so"
    build.compile_emulation(library, "address", (PLANTED,))
    env = os.environ | {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-c", BOUNDS, str(library), kernel, str(PLANTED.parent)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if kernel == "right":
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode
        assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
        assert kernel in done.stderr
