"""Sessions in a store: what they share, that they come back as they were, and what damage does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, ODD, random_weights, write_bundle
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import edgedec
from edgedec.cache import kv_code, store
from edgedec.cache.kv_code import CodeError, Field
from edgedec.cache.kv_parts import KVParts
from edgedec.cli._app import app
from edgedec.errors import SessionError
from edgedec.kernels.cpu.loader import why_not
from edgedec.model import Model
from edgedec.runtime import Call, Rows, RuntimeOptions, forward_one, open_runtime
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.spec import KV_FORMATS, LatentAttention, Mlp
from edgedec.storage.arrays import read_arrays, write_arrays

ENGINES = ["ort", "reference", *(["native"] if why_not() is None else [])]
WARM = Sampling(temperature=0.9, seed=5)
LATENT = LatentAttention(4, 1, 36, 0.2, rope=None, rank=32, rope_dim=4, nope_dim=12, v_dim=16)
SHAPES = ODD | KINDS | {"latent": replace(KINDS["layer norms, plain"], layers=((LATENT, Mlp(40)),) * 2)}
COMMON = np.random.default_rng(0).integers(0, 256, 150).tolist()


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return edgedec.open(tiny, engine=ENGINES[-1], threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store.make_store(tmp_path / "chats")
    return tmp_path / "chats"


def take(session: Session, n: int, ids: list[int] | None = None, **options: Any) -> list[int]:
    return list(map(int, session.tokens(ids, max_tokens=n, ignore_eos=True, **options)))


def content(session: Session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in session._context.cache.save().items()}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "parts").rglob("*.part"))


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_session_comes_back_as_it_was(tiny: Path, folder: Path, engine: str, kv: str) -> None:
    model = edgedec.open(tiny, engine=engine, kv=kv, threads=1)
    for name, more in (("a", [1, 2, 3]), ("b", [4, 5])):
        session = model.session()
        take(session, 9, [*COMMON, *more], sampling=WARM)
        session.save(folder / name)
        rest = take(session, 12, sampling=Sampling(temperature=0.9))
        other = edgedec.open(tiny, engine=engine, kv=kv, threads=1).session()
        take(other, 3, [7, 8])
        other.load(folder / name)
        assert content(other) == content(_upto(session, other))
        assert take(other, 12, sampling=Sampling(temperature=0.9)) == rest
    read = [store.parts_of(folder / name) for name in ("a", "b")]
    assert [len(names) for names in read] == [2, 2]
    assert read[0] == read[1]  # the first 128 of 150 common tokens
    assert len(parts(folder)) == 2


def _upto(session: Session, like: Session) -> Session:
    """The session cut to the other one's length."""
    session._context.cache.truncate(like._context.cache.length)
    return session


def test_what_differs_is_not_shared(tiny: Path, folder: Path) -> None:
    """Another format, and the same tokens with another cache: a row of keys that is one bit off."""
    for name, kv in (("a", "f32"), ("b", "int8")):
        session = edgedec.open(tiny, engine="reference", kv=kv).session()
        take(session, 1, COMMON)
        session.save(folder / name)
    assert len(parts(folder)) == 4
    session = edgedec.open(tiny, engine="reference", kv="f32").session()
    take(session, 1, COMMON)
    session._context.cache.data(0)[0, 0, 70, 3] += 1e-3  # type: ignore[attr-defined]
    session.save(folder / "c")
    assert store.parts_of(folder / "c")[0] == store.parts_of(folder / "a")[0]
    assert store.parts_of(folder / "c")[1] != store.parts_of(folder / "a")[1]
    other = edgedec.open(tiny, engine="reference", kv="f32").session()
    other.load(folder / "c")
    assert content(other) == content(session)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cache_with_forgotten_slots_is_kept_whole(tiny: Path, folder: Path, engine: str) -> None:
    session = edgedec.open(tiny, engine=engine, threads=1).session()
    take(session, 2, COMMON)
    session._context.cache.drop(0, [3, 4, 100])
    session.save(folder / "dropped")
    assert parts(folder) == []
    other = edgedec.open(tiny, engine=engine, threads=1).session()
    other.load(folder / "dropped")
    assert content(other) == content(session)
    with pytest.raises(SessionError, match="its cache holds less than its text"):
        session.save(folder / "text", reread=True)


