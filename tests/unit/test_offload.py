"""Idle texts on disk: put aside when memory has no room, mapped when a text continues them, gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.cache.offload import Offload
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.errors import SessionError, UsageError
from edgedec.kernels.cpu.loader import why_not
from edgedec.model import Model
from edgedec.sampling import Sampling
from edgedec.storage.mapped import map_arrays, write_mapped

ENGINES = ["reference", "ort", *(["native"] if why_not() is None else [])]
BIG = 1 << 30


def text(seed: int, n: int = 90) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 250, n).tolist()
    return ids


@pytest.fixture(params=ENGINES)
def model(request: pytest.FixtureRequest, tiny: Path) -> Model:
    return edgedec.open(tiny, engine=request.param, threads=1)


def run(model: Model, batch: Batch, ids: list[int], n: int = 6, **options: Any) -> tuple[list[int], Any]:
    found: list[int] = []
    session = model.session(speculate="off", context=200)
    session.submit(
        batch, ids, lambda t: None if t is None else found.append(int(t)), max_tokens=n, ignore_eos=True, **options
    )
    batch.run()
    return found, session


def test_texts_beyond_the_room_come_back_from_disk(model: Model, tmp_path: Path) -> None:
    offload = Offload(tmp_path, BIG)
    prefixes = SharedPrefixes(model.runtime.capabilities, offload)
    batch = Batch(model.runtime, tokens=256, prefixes=prefixes)
    texts = {seed: text(seed) for seed in range(5)}
    made = dict[int, list[int]]()
    for seed, ids in texts.items():
        made[seed], _ = run(model, batch, ids)
        offload.wait()  # what finds too many waiting to be written is not kept
    assert offload.written >= 3
    assert offload.bytes == sum(p.stat().st_size for p in offload.folder.glob("*.kv")) > 0
    assert batch.held() <= 256
    warm = {"sampling": Sampling(temperature=0.9, seed=3)}
    for seed, ids in texts.items():
        longer = [*ids, *made[seed], 7, 8, 9]
        found, session = run(model, batch, longer, **warm)
        offload.wait()
        alone = model.session(speculate="off", context=200)
        assert found == list(map(int, alone.tokens(longer, max_tokens=6, ignore_eos=True, **warm)))
        assert session.stats.cached >= 64, "the text was read again"
        if model.runtime.name == "native":
            saved = alone._context.cache.save()
            assert all(np.array_equal(a, saved[name]) for name, a in session._context.cache.save().items())
    assert offload.restored >= 3
    folder = offload.folder
    assert folder.is_dir()
    offload.close()
    assert not folder.exists()


def test_sessions_of_a_model_put_theirs_aside(tiny: Path, tmp_path: Path) -> None:
    if why_not() is not None:
        pytest.skip("sessions share pages on the native engine only")
    model = edgedec.open(tiny, engine="native", threads=1, prefix_tokens=128, offload=tmp_path)
    plain = edgedec.open(tiny, engine="native", threads=1, prefix_tokens=0)
    for seed in (0, 1, 2, 0, 1):
        session = model.session(speculate="off")
        found = list(session.tokens([*text(seed, 130), 5, seed], max_tokens=4, ignore_eos=True))
        alone = plain.session(speculate="off")
        assert found == list(alone.tokens([*text(seed, 130), 5, seed], max_tokens=4, ignore_eos=True))
        offload = model.prefixes.shared.offload
        assert offload is not None
        offload.wait()
    assert session.stats.cached == 128
    assert offload.restored >= 2
    offload.close()


def cache_of(model: Model, ids: list[int]) -> Any:
    session = model.session(speculate="off", context=200)
    list(session.tokens(ids, max_tokens=1))
    return session._context.cache


def test_the_oldest_go_first_and_no_more_is_kept_than_allowed(tiny: Path, tmp_path: Path) -> None:
    model = edgedec.open(tiny, engine=ENGINES[-1], threads=1)
    caches = {seed: cache_of(model, text(seed)) for seed in range(6)}
    offload = Offload(tmp_path, BIG)
    offload.keep(text(0), caches[0], "")
    offload.wait()
    one = offload.bytes
    offload.close()
    offload = Offload(tmp_path, int(3.5 * one))
    for seed in (0, 1, 2):
        offload.keep(text(seed), caches[seed], "")
        offload.wait()
    assert offload.find(text(0), "") == (offload.find([*text(0), 5], "")[0], 90)  # used last
    assert offload.find(text(0), "adapter")[0] is None
    offload.keep(text(3), caches[3], "")
    offload.wait()
    assert [offload.find(text(seed), "")[1] >= 90 for seed in range(4)] == [True, False, True, True]
    assert len(list(offload.folder.glob("*.kv"))) == len(offload) == 3
    longer = [*text(3), 1, 2, 3]
    offload.keep(longer, cache_of(model, longer), "")  # takes the place of what it begins with
    offload.wait()
    assert len(offload) == 3
    small = Offload(tmp_path, 1000)
    small.keep(text(0), caches[0], "")
    small.wait()
    assert (small.written, small.dropped, list(small.folder.glob("*kv*"))) == (0, 1, [])
    offload.close(), small.close()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_costs_reading_the_text(tiny: Path, tmp_path: Path) -> None:
    model = edgedec.open(tiny, engine=ENGINES[-1], threads=1)
    offload = Offload(tmp_path, BIG)
    cache = cache_of(model, text(0))
    for damage in (lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-9]), _flip):
        offload.keep(text(0), cache, "")
        offload.wait()
        stored, n = offload.find([*text(0), 3], "")
        assert stored is not None
        assert n == 90
        damage(stored.path)
        before = offload.dropped
        batch = Batch(model.runtime, prefixes=SharedPrefixes(model.runtime.capabilities, offload))
        found, session = run(model, batch, [*text(0), 3])
        alone = model.session(speculate="off", context=200)
        assert found == list(map(int, alone.tokens([*text(0), 3], max_tokens=6, ignore_eos=True)))
        assert session.stats.cached == 0
        assert (offload.dropped - before, len(offload)) == (1, 0)
    offload.close()


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1000] ^= 4
    path.write_bytes(raw)


def test_a_smaller_context_takes_a_beginning_of_a_larger_text(tiny: Path, tmp_path: Path) -> None:
    model = edgedec.open(tiny, engine=ENGINES[-1], threads=1)
    offload = Offload(tmp_path, BIG)
    cache = cache_of(model, text(0, 150))
    offload.keep(text(0, 150), cache, "")
    offload.wait()
    stored, n = offload.find([*text(0, 70), 3, 4], "")
    assert stored is not None
    assert n == 70
    taken = offload.load(stored, n, model.runtime.new_cache(80))
    assert taken is not None
    assert (taken.length, taken.capacity) == (70, 80)
    mine, whole = taken.save(), cache.fork(70, 80).save()
    assert all(np.array_equal(array, whole[name]) for name, array in mine.items())
    offload.close()


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: no folder for idle texts: "):
        Offload(tmp_path / "file", 5)
    with pytest.raises(UsageError, match="0 bytes for idle texts"):
        Offload(tmp_path, 0)


_HOLDS = """
import sys, time
from pathlib import Path
import edgedec
from edgedec.cache.offload import Offload
model = edgedec.open(sys.argv[1], threads=1)
session = model.session(speculate="off")
list(session.tokens(range(3, 120), max_tokens=1))
offload = Offload(sys.argv[2], 1 << 30)
for i in range(10**6):
    offload.keep([i % 200, *range(3, 119)], session._context.cache, "")
    if i == 20:
        print("busy", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_what_a_killed_process_left_is_removed_by_the_next(tiny: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(tiny), str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        other = Offload(tmp_path, BIG)  # leaves the folder of a process that runs
        assert len(list(tmp_path.iterdir())) == 2
        other.close()
        os.kill(process.pid, signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 1
    offload = Offload(tmp_path, BIG)
    assert list(tmp_path.iterdir()) == [offload.folder]
    offload.close()


def test_a_server_puts_texts_aside(tiny: Path, tmp_path: Path) -> None:
    for name in ("starlette", "uvicorn", "httpx"):
        pytest.importorskip(name, reason="serving needs it")
    import httpx
    from serving import serving

    model = edgedec.open(tiny, engine=ENGINES[-1], threads=1, prefix_tokens=0)
    with serving(model, slots=1, context=200, tokens=256, offload=(str(tmp_path / "aside"), BIG)) as (place, server):
        answers = []
        for seed in (0, 1, 2, 3, 0):
            body = {"prompt": text(seed), "max_tokens": 3, "temperature": 0, "ignore_eos": True}
            answers.append(httpx.post(f"{place}/v1/completions", json=body, timeout=60).json())
            server.engine.offload.wait()
        assert answers[0]["choices"][0]["text"] == answers[4]["choices"][0]["text"]
        assert answers[4]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
        metrics = urllib.request.urlopen(f"{place}/metrics").read().decode()
        values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("edgedec_offload"))
        assert int(values["edgedec_offload_written_total"]) >= 2
        assert int(values["edgedec_offload_restored_total"]) == 1
        assert int(values["edgedec_offload_bytes"]) > 0
    assert list((tmp_path / "aside").iterdir()) == []


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_any_file_is_mapped_or_refused(tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, x: int) -> None:
    folder = tmp_path_factory.mktemp("mapped")
    arrays = {
        "a": np.arange(7),
        "b": np.zeros((2, 3, 0), np.float32),
        "c": np.arange(50, dtype=np.uint8).reshape(5, 10),
    }
    size = write_mapped(folder / "whole", arrays)
    back = map_arrays(folder / "whole")
    assert size == (folder / "whole").stat().st_size
    assert all(
        np.array_equal(back[k], a) and back[k].dtype == a.dtype and back[k].shape == a.shape for k, a in arrays.items()
    )
    raw = (folder / "whole").read_bytes()
    for wrong in (junk, raw + junk, raw[:at], raw[: at % size] + bytes([raw[at % size] ^ x]) + raw[at % size + 1 :]):
        (folder / "wrong").write_bytes(wrong)
        try:
            found = map_arrays(folder / "wrong")
        except SessionError:
            continue
        if wrong == raw:
            assert found.keys() == arrays.keys()
        else:  # what is between the arrays
            assert all(np.array_equal(found[k], a) for k, a in arrays.items())
