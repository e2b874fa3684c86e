"""Sessions of libedgedec: forks, files that Python reads and writes too, memory limits, prefixes; steady steps."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clibrary import LIBRARY, builder, c, library, library_file, needs_compiler, opened

import edgedec
from edgedec.errors import SessionError
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

PROMPT = [12, 375, 278, 259]
DRAWN = {"temperature": 1.0, "repetition_penalty": 1.1}


def test_forks_go_their_own_ways(nano: Path) -> None:
    model = opened(nano)
    session = model.session()
    session.generate(PROMPT * 30, max_tokens=5, seed=1, **DRAWN)
    fork = session.fork()
    before = model.memory.cache_bytes
    assert fork.ids == session.ids
    assert fork.cached == session.cached
    want = model.session()
    want.generate(PROMPT * 30, max_tokens=5, seed=1, **DRAWN)
    rest = want.generate(None, max_tokens=20, **DRAWN)
    assert session.generate(None, max_tokens=20, **DRAWN) == rest == fork.generate(None, max_tokens=20, **DRAWN)
    fork.generate(PROMPT, max_tokens=1)
    assert session.ids == want.ids
    again = session.fork()
    assert model.memory.cache_bytes < 4 * before
    assert again.ids == want.ids


@pytest.mark.parametrize("name", ["nano", "hybrid"])
@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_files_are_pythons_and_pythons_are_read(nano: Path, tmp_path: Path, name: str, kv: str) -> None:
    bundle = nano if name == "nano" else tmp_path / "b"
    if name != "nano":
        write_bundle(bundle, MODELS[name], random_weights(MODELS[name]))
    prompt = [1, 2, 3, 50, 7]
    model, python = opened(bundle, kv=kv.encode()), edgedec.open(bundle, engine="native", kv=kv)
    session, twin = model.session(), python.session(speculate="off")
    assert session.generate(prompt, max_tokens=20, seed=4, **DRAWN) == list(
        map(int, twin.tokens(prompt, max_tokens=20, seed=4, **DRAWN))
    )
    session.save(str(tmp_path / "c.session"))
    twin.save(tmp_path / "python.session")
    rest = list(map(int, twin.tokens(None, max_tokens=20, **DRAWN)))
    for file in ("c.session", "python.session"):
        own, other = model.session(), python.session(speculate="off")
        own.load(str(tmp_path / file))
        other.load(tmp_path / file)
        assert (
            own.generate(None, max_tokens=20, **DRAWN)
            == rest
            == list(map(int, other.tokens(None, max_tokens=20, **DRAWN)))
        )
    learned = python.session(speculate="recycling")
    list(learned.tokens(prompt, max_tokens=20))
    learned.save(tmp_path / "learned.session")  # with what its drafters learned
    own = model.session()
    own.load(str(tmp_path / "learned.session"))
    assert own.ids == learned.ids


def test_damaged_files_change_nothing(nano: Path, tmp_path: Path) -> None:
    """Any byte may be wrong, or missing: an error with a name, and the session goes on as it was."""
    model, file = opened(nano), tmp_path / "s"
    session = model.session()
    tokens = session.generate(PROMPT, max_tokens=8)
    session.save(str(file))
    good, r = file.read_bytes(), random.Random(0)
    other = model.session()
    other.generate(PROMPT, max_tokens=3)
    for _ in range(200):
        raw = bytearray(good)
        if r.random() < 0.3:
            del raw[r.randrange(len(raw)) :]
        else:
            raw[r.randrange(len(raw))] ^= 1 << r.randrange(8)
        file.write_bytes(raw)
        with pytest.raises(c.EdgedecFailure) as caught:
            other.load(str(file))
        assert caught.value.status == "session"
        assert "\n" not in str(caught.value)
    assert other.generate(None, max_tokens=5) == tokens[3:]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_files_of_others_are_refused_by_both(nano: Path, tmp_path: Path) -> None:
    model, eight = opened(nano), opened(nano, kv=b"int8")
    session = model.session()
    session.generate(PROMPT, max_tokens=60, ignore_eos=1)
    session.save(str(tmp_path / "s"))
    for bad, words in ((eight.session(), "native-f32 cache"), (model.session(context=40), "do not fit")):
        with pytest.raises(c.EdgedecFailure, match=words):
            bad.load(str(tmp_path / "s"))
    with pytest.raises(SessionError, match="native-f32 cache"):
        edgedec.open(nano, engine="native", kv="int8").session().load(tmp_path / "s")
    with pytest.raises(c.EdgedecFailure) as caught:
        session.save(str(tmp_path / "no" / "s"))
    assert caught.value.status == "io"


def test_memory_limit(nano: Path) -> None:
    """Idle prefixes go first, then the program is asked, then the call fails and its session stays."""
    asked: list[int] = []

    def pressure(user: Any, needed: int) -> int:
        asked.append(needed)
        return 0

    hook = c.Pressure(pressure)
    model = opened(nano, memory_limit=1_500_000, on_pressure=hook, prefix_tokens=200)
    small = model.session()
    small.generate(PROMPT * 20, max_tokens=2)
    del small
    assert model.memory.prefixes == 1
    assert model.memory.sessions == 0
    large = model.session()
    with pytest.raises(c.EdgedecFailure, match="memory_limit") as caught:
        large.prefill([5] * 900)
    assert caught.value.status == "memory"
    assert asked
    assert model.memory.prefixes == 0
    assert model.memory.cache_bytes <= 1_500_000
    large.prefill([5] * 9)
    assert len(large.logits()) == 4096


def test_prefixes_are_found(nano: Path) -> None:
    model, plain = opened(nano, prefix_tokens=512), opened(nano)
    first = model.session()
    first.generate(PROMPT * 40, max_tokens=4)
    second = model.session()
    tokens = second.generate(PROMPT * 40 + [7, 8], max_tokens=12)
    assert second.result.cached == 160
    assert second.result.prompt == 162
    assert tokens == plain.session().generate(PROMPT * 40 + [7, 8], max_tokens=12)
    library().check("trim", model.handle)
    assert model.memory.prefixes == 0


def test_text_is_cut_and_prolonged(nano: Path) -> None:
    model = opened(nano)
    session = model.session()
    session.prefill(PROMPT)
    before = session.logits()
    session.step(99)
    library().check("session_truncate", session.handle, 4)
    assert session.logits() == []
    session.prefill()
    assert session.logits() == before
    library().check("session_append", session.handle, c.tokens_of([99]), 1)
    assert session.ids == [*PROMPT, 99]
    assert session.cached == 4
    with pytest.raises(c.EdgedecFailure, match="outside the vocabulary"):
        session.step(5000)
    assert session.ids == [*PROMPT, 99]


# Its own malloc counts what anything takes, C++'s library and the engine included.
COUNTED = """
#include <edgedec.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
static std::atomic<long> made{0};
extern "C" {
void* __libc_malloc(size_t); void* __libc_calloc(size_t, size_t); void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) { return made++, __libc_malloc(n); }
void* calloc(size_t n, size_t size) { return made++, __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { return made++, __libc_realloc(p, n); }
void* aligned_alloc(size_t a, size_t n) { return made++, __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) { return made++, !(*p = __libc_memalign(a, n)); }
}
int main(int, char** argv) {
  enum { MANY = 3 };
  edgedec_model* model; edgedec_session* session[MANY]; edgedec_sampling sampling; edgedec_open_options options;
  edgedec_open_options_init(&options, sizeof options);
  options.kv = argv[2], options.threads = 2;
  edgedec_sampling_init(&sampling, sizeof sampling);
  sampling.temperature = 0.8, sampling.top_p = 0.9;
  if (edgedec_open(argv[1], &options, &model)) return 1;
  const int32_t prompt[] = {12, 375, 278};
  for (auto& each : session)
    if (edgedec_session_new(model, nullptr, &each) || edgedec_prefill(each, prompt, 3)) return 2;
  long most = 0, steps = 0, with = 0;
  for (int i = 0; i < 400; i++) {
    int32_t token[MANY];
    const long before = made;
    for (int s = 0; s < MANY; s++)
      if (edgedec_sample(session[s], &sampling, &token[s])) return 3;
    if (edgedec_step_many(session, token, MANY)) return 4;
    if (i < 20) continue;
    steps++, with += made > before;
    if (made - before > most) most = made - before;
  }
  std::printf("%ld %ld %ld %ld\\n", steps, with, most, made.load());
}
"""


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="counts by glibc's names")
@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_a_steady_step_takes_no_memory(nano: Path, tmp_path: Path, kv: str) -> None:
    """But where a block's next page begins: 14 blocks of 3 sessions, once in 32 tokens or more."""
    (tmp_path / "counted.cpp").write_text(COUNTED)
    exported = ["-rdynamic"]  # the C library's callers find the program's malloc
    program = builder().build(tmp_path / "counted", mains=[tmp_path / "counted.cpp"], jobs=2, link=exported)
    steps, with_memory, most, all_made = map(int, subprocess.check_output([program, str(nano), kv], text=True).split())
    assert all_made > 100  # they are counted
    assert steps == 380
    assert with_memory <= steps // 16, with_memory
    assert most <= 3 * 28, most


def test_the_example_of_ctypes(nano: Path) -> None:
    program = LIBRARY.parents[1] / "examples" / "ctypes" / "edgedec_c.py"
    shown = subprocess.check_output(
        [sys.executable, program, nano, "Once upon a time"], text=True, env={"EDGEDEC_LIBRARY": str(library_file())}
    )
    assert shown.startswith("Once upon a time, there was a little girl named Lily.")