def test_short_and_empty_texts(model: Model, folder: Path) -> None:
    for n in (0, 1, 63, 64, 65):
        session = model.session()
        if n:
            take(session, 1, COMMON[:n])
        session.save(folder / str(n))
        other = model.session()
        other.load(folder / str(n))
        assert (other.ids, content(other)) == (session.ids, content(session))
        assert len(store.parts_of(folder / str(n))) == n // 64


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_caches_of_every_shape_come_apart_and_together(name: str, kv: str, tmp_path: Path) -> None:
    store.make_store(tmp_path)
    spec = SHAPES[name]
    bundle = write_bundle(tmp_path / "bundle", spec, random_weights(spec))
    for engine in ("reference", "native"):
        if (engine == "native" and why_not()) or (engine == "reference" and kv in ("int8", "int4")):
            continue
        runtime = open_runtime(engine, bundle, RuntimeOptions(kv=kv))
        cache = runtime.new_cache(100)
        forward_one(runtime, Call(Rows.chain([i % 2 for i in range(70)], 0), cache))
        cache.commit(range(70))
        saved = dict(cache.save())
        apart = KVParts.split(spec, cache.kind, saved)
        assert bool(apart.rows) == (bool(spec.attention) and (engine == "reference" or not spec.recurrent))
        shared, arrays = store.write_shared(tmp_path, spec, "00" * 32, cache.kind, [i % 2 for i in range(70)], saved)
        write_arrays(tmp_path / "file", store.SHARED, {}, arrays, SessionError)
        file = read_arrays(tmp_path / "file", store.SHARED, "a file", SessionError)
        ids = [i % 2 for i in range(70)]
        back = store.read_shared(tmp_path / "file", spec, "00" * 32, shared, ids, file)
        assert back.keys() == saved.keys()
        for key, array in saved.items():
            assert back[key].dtype == array.dtype
            assert back[key].tobytes() == array.tobytes()
        cache.load(back)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_coded_without_loss(data: st.DataObject) -> None:
    field = data.draw(
        st.sampled_from([Field(0, 8, 4, True), Field(0, 6, 2, True), Field(0, 5, 1, False), Field(4, 8, 2, True)])
    )
    n, start = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 12))
    start = min(start, n)
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    rows = np.frombuffer(data.draw(st.binary(min_size=2 * n * 8, max_size=2 * n * 8)), np.uint8).reshape(2, n, 8)
    if data.draw(st.booleans()):  # what is predicted well
        rows = np.ascontiguousarray(rows[:, [tokens.index(token) for token in tokens]])
    source = kv_code.sources(tokens)
    assert all(at < i for i, at in enumerate(source))
    code = kv_code.encode(rows, field, start, source)
    back = rows.copy()
    back[:, start:] = 0
    left = kv_code.decode(memoryview(code + b"more"), back, field, start, source)
    assert bytes(left) == b"more"
    assert np.array_equal(back[..., field.start : field.stop], rows[..., field.start : field.stop])
    for cut in range(0, len(code), max(1, len(code) // 7)):
        with pytest.raises(CodeError):
            kv_code.decode(memoryview(code[:cut]), back, field, start, source)


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_code_or_refused(junk: bytes, chosen: int) -> None:
    rows = np.zeros((1, 4, 4), np.uint8)
    try:
        kv_code.decode(memoryview(bytes([chosen]) + junk), rows, Field(0, 4, 4, True), 0, kv_code.sources([1, 2, 1, 2]))
    except CodeError:
        pass


def test_a_bomb_is_not_unpacked() -> None:
    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(1 << 24)) + packer.flush()
    code = bytes([0]) + len(bomb).to_bytes(4, "little") + bomb
    with pytest.raises(CodeError, match="another size"):
        kv_code.decode(memoryview(code), np.zeros((1, 4, 1), np.uint8), Field(0, 1, 1, False), 0, np.zeros(4, np.int64))


def test_prediction_is_what_shortens() -> None:
    """Rows that repeat where their tokens do, and noise of little size on them."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 9, 200).tolist()
    base, field = rng.standard_normal((9, 2, 16)).astype(np.float32), Field(0, 64, 4, True)
    rows = np.stack([base[token] for token in tokens], axis=1)
    exact = len(kv_code.encode(rows.view(np.uint8), field, 100, kv_code.sources(tokens)))
    rows *= 1 + 1e-4 * rng.standard_normal(rows.shape).astype(np.float32)
    near = len(kv_code.encode(rows.view(np.uint8), field, 100, kv_code.sources(tokens)))
    alone = len(kv_code.encode(rows.view(np.uint8), field, 100, np.full(200, -1)))
    # Huffman codes spend a bit on each of a byte at least.
    assert exact < 0.2 * alone
    assert near < 0.7 * alone


@pytest.fixture
def saved(model: Model, folder: Path) -> Path:
    session = model.session()
    take(session, 5, COMMON)
    session.save(folder / "a.session")
    return folder / "a.session"


def test_damage_is_named(model: Model, saved: Path) -> None:
    session, found = model.session(), parts(saved.parent)
    assert len(found) == 2
    first, second = (saved.parent / "parts" / n[:2] / f"{n}.part" for n in store.parts_of(saved))
    before = first.read_bytes()
    for raw, says in (
        (before[:-1], "damaged"),
        (before[:300] + bytes([before[300] ^ 1]) + before[301:], "damaged"),
        (second.read_bytes(), "is no part of"),
        (b"", "not a part of a saved session, or cut short"),
    ):
        first.write_bytes(raw)
        with pytest.raises(SessionError, match=says):
            session.load(saved)
        assert (session.ids, session._context.cache.length) == ([], 0)
    first.unlink()
    with pytest.raises(SessionError, match=r"its part .* is missing"):
        session.load(saved)
    first.write_bytes(before)
    session.load(saved)
    assert session.ids[: len(COMMON)] == COMMON


@pytest.mark.parametrize("raw", [b"", None])
def test_a_damaged_part_is_written_again(model: Model, saved: Path, raw: bytes | None) -> None:
    """By the next session that begins as the one it is of; until then both are named as damaged."""
    path = saved.parent / "parts" / store.parts_of(saved)[0][:2] / f"{store.parts_of(saved)[0]}.part"
    before = path.read_bytes()
    path.write_bytes(before[:-9] + bytes([before[-9] ^ 1]) + before[-8:] if raw is None else raw)
    told = CliRunner().invoke(app, ["sessions", str(saved.parent)])
    assert "a.session: cannot be loaded: 1 of its parts damaged or missing" in " ".join(told.stdout.split())
    session = model.session()
    take(session, 9, COMMON)
    session.save(saved.parent / "b.session")
    assert path.read_bytes() == before
    for name in ("a.session", "b.session"):
        model.session().load(saved.parent / name)
    assert "cannot be loaded" not in CliRunner().invoke(app, ["sessions", str(saved.parent)]).stdout


def test_forged_files_are_refused_and_never_crash(model: Model, saved: Path) -> None:
    """Files whose hashes are right, but not what they say."""
    file = read_arrays(saved, store.SHARED, "", SessionError)
    n_parts, rng, loaded = len(file.header["cache"]["parts"]), np.random.default_rng(0), 0
    headers: list[Any] = [{}, {"session": 3}, {"session": file.header["session"]}]
    cache = file.header["cache"]
    for key, value in (
        ("parts", []),
        ("parts", cache["parts"][::-1]),
        ("parts", cache["parts"][:1]),
        ("parts", ["../../../etc/passwd", *cache["parts"][1:]]),
        ("parts", ["0" * 64] * n_parts),
        ("length", 0),
        ("length", 10**12),
        ("length", -5),
        ("kind", "native-f16"),
        ("kind", "nonsense"),
        ("new", 1),
    ):
        headers.append(file.header | {"cache": cache | {key: value}})
    session = model.session()
    for header in headers:
        write_arrays(saved, store.SHARED, header, file.arrays, SessionError)
        with pytest.raises(SessionError):
            session.load(saved)
    for _ in range(60):
        code = file.arrays["cache.code"].copy()
        code[rng.integers(0, len(code), 3)] ^= rng.integers(1, 256, 3, np.uint8)
        write_arrays(saved, store.SHARED, file.header, file.arrays | {"cache.code": code}, SessionError)
        try:
            session.load(saved)
            loaded += 1  # noise of floats that nobody can tell from others
        except SessionError:
            pass
    assert loaded < 60
    for name in file.arrays:
        for bad in (np.zeros(0, np.uint8), np.zeros((2, 2)), np.arange(3, dtype=np.int32)):
            write_arrays(saved, store.SHARED, file.header, file.arrays | {name: bad}, SessionError)
            if name.startswith("cache."):
                with pytest.raises(SessionError):
                    session.load(saved)
        without = {key: array for key, array in file.arrays.items() if key != name}
        write_arrays(saved, store.SHARED, file.header, without, SessionError)
        if name.startswith("cache."):
            with pytest.raises(SessionError):
                session.load(saved)


def test_a_part_that_was_forged_is_told_by_its_name(model: Model, saved: Path) -> None:
    path = saved.parent / "parts" / (name := store.parts_of(saved)[0])[:2] / f"{name}.part"
    part = read_arrays(path, store.PART, "", SessionError)
    code, session = part.arrays["code"].copy(), model.session()
    refused = 0
    for at in np.random.default_rng(0).integers(0, len(code), 40):
        wrong = code.copy()
        wrong[at] ^= 1
        write_arrays(path, store.PART, part.header, {"code": wrong}, SessionError)
        with pytest.raises(SessionError, match=r"holds something else than was saved|damaged keys and values"):
            session.load(saved)
        refused += 1
    assert refused == 40


def test_a_hundred_chats(model: Model, tmp_path: Path) -> None:
    """One system prompt of 128 tokens, three openings, a hundred ends; beside what the same take as whole files."""
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    whole.mkdir(), store.make_store(shared)
    rng, texts = np.random.default_rng(1), []
    openings = [rng.integers(0, 256, 40).tolist() for _ in range(3)]
    for i in range(100):
        texts.append([*COMMON[:128], *openings[i % 3], *rng.integers(0, 256, 10).tolist()])
    for i, ids in enumerate(texts):
        session = model.session(speculate="off")
        take(session, 2, ids)
        session.save(whole / f"{i}.session"), session.save(shared / f"{i}.session")
    assert len(parts(shared)) == 2  # only whole parts are shared: 128 of 168 common tokens
    # 52 of 180 tokens are not in parts, and coded in 0.85 of their bytes or less.
    assert size(shared) < 0.30 * size(whole)
    for i in (0, 57, 99):
        one, other = model.session(), model.session()
        one.load(whole / f"{i}.session"), other.load(shared / f"{i}.session")
        assert one.ids == other.ids
        assert content(one) == content(other)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_that_is_read_again(tiny: Path, tmp_path: Path, engine: str) -> None:
    model = edgedec.open(tiny, engine=engine, threads=1)
    session = model.session(speculate="off")
    take(session, 9, COMMON, sampling=WARM)
    if engine != "native":  # their bytes depend on how many rows a call has
        session = model.session(speculate="off")
        session.append(COMMON)
        session.score([1])
    session.save(tmp_path / "whole"), session.save(tmp_path / "text", reread=True)
    assert (tmp_path / "text").stat().st_size < 0.1 * (tmp_path / "whole").stat().st_size
    other = model.session()
    other.load(tmp_path / "text")
    assert (other.ids, content(other)) == (session.ids, content(session))
    rest = Sampling(temperature=0.9)
    assert take(other, 12, sampling=rest) == take(session, 12, sampling=rest)


def test_a_text_that_reads_otherwise_is_refused(model: Model, tmp_path: Path) -> None:
    session = model.session()
    take(session, 3, COMMON)
    session.save(tmp_path / "text", reread=True)
    file = read_arrays(tmp_path / "text", store.WHOLE, "", SessionError)
    write_arrays(tmp_path / "text", store.WHOLE, file.header | {"reread": "ab" * 32}, file.arrays, SessionError)
    other = model.session()
    with pytest.raises(SessionError, match="reading its text again gives another cache"):
        other.load(tmp_path / "text")
    assert other.ids == []


def test_parts_that_nobody_names_are_removed(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ids in (("a", COMMON), ("b", COMMON[:64] + COMMON[:64])):
        session = model.session()
        take(session, 1, ids)
        session.save(folder / name)
    assert len(parts(folder)) == 3
    (folder / "a").unlink()
    assert store.clean(folder) == 0  # it may be of a session that is being saved
    monkeypatch.setattr(store, "_AGE", -1.0)
    (folder / "parts" / "00").mkdir(exist_ok=True)
    (folder / "parts" / "00" / ".x.part.partial-00").write_bytes(b"half")
    assert store.clean(folder) > 4
    assert len(parts(folder)) == 2
    session.load(folder / "b")


def test_the_command_shares_lists_and_cleans(model: Model, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    for i in range(4):
        session = model.session()
        take(session, 2, [*COMMON[:130], i])
        session.save(folder / f"{i}.session")
    before, whole = content(session), size(folder)
    found = CliRunner().invoke(app, ["sessions", str(folder), "--clean"])
    assert (found.exit_code, "share nothing" in found.output) == (1, True)
    found = CliRunner().invoke(app, ["sessions", str(folder), "--share"])  # of nano, which these are not
    assert (found.exit_code, "name it with --model" in found.output) == (1, True)
    found = CliRunner().invoke(app, ["sessions", str(folder), "--share", "-m", str(tiny), "--json"])
    report = json.loads(found.stdout)
    assert (len(report["sessions"]), report["parts"]) == (4, 2)
    assert report["bytes"] == size(folder) < 0.45 * whole
    assert report["unshared_bytes"] > 2 * report["bytes"]
    session.load(folder / "3.session")
    assert content(session) == before
    shutil.rmtree(folder / "parts")
    store.make_store(folder)
    with pytest.raises(SessionError, match="is missing"):
        session.load(folder / "3.session")
    assert "if none shared" in CliRunner().invoke(app, ["sessions", str(folder)]).output


_SAVES = """
import sys
from dataclasses import replace
from pathlib import Path
import edgedec
model = edgedec.open(sys.argv[1], threads=1)
for i in range(10**6):
    session = model.session(speculate="off")
    list(session.tokens([i % 256, *range(140)], max_tokens=1))
    session.save(Path(sys.argv[2]) / f"{i % 7}.session")
    print(i, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes cannot be killed so here")
def test_a_killed_program_leaves_whole_sessions(
    model: Model, tiny: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", _SAVES, str(tiny), str(folder)]
    for wait in (0.0, 0.003, 0.011):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(9):
                process.stdout.readline()
            sleep(wait)
            os.kill(process.pid, signal.SIGKILL)
    files = store.sessions(folder)
    assert len(files) == 7
    for path in files:
        model.session().load(path)
    monkeypatch.setattr(store, "_AGE", -1.0)
    store.clean(folder)
    named = {name for path in files for name in store.parts_of(path)}
    assert {path.stem for path in parts(folder)} == named
    assert not list((folder / "parts").rglob("*partial*"))
