"""Contexts of 32K and more: what is held while they are read, what they take, and who refuses them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, ODD, random_weights, write_bundle
from checkpoints import write_llama
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import Bundle
from edgedec.cache import memory
from edgedec.cache.memory import available_memory, cache_bytes, row_bytes
from edgedec.errors import ContextFull
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtime import memory as refusal
from edgedec.spec import KV_FORMATS

LONG = 33000
SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 131072}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    source = write_llama(folder / "checkpoint", **SHAPE)
    return export(str(source), folder / "bundle", ExportOptions(weights="f32", check=False, kv=("f32", "int8"))).path


def engines() -> list[str]:
    return ["reference", "ort", *(["native"] if why_not() is None else [])]


@pytest.mark.parametrize("engine", engines())
def test_a_chunk_late_in_a_context_holds_no_square(long: Path, engine: str) -> None:
    """The cache is filled through `load`; then a session reads two chunks after 33,000 tokens."""
    model = edgedec.open(long, engine=engine, threads=1)
    session, cache = model.session(), model.runtime.new_cache(131072)
    ids = np.random.default_rng(0).integers(0, model.spec.vocab_size, LONG + 200).tolist()
    session._context.ids = ids[:LONG]
    session._context.cache = _filled(cache, model.runtime, LONG)
    tracemalloc.start()
    try:
        tokens = list(session.tokens(ids, max_tokens=4, ignore_eos=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tokens) == 4
    assert session.stats.cached == LONG
    # A square of bools would be 1.1 GB. Of a chunk of rows: a mask, its floats, scores of two heads and copies.
    assert peak < 250e6


def _filled(cache: Any, runtime: Runtime, n: int) -> Any:
    """The cache with n tokens: of noise where its arrays are plain, read where they are not (in little time)."""
    while runtime.name == "native" and cache.length < n:
        rows = Rows.chain([7] * min(128, n - cache.length), cache.length)
        forward_one(runtime, Call(rows, cache))
        cache.commit(range(len(rows)))
    if runtime.name == "native":
        return cache
    arrays, rng = dict(cache.save()), np.random.default_rng(1)
    kv = arrays["kv.0"]
    arrays["kv.0"] = rng.standard_normal((*kv.shape[:2], n, kv.shape[3]), np.float32)
    cache.load(arrays | {"length": np.array([n]), "slots.0": np.stack([np.arange(n), np.arange(n)])})
    return cache


@pytest.mark.skipif(why_not() is not None, reason="needs the native engine")
def test_the_native_engine_reads_32k_in_the_memory_of_its_cache(long: Path) -> None:
    model = edgedec.open(long, engine="native", threads=1)
    session = model.session(speculate="off")
    ids = np.random.default_rng(0).integers(0, model.spec.vocab_size, LONG).tolist()
    tracemalloc.start()
    try:
        list(session.tokens(ids, max_tokens=1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    cache = session._context.cache
    assert cache.length >= LONG
    assert cache.nbytes == cache_bytes(model.spec, "f32", cache.length, 64)
    assert peak < 30e6  # without a mask at all


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("name", ["plain", "after", "large", "heads by layer"])
def test_memory_is_known_before_it_is_used(kv: str, name: str, tmp_path: Path) -> None:
    spec = (ODD | KINDS)[name]
    bundle = write_bundle(tmp_path / "bundle", spec, random_weights(spec))
    for engine in ("reference", "native"):
        if (engine == "native" and why_not()) or (engine == "reference" and kv in ("int8", "int4")):
            continue  # scales of an export are needed there
        runtime = open_runtime(engine, bundle, RuntimeOptions(kv=kv))
        cache, n = runtime.new_cache(200), 0
        for rows in (100, 100):
            forward_one(runtime, Call(Rows.chain([1] * rows, n), cache))
            cache.commit(range(rows))
            n += rows
        assert cache.nbytes == cache_bytes(spec, kv, n, runtime.capabilities.page_slots)


def test_rows_of_pages() -> None:
    assert [row_bytes(64, kv) for kv in KV_FORMATS] == [256, 128, 68, 48]
    assert [row_bytes(16, kv) for kv in KV_FORMATS] == [64, 32, 20, 20]


def test_what_does_not_fit_is_refused_by_name(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "_SMALL", 1 << 20)
    monkeypatch.setattr(memory, "available_memory", lambda: 3 << 20)
    model = edgedec.open(long, engine=engines()[-1], threads=1)
    session = model.session(speculate="off")
    ids = [5] * LONG
    with pytest.raises(ContextFull, match=r"^33010 tokens take 4 MiB of cache in f32") as error:
        list(session.tokens(ids, max_tokens=10))
    assert "3 MiB of memory are free" in str(error.value)
    assert "--ctx-size" in str(error.value)
    assert "int8 1 MiB" in str(error.value)
    assert session._context.cache.length == 0
    assert len(list(session.tokens(ids[:400], max_tokens=2, ignore_eos=True))) == 2


def test_a_server_takes_what_fits_and_refuses_more(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    from edgedec.cli._app import app
    from edgedec.server import app as applications
    from edgedec.server import listen

    heard: list[int] = []
    monkeypatch.setattr(applications, "build", lambda server: heard.append(server.settings.limits.tokens))
    monkeypatch.setattr(listen, "listen", lambda *_: None)
    monkeypatch.setattr(memory, "available_memory", lambda: 70 << 20)
    command = ["serve", "-m", str(long), "--slots", "64"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert 131072 <= heard[0] <= (70 << 20) // 128
    assert CliRunner().invoke(app, [*command, "-c", "1024"]).exit_code == 0
    assert heard[1] == 0  # all slots have room
    found = CliRunner().invoke(app, [*command, "--max-total-tokens", "8388608"])
    assert found.exit_code == 1
    assert "8388608 tokens take 1.0 GiB of cache in f32, and 70 MiB of memory are free" in found.output
    monkeypatch.setattr(memory, "available_memory", lambda: 9 << 20)
    monkeypatch.setattr(refusal, "_SMALL", 1 << 20)
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 1
    assert "131072 tokens take 16 MiB of cache in f32, and 9 MiB of memory are free" in found.output
    assert len(heard) == 2


def test_a_control_group_limits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal:   9000 kB\nMemAvailable:    4000 kB\n")
    assert available_memory() == 4000 << 10
    (tmp_path / "memory.max").write_text("3000000\n"), (tmp_path / "memory.current").write_text("2900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    assert available_memory() == 150000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 4000 << 10


def test_inspect_says_what_a_context_takes(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.cli._app import app

    monkeypatch.setattr(memory, "available_memory", lambda: 12 << 20)
    found = json.loads(CliRunner().invoke(app, ["inspect", str(long), "--context", "131072", "--json"]).stdout)
    spec = Bundle.open(long).spec
    assert found["memory"]["native"] == {kv: cache_bytes(spec, kv, 131072, 64) for kv in KV_FORMATS}
    assert found["memory"]["plain"] == {kv: cache_bytes(spec, kv, 131072) for kv in ("f32", "int8")}
    text = CliRunner().invoke(app, ["inspect", str(long), "-c", "262144"]).stdout
    assert "Memory of 262144 tokens" in text
    assert "no" in text.split("Memory of")[1]
    assert "export it with --ctx-size 262144" in text
