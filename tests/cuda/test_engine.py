"""The CUDA engine, emulated, gives the native engine's bytes: logits, states, best tokens, log-sums, caches."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_engines import ALL, runs_on_gpus, told

import edgedec
from edgedec.decoding.loop import StepTrace
from edgedec.errors import ContextFull, RuntimeUnavailable, SessionError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.runtime import Call, Rows, Runtime, RuntimeOptions, logits_of, open_runtime, parse_device
from edgedec.spec import KV_FORMATS, WEIGHT_FORMATS
from edgedec.spec.newer import newer
from edgedec.testing.conformance import run_suite
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")
cuda = pytest.importorskip("edgedec.runtimes.cuda")
native = pytest.importorskip("edgedec.runtimes.native")
RUNS = tuple(name for name, spec in MODELS.items() if runs_on_gpus(spec))


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory):
    """Makes a bundle of random weights, once for each model and format."""
    made: dict[tuple[str, str], edgedec.bundle.Bundle] = {}

    def make(model: str, fmt: str) -> edgedec.bundle.Bundle:
        if (model, fmt) not in made:
            folder = tmp_path_factory.mktemp("cuda") / "bundle"
            made[model, fmt] = write_bundle(folder, MODELS[model], random_weights(MODELS[model]), fmt)
        return made[model, fmt]

    return make


def both(bundle, kv: str) -> tuple[Runtime, Runtime]:
    options = RuntimeOptions(threads=1, kv=kv)
    return cuda.open(bundle, options), native.open(bundle, options)


@pytest.mark.parametrize(
    ("model", "fmt", "kv"),
    [(model, WEIGHT_FORMATS[(i + 2) % 4], KV_FORMATS[(i + 2) % 4]) for i, model in enumerate(RUNS)]
    + [("plain", fmt, kv) for fmt, kv in zip(WEIGHT_FORMATS, KV_FORMATS, strict=False)],
)
def test_the_bytes_of_the_native_engine(bundle, model, fmt, kv):
    check_bytes(bundle(model, fmt), kv)


@slow
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("fmt", WEIGHT_FORMATS)
@pytest.mark.parametrize("model", RUNS)
def test_the_bytes_of_every_format(bundle, model, fmt, kv):
    check_bytes(bundle(model, fmt), kv)


def check_bytes(bundle, kv: str) -> None:
    tested, expected = both(bundle, kv)
    ids = np.random.default_rng(0).integers(0, bundle.spec.vocab_size, 19).tolist()
    pairs = list(zip(told(tested, ids), told(expected, ids), strict=True))
    assert len(pairs) == 10
    for i, (ours, theirs) in enumerate(pairs):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes(), f"result {i}"


def test_lanes_in_the_other_order_give_the_same_bytes(bundle, monkeypatch):
    opened = bundle("windows", "int4")
    ids = np.random.default_rng(1).integers(0, opened.spec.vocab_size, 19).tolist()
    forward = list(told(cuda.CudaRuntime(opened, "int8", emulated.Emulated()), ids))
    backward = list(told(cuda.CudaRuntime(opened, "int8", emulated.Emulated(reverse=True)), ids))
    assert [a.tobytes() for a in forward] == [b.tobytes() for b in backward]


def test_several_chunks_of_keys_and_a_batch(bundle):
    """A text of more than 256 keys beside a short one, several rows each."""
    runtimes = both(bundle("plain", "int8"), "int8")
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 101, 300).tolist()
    found = []
    for runtime in runtimes:
        long, short = runtime.new_cache(384), runtime.new_cache(40)
        for at in range(0, 290, 145):
            logits_of(runtime, Rows.chain(ids[at : at + 145], at), long, 144)
            long.commit(range(145))
        calls = [Call(Rows.chain(ids[290:], 290), long, outputs=ALL), Call(Rows.chain(ids[:9], 0), short, outputs=ALL)]
        results = runtime.forward(calls)
        found.append([r.logits.tobytes() + r.logsum.tobytes() for r in results])
    assert found[0] == found[1]


def test_a_text_goes_on_on_the_other_engine(bundle):
    """Saved by one engine, loaded by the other, and back: named slots, a dropped one, a page and a half."""
    tested, expected = both(bundle("plain", "int4"), "int4")
    ids = np.random.default_rng(3).integers(0, 101, 90).tolist()
    for first, second in ((tested, expected), (expected, tested)):
        cache, other = first.new_cache(120), second.new_cache(120)
        logits_of(first, Rows.chain(ids, 0), cache, 89)
        cache.commit(range(90))
        cache.drop(2, [1, 40, 41])
        saved = {name: array.copy() for name, array in cache.save().items()}
        other.load(saved)
        assert cache.kind == other.kind
        assert other.slots(2) == 87
        assert other.positions(2).tolist() == cache.positions(2).tolist()
        rows = Rows.chain([7, 8], 90)
        assert logits_of(first, rows, cache).tobytes() == logits_of(second, rows, other).tobytes()
        assert other.save()["state"].tobytes() == saved["state"].tobytes()


def test_a_session_goes_on_on_the_other_engine(nano, tmp_path):
    models = {engine: edgedec.open(nano, engine=engine) for engine in ("native", "cuda")}
    prompt = models["native"].tokenizer.encode("Once upon a time")
    expected = told_by(models["native"].session(speculate="off"), prompt, 9)
    begun, file = list[int](), tmp_path / "session"
    for engine in ("native", "cuda", "native"):
        session = models[engine].session(speculate="off")
        if begun:
            session.load(file)
        begun += told_by(session, None if begun else prompt, 3)
        session.save(file)
    assert begun == expected


def told_by(session, ids, n: int) -> list[int]:
    return [int(token) for token in session.tokens(ids, max_tokens=n)]


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_the_story_that_the_native_engine_tells(nano, kv):
    """The first tokens that the golden hash is of, logits of the prompt included."""
    models = [edgedec.open(nano, engine=engine, kv=kv) for engine in ("native", "cuda")]
    ids = models[0].tokenizer.encode("Once upon a time")
    ours, theirs = (logits_of(m.runtime, Rows.chain(ids, 0), m.runtime.new_cache(16)) for m in reversed(models))
    assert ours.tobytes() == theirs.tobytes()
    stories = [told_by(m.session(speculate="off"), ids, 6) for m in models]
    assert stories[0] == stories[1]
    assert len(stories[0]) == 6


def test_drafts_change_nothing(nano):
    """Greedy text with drafts is that without, and something was drafted."""
    model = edgedec.open(nano, engine="cuda")
    ids = model.tokenizer.encode("one two three one two three one two three one two")
    trace: list[StepTrace] = []
    session = model.session(speculate="copy:fixed=4")
    drafted = [int(token) for token in session.tokens(ids, max_tokens=6, trace=trace)]
    assert any(len(step.draft.tokens) for step in trace)
    assert drafted == told_by(model.session(speculate="off"), ids, 6)


def test_a_recurrent_state_goes_on_on_the_other_engine(bundle):
    """A text of two chunks, cut back to the end of the first, saved by one engine and loaded by the other."""
    tested, expected = both(bundle("hybrid", "int4"), "int8")
    ids = np.random.default_rng(4).integers(0, 101, 60).tolist()
    for first, second in ((tested, expected), (expected, tested)):
        cache, other = first.new_cache(80), second.new_cache(80)
        for at in (0, 30):
            logits_of(first, Rows.chain(ids[at : at + 30], at), cache, 29)
            cache.commit(range(30))
        cache.truncate(41)
        assert cache.length == 30  # the last state that was kept
        saved = {name: array.copy() for name, array in cache.save().items()}
        other.load(saved)
        rows = Rows.chain([7, 8], 30)
        assert logits_of(first, rows, cache).tobytes() == logits_of(second, rows, other).tobytes()
        assert other.save()["state"].tobytes() == saved["state"].tobytes()


@pytest.mark.parametrize(("model", "fmt"), [("hybrid", "int4"), ("delta rule", "int8"), ("short convolution", "f16")])
def test_a_path_that_ends_before_the_last_row_of_a_tree(bundle, model, fmt):
    """The state after it is that of no row that was computed last: it is made anew from what the rows brought."""
    found = []
    for runtime in both(bundle(model, fmt), "int8"):
        cache = runtime.new_cache(40)
        logits_of(runtime, Rows.chain([3, 1, 4, 1], 0), cache)
        cache.commit(range(4))
        logits_of(runtime, Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], 4), cache)
        cache.commit([0, 2, 3])
        saved = cache.save()["state"].tobytes()
        whole = runtime.new_cache(40)
        for at, ids in ((0, [3, 1, 4, 1]), (4, [1, 3, 4])):
            logits_of(runtime, Rows.chain(ids, at), whole)
            whole.commit(range(len(ids)))
        assert whole.save()["state"].tobytes() == saved
        found.append((saved, logits_of(runtime, Rows.chain([7], 7), cache).tobytes()))
    assert found[0] == found[1]


def test_steps_of_one_shape_run_what_was_recorded_once(bundle):
    runtime = cuda.open(bundle("plain", "int4"), RuntimeOptions(kv="int8"))
    cache = runtime.new_cache(40)
    for i in range(6):
        logits_of(runtime, Rows.chain([i], i), cache)
        cache.commit([0])
    assert len(runtime._recorded) == 1
    # Of each layer qkv, keys stored, attention, chunks merged, o, gate and up, down; embedding, two of the head.
    assert runtime.launches == 3 * 7 + 3


def test_calls_that_do_not_fit_change_nothing(bundle):
    runtime = cuda.open(bundle("plain", "f32"), RuntimeOptions(kv="f32"))
    small, large = runtime.new_cache(4), runtime.new_cache(40)
    rows = Rows.chain(range(6), 0)
    with pytest.raises(ContextFull, match="6 rows do not fit a cache of 4"):
        runtime.forward([Call(rows, large), Call(rows, small)])
    with pytest.raises(UsageError):
        large.commit([0])
    stranger = native.open(runtime._bundle, RuntimeOptions(kv="f32")).new_cache(8)
    with pytest.raises(UsageError, match="of another runtime"):
        runtime.forward([Call(rows, stranger)])
    with pytest.raises(SessionError):
        large.load({"state": np.zeros(9, np.uint8), "length": np.array([1])})
    before = runtime.pages
    del small, large
    assert runtime.pages <= before


def test_pages_are_given_back(bundle):
    runtime = cuda.open(bundle("plain", "f32"), RuntimeOptions(kv="f32"))
    cache = runtime.new_cache(200)
    logits_of(runtime, Rows.chain(np.arange(130) % 101, 0), cache, 129)
    cache.commit(range(130))
    assert runtime.pages == 3
    twin = cache.fork(70)
    assert runtime.pages == 3
    logits_of(runtime, Rows.chain([1], 70), twin)  # its second page is shared: copied before it is written
    assert runtime.pages == 4
    del twin
    cache.truncate(64)
    assert runtime.pages == 1
    del cache
    assert runtime.pages == 0


def test_no_device_is_one_line(bundle, monkeypatch):
    monkeypatch.setenv("EDGEDEC_CUDA", "9")
    with pytest.raises(RuntimeUnavailable) as error:
        open_runtime("cuda", bundle("plain", "f32"))
    assert "\n" not in str(error.value)


def test_memory_that_a_garbage_collection_gives_back_is_whole(bundle):
    """Caches in cycles end in any order; their states' memory is used again."""
    runtime = cuda.open(bundle("state space", "f32"), RuntimeOptions(kv="f32"))
    pool = runtime._pool
    for _ in range(3):
        cache = runtime.new_cache(8)
        logits_of(runtime, Rows.chain([1, 2], 0), cache)
        cycle = [cache]
        cycle.append(cycle)
        del cache, cycle
        gc.collect()
    for frames in pool.states.frames.values():
        assert set(frames._of) == {piece.number for piece in pool.states._zeros.values() if piece.frames is frames}
        assert len(frames._frames._free) + len(frames._of) == len(frames._frames._slabs)


