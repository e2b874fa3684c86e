"""The pool of threads by itself, under sanitizers too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "cpu"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_threads_that_sleep_and_wake(tmp_path: Path, sanitize: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else ["-O2"]
    command = ["g++", "-std=c++17", *flags, f"-I{KERNELS}", HERE / "pool_test.cpp", "-pthread", "-o", tmp_path / "pool"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "san" in built.stderr:
        pytest.skip(f"no sanitizer {sanitize} here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "pool"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stderr


PROGRAM = """
#include <atomic>
#include <cstdio>
#include "pool.cpp"

int main() {
  edgedec::ThreadPool pool(64);
  std::atomic<long> sum{0};
  for (int round = 0; round < 100; round++)
    pool.parallel_for(1000, 10, [&](int begin, int end, int thread) {
      if (thread >= pool.size()) sum += 1000000000;
      for (int i = begin; i < end; i++) sum += i;
    });
  printf("%d %ld", pool.size(), sum.load());
}
"""


@pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="no g++ here, or other limits")
@pytest.mark.parametrize("room", [1, 3, 9])
def test_a_system_that_makes_no_more_threads(tmp_path: Path, room: int) -> None:
    """A pool of those that could be made does all of the work: each wants 1 GiB for its stack, and there is `room`."""
    import resource

    (tmp_path / "few.cpp").write_text(PROGRAM)
    command = ["g++", "-std=c++17", "-O1", f"-I{KERNELS}", tmp_path / "few.cpp", "-pthread", "-o", tmp_path / "few"]
    subprocess.run(command, check=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, ((room << 30) + (200 << 20),) * 2)

    done = subprocess.run([tmp_path / "few"], preexec_fn=limit, capture_output=True, text=True, timeout=60)
    threads, total = map(int, done.stdout.split())
    assert threads == 1 + room
    assert total == 100 * 499500
