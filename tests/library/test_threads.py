"""Where the threads of libedgedec run, and what they give up: priority, the fastest cores, working memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clibrary import builder, library, library_file, needs_compiler, opened

pytestmark = [needs_compiler, pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")]
PROMPT = [12, 375, 278, 259]
# Of a phone with four slow and four fast cores, as Linux describes one: the program's own fopen() says so. Prints the
# priority and the cores of every thread but its own.
PHONE = r"""
#include <dirent.h>
#include <dlfcn.h>
#include <edgedec.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
static int fastest;
extern "C" FILE* fopen(const char* path, const char* mode) {
  int core;
  char text[16];
  auto real = (FILE* (*)(const char*, const char*))dlsym(RTLD_NEXT, "fopen");
  if (sscanf(path, "/sys/devices/system/cpu/cpu%d/", &core) != 1) return real(path, mode);
  if (!strstr(path, "cpu_capacity")) return nullptr;
  FILE* out = tmpfile();
  snprintf(text, sizeof text, "%d", core == fastest ? 1024 : 400);
  fputs(text, out), rewind(out);
  return out;
}
int main(int, char** argv) {
  cpu_set_t own;
  sched_getaffinity(0, sizeof own, &own);
  for (int i = 0; i < CPU_SETSIZE; i++) if (CPU_ISSET(i, &own)) fastest = i;
  edgedec_model* model;
  edgedec_open_options options;
  edgedec_open_options_init(&options, sizeof options);
  options.threads = 3, options.big_cores = atoi(argv[2]), options.priority = atoi(argv[3]);
  if (edgedec_open(argv[1], &options, &model)) return puts(edgedec_last_error()), 1;
  DIR* tasks = opendir("/proc/self/task");
  while (dirent* each = readdir(tasks)) {
    const int id = atoi(each->d_name);
    cpu_set_t set;
    if (!id || id == getpid() || sched_getaffinity(id, sizeof set, &set)) continue;
    printf("%d %d %d\n", getpriority(PRIO_PROCESS, id), CPU_COUNT(&set), CPU_ISSET(fastest, &set) ? 1 : 0);
  }
  return closedir(tasks), edgedec_close(model), 0;
}
"""


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phone")
    (folder / "phone.cpp").write_text(PHONE)
    made: Path = builder().build(folder / "phone", mains=[folder / "phone.cpp"], jobs=2, link=["-ldl", "-rdynamic"])
    return made


@pytest.mark.parametrize(("big_cores", "priority"), [(0, 0), (1, 0), (0, 3), (1, 5)])
def test_priority_and_the_fastest_cores(phone: Path, nano: Path, big_cores: int, priority: int) -> None:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("one core")
    base = os.getpriority(os.PRIO_PROCESS, 0)
    if base > 14:
        pytest.skip("this process has nearly the lowest priority")
    wanted = base + priority if priority else 0  # a lower number than one's own is refused
    shown = subprocess.check_output([phone, nano, str(big_cores), str(wanted)], text=True).splitlines()
    threads = [tuple(map(int, line.split())) for line in shown]
    assert len(threads) == 2  # the third is the caller's own
    assert {nice for nice, *_ in threads} == {wanted or base}
    assert {many for _, many, _ in threads} == ({1} if big_cores else {cores})
    assert all(fast for *_, fast in threads)


GROWN = """
import ctypes, sys
from clibrary import library, opened
class Used(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks f k"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Used
def used():
    "What is allocated, in malloc's heap and in mappings: pages are cut from mappings of their own."
    mapped = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    return mapped - libc.mallinfo2().arena + libc.mallinfo2().uordblks
model = opened(sys.argv[1], threads=1)
session, other = model.session(), model.session()
other.prefill([5]), session.prefill([7, 8, 9])
small, before = used(), session.logits()
long = model.session()
long.prefill([5, 6] * 400)
del long
grown = used()
library().check("trim", model.handle)
trimmed = used()
other.step(3)
third = model.session()
third.prefill([7, 8, 9])
assert third.logits() == before
print(small, grown, trimmed)
"""


def test_trim_gives_up_memory(nano: Path) -> None:
    """Of a session of 800 tokens that has ended: its pages and the working memory of its calls. What is computed
    afterwards has the same bytes."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "EDGEDEC_LIBRARY": str(library_file())}
    command = [sys.executable, "-c", GROWN, nano]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if "mallinfo2" in done.stderr:
        pytest.skip("no mallinfo2 in this C library")
    assert done.returncode == 0, done.stderr
    small, grown, trimmed = map(int, done.stdout.split())
    assert grown - small > 4_000_000
    assert trimmed < small + (grown - small) / 8


def test_trim_while_others_compute(nano: Path) -> None:
    """Nothing waits, and no call notices."""
    model = opened(nano, threads=2)
    want = model.session().generate(PROMPT, max_tokens=120, ignore_eos=1)
    got: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: got.append(model.session().generate(PROMPT, max_tokens=120, ignore_eos=1)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    trims = 0
    while any(thread.is_alive() for thread in threads):
        library().check("trim", model.handle)
        trims += 1
    for thread in threads:
        thread.join()
    assert trims > 3
    assert got == [want] * 3