@pytest.mark.parametrize("model", ["shared slots", "experts by ReLU", "pairs of heads"])
def test_what_it_lacks_is_named(bundle, model):
    reason = cuda.unavailable_reason(bundle(model, "f32"), parse_device("cuda"))
    spec = MODELS[model]
    lacking = [kind for kind in spec.kinds if kind not in cuda.KINDS]
    lacking = lacking or [fact for fact in newer(spec) if fact not in cuda.FACTS_OF_MODELS]
    assert lacking
    assert reason is not None
    assert all(word in reason for word in lacking)
    assert not any(fact in reason for fact in cuda.FACTS_OF_MODELS)
    assert "\n" not in reason


@slow
def test_it_conforms():
    def opened(bundle, options):
        return open_runtime("cuda", bundle, options)

    report = run_suite("cuda", opened)
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []


@slow
def test_nothing_is_read_or_written_out_of_bounds():
    compiler = shutil.which(os.environ.get("CXX", "c++")) or "c++"
    asan = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(asan).is_file():
        pytest.skip("no address sanitizer with this compiler")
    cases = [
        "plain,int4,int8",
        "hybrid,int8,int8",
        "windows,int8,int4",
        "options,f16,f16",
        "layer norms,f32,f32",
        "experts,int4,int4",
        "options,int3,int8",
        "experts,int2,int8",
    ]
    env = os.environ | {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, str(Path(__file__).with_name("sanitized.py")), *cases]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == len(cases)
