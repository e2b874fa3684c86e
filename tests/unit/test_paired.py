"""`--device auto`: which engine prefills and which decodes, and a runtime over two that computes as if it were one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.bundle import Bundle
from edgedec.cache import HostCache
from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import (
    Call,
    CallResult,
    Outputs,
    Rows,
    Runtime,
    RuntimeOptions,
    logits_of,
    open_runtime,
    why_chosen,
)
from edgedec.runtimes import paired
from edgedec.runtimes.paired import Surveyed
from edgedec.runtimes.paired.cache import PairedCache
from edgedec.runtimes.paired.costs import CPU, EngineCosts, Rule, Split, best_split, seconds_of
from edgedec.runtimes.paired.kept import read_costs
from edgedec.runtimes.paired.runtime import PairedRuntime
from edgedec.testing.conformance import run_suite
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

native = pytest.importorskip("edgedec.runtimes.native")
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="half a minute; set EDGEDEC_SLOW_TESTS")
SLOW_PHONE = EngineCosts((1, 8, 128), (0.02, 0.10, 1.60))
WIDE_GPU = EngineCosts((1, 8, 128), (0.05, 0.06, 0.20), 0.001, 1e-5)
# From two rows on the second engine is taken, whatever it costs to hand a text over.
EAGER = Rule(EngineCosts((1, 2, 64), (1.0, 1.0, 1.0)), EngineCosts((1, 2, 64), (1.0, 9.0, 300.0)), 0.0, 0.0)


# ---- which engine ----


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (WIDE_GPU, Split("opencl", CPU)),
        (replace(WIDE_GPU, seconds=(0.005, 0.006, 0.02)), Split("opencl", "opencl")),
        (replace(WIDE_GPU, seconds=(0.05, 0.4, 6.0)), Split(CPU, CPU)),
        (replace(WIDE_GPU, seconds=(0.005, 0.3, 9.0)), Split(CPU, "opencl")),
        # What it gains in prefill goes into handing the text over.
        (replace(WIDE_GPU, seconds=(0.08, 0.09, 0.20), each=0.02), Split(CPU, CPU)),
        # A twentieth is not worth the memory.
        (replace(SLOW_PHONE, seconds=(0.0196, 0.099, 1.55)), Split(CPU, CPU)),
    ],
)
def test_who_does_what(gpu: EngineCosts, expected: Split) -> None:
    costs = {CPU: SLOW_PHONE, "opencl": gpu}
    assert best_split(costs, 4096) == expected
    alone = min(seconds_of(costs, Split(name, name), 4096) for name in costs)
    assert 0.95 * seconds_of(costs, expected, 4096) <= alone


def test_of_several_gpus_the_one_that_helps_most() -> None:
    costs = {CPU: SLOW_PHONE, "opencl": WIDE_GPU, "cuda": replace(WIDE_GPU, seconds=(0.05, 0.05, 0.06))}
    assert best_split(costs, 4096) == Split("cuda", CPU)


seconds = st.floats(1e-5, 100)
engines = st.builds(
    lambda s, fixed, each: EngineCosts((1, 8, 128), tuple(s), fixed, each),
    st.lists(seconds, min_size=3, max_size=3),
    st.floats(0, 1),
    st.floats(0, 0.1),
)


@given(cpu=engines, gpu=engines, context=st.integers(2, 10000))
def test_the_split_is_never_slower_than_the_cpu(cpu: EngineCosts, gpu: EngineCosts, context: int) -> None:
    costs = {CPU: cpu, "cuda": gpu}
    found = best_split(costs, context)
    assert seconds_of(costs, found, context) <= seconds_of(costs, Split(CPU, CPU), context)


@given(cpu=engines, gpu=engines, rows=st.integers(1, 300), length=st.integers(0, 5000))
def test_a_call_is_prefilled_only_where_all_of_it_takes_less(
    cpu: EngineCosts, gpu: EngineCosts, rows: int, length: int
) -> None:
    rule = Rule(gpu, cpu, gpu.fixed, gpu.each)
    if rule.prefills(rows, (0, length), length + rows):
        assert rows >= rule.least > 1
        assert gpu.call(rows) + gpu.hand_over(length + rows) < cpu.call(rows)
    assert not rule.prefills(1, (length, 0), length + 1)


def test_long_texts_are_not_handed_over_for_a_few_rows() -> None:
    rule = Rule.of({CPU: SLOW_PHONE, "opencl": replace(WIDE_GPU, each=1e-3)}, Split("opencl", CPU))
    assert rule.least == 8
    assert rule.prefills(128, (0, 0), 128)
    assert rule.prefills(128, (256, 0), 384)  # a further chunk of a prompt
    assert not rule.prefills(8, (0, 2000), 8)  # a draft tree in a long text
    assert not rule.prefills(128, (0, 2000), 128)
    assert not rule.prefills(128, (0, 40), 2128)  # where all of it goes back
    assert rule.prefills(128, (0, 100), 128)
    assert rule.prefills(128, (0, 40), 128)  # the next turn of a long chat


# ---- measured once ----


class Paced(native.NativeRuntime):
    """The native engine, which takes so many seconds for a call of so many rows."""

    def pace(self, device: str, first: float, each: float, driver: str = "1.0") -> Paced:
        self.name, self.first, self.each, self.measured_calls = device, first, each, 0
        self.capabilities = replace(self.capabilities, device=device, driver=driver)
        return self

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.measured_calls += 1
        time.sleep(self.first + self.each * sum(call.rows.count for call in calls))
        return super().forward(calls)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a bundle of random weights, once for each model and format."""
    made: dict[tuple[str, str], Bundle] = {}

    def make(model: str = "plain", fmt: Any = "int4") -> Bundle:
        if (model, fmt) not in made:
            folder = tmp_path_factory.mktemp("paired") / "bundle"
            made[model, fmt] = write_bundle(folder, MODELS[model], random_weights(MODELS[model]), fmt)
        return made[model, fmt]

    return make


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A machine whose engines take what the test says: seconds of a call and of each row, by device."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    found: dict[str, Any] = {CPU: (0.002, 0.002), "made": []}

    def opened(name: str, bundle: Bundle, options: RuntimeOptions) -> Runtime:
        first, each, *driver = found[options.device]
        made = Paced(bundle, options.kv or "int8", 1).pace(options.device, first, each, *driver)
        found["made"].append(made)
        return made

    monkeypatch.setattr(paired, "open_engine", opened)
    monkeypatch.setattr(paired, "reason_against", lambda name, bundle, device: None if device in found else "not here")
    return found


@needs_native
def test_a_gpu_that_reads_quickly_and_writes_slowly_prefills(bundles: Any, machine: dict[str, Any]) -> None:
    machine["opencl"] = (0.02, 0.0)
    runtime = paired.open(bundles(), RuntimeOptions(kv="int8", device="auto"))
    assert isinstance(runtime, PairedRuntime)
    assert [engine.name for engine in runtime.engines] == [CPU, "opencl"]
    assert why_chosen(runtime).startswith("opencl for prefill, cpu for decode: cpu ")
    assert "cuda: not here" in why_chosen(runtime)
    cache = runtime.new_cache(300)
    logits_of(runtime, Rows.chain([i % 101 for i in range(128)], 0), cache, 127)
    assert runtime.calls == [0, 1]
    cache.commit(range(128))
    logits_of(runtime, Rows.chain([1], 128), cache)
    assert (runtime.calls, runtime.moved[0]) == ([1, 1], (128, 1))


@needs_native
@pytest.mark.parametrize(
    ("gpu", "alone"), [((0.0, 0.0), "opencl"), ((0.02, 0.01), CPU)], ids=["quicker at both", "slower at both"]
)
def test_an_engine_that_is_quicker_at_both_is_opened_alone(
    bundles: Any, machine: dict[str, Any], gpu: tuple[float, float], alone: str
) -> None:
    machine["opencl"] = gpu
    runtime = paired.open(bundles(), RuntimeOptions(kv="int8", device="auto"))
    assert runtime.name == alone
    assert why_chosen(runtime).startswith(f"{alone} alone: cpu ")


@needs_native
def test_it_is_measured_once_by_bundle_and_driver(bundles: Any, machine: dict[str, Any], tmp_path: Path) -> None:
    def calls(fmt: str = "int4") -> int:
        machine["made"].clear()
        paired.open(bundles("plain", fmt), RuntimeOptions(kv="int8", device="auto"))
        return sum(int(made.measured_calls) for made in machine["made"])

    machine["opencl"] = (0.004, 0.0)
    assert calls() > 10
    assert calls() == 0
    machine["opencl"] = (0.004, 0.0, "1.1")
    assert calls() > 10
    assert calls() == 0
    assert calls("int8") > 10
    for kept in (tmp_path / "engines").iterdir():
        kept.write_bytes(kept.read_bytes()[:-9])
    assert calls() > 10


@needs_native
def test_an_engine_that_fails_is_passed_over_and_named(bundles: Any, machine: dict[str, Any]) -> None:
    machine["opencl"] = (0.0, 0.0)

    class Broken(Paced):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            raise MemoryError("Mali: no 700000000 bytes of memory")

    for n in range(2):
        found = Surveyed.of(bundles(), RuntimeOptions(kv="int8", device="auto"))
        if not n:
            assert found.split == Split("opencl", "opencl")
    original = paired.open_engine

    def opened(name: str, bundle: Bundle, options: RuntimeOptions) -> Runtime:
        made = original(name, bundle, options)
        if options.device == "opencl":
            made.__class__ = Broken
            made.capabilities = replace(made.capabilities, driver="2.0")
        return made

    paired.open_engine = opened  # the fixture puts it back
    for words in ("failed when it was measured: Mali: no 700000000 bytes", "edgedec doctor --device auto"):
        runtime = paired.open(bundles(), RuntimeOptions(kv="int8", device="auto"))
        assert runtime.name == CPU
        assert words in why_chosen(runtime)


@needs_native
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Mali: the driver left"), "opencl: Mali: the driver left"),
        (MemoryError(), "opencl: MemoryError"),
        (MemoryError("no 80 bytes"), "opencl: no 80 bytes"),
    ],
)
@pytest.mark.parametrize("at", ["opening", "new_cache", "forward"])
def test_an_engine_that_does_not_open_is_passed_over(
    bundles: Any, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at: str, error: Exception, words: str
) -> None:
    machine["opencl"] = (0.0, 0.0)
    original, failed = paired.open_engine, list[str]()

    def fails(*_: object) -> Any:
        failed.append(at)
        raise error

    def opened(name: str, bundle: Bundle, options: RuntimeOptions) -> Runtime:
        if options.device != "opencl":
            return original(name, bundle, options)
        made = fails() if at == "opening" else original(name, bundle, options)
        setattr(made, at, fails)
        return made

    monkeypatch.setattr(paired, "open_engine", opened)
    runtime = paired.open(bundles(), RuntimeOptions(kv="int8", device="auto"))
    assert runtime.name == CPU
    assert failed
    expected = words.replace(": ", ": failed when it was measured: ", 1) if at == "forward" else words
    assert expected in why_chosen(runtime) or at == "forward"
    assert expected in Surveyed.of(bundles(), RuntimeOptions(kv="int8", device="auto"), again=True).why()


def test_without_a_gpu_nothing_is_measured(nano: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    for name in ("EDGEDEC_CUDA", "EDGEDEC_OPENCL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDGEDEC_OPENCL", "no such device")
    monkeypatch.setattr(paired, "measured", lambda *_: pytest.fail("something was measured"))
    if paired.reason_against("cuda", Bundle.open(nano), "cuda") is None:
        pytest.skip("there is an NVIDIA GPU")
    runtime = edgedec.open(nano, device="auto").runtime
    assert runtime.name == edgedec.open(nano).runtime.name
    assert why_chosen(runtime).startswith("cpu alone: no other engine here (cuda: ")
    assert not list(tmp_path.rglob("*.json"))


def test_it_is_opened_by_its_device_only(nano: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"engine paired: .*--device auto"):
        open_runtime("paired", Bundle.open(nano))


@settings(max_examples=50, deadline=None)
@given(
    data=st.binary()
    | st.dictionaries(
        st.sampled_from([CPU, "cuda", "x"]),
        st.fixed_dictionaries({}, optional={"rows": st.lists(st.integers()), "seconds": st.lists(st.floats())})
        | st.none()
        | st.integers(),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_file_of_costs_is_read_or_passed_over(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "costs.json"
    path.write_bytes(data)
    found = read_costs(path, {CPU: 0, "cuda": 0})
    assert found is None or (CPU in found and all(costs.sound for costs in found.values()))


# ---- two engines as one ----


def pair(bundle: Bundle, kv: str | None = "int8", rule: Rule = EAGER, other: str = "native") -> PairedRuntime:
    options = RuntimeOptions(threads=1, kv=kv)
    return PairedRuntime(open_runtime("native", bundle, options), open_runtime(other, bundle, options), rule)


@needs_native
@pytest.mark.parametrize("model", ["plain", "hybrid", pytest.param("", marks=slow, id="all")])
def test_it_conforms(bundles: Any, model: str) -> None:
    opened = list[PairedRuntime]()

    def make(bundle: Bundle, options: RuntimeOptions) -> Runtime:
        engines = [open_runtime("native", bundle, options) for _ in range(2)]
        opened.append(PairedRuntime(engines[0], engines[1], EAGER))
        return opened[-1]

    report = run_suite("native+native", make, bundles(model, "f32") if model else None)
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert len(report.findings) > 30
    assert sum(runtime.calls[0] for runtime in opened) > 20
    assert sum(runtime.calls[1] for runtime in opened) > 50
    assert sum(times for runtime in opened for _, times in runtime.moved) > 20


def told(runtime: Runtime, ids: Sequence[int]) -> list[bytes]:
    """What comes of a text, of trees, of a fork, of a way back, of further prefill."""
    cache = runtime.new_cache(200)
    found = [logits_of(runtime, Rows.chain(ids, 0), cache, len(ids) - 1)]
    cache.commit(range(len(ids)))
    for rows in (Rows.chain([5], len(ids)), Rows.tree([1, 2, 3], [-1, 0, 0], len(ids) + 1)):
        found.append(logits_of(runtime, rows, cache))
        cache.commit([0])
    fork = cache.fork(len(ids) - 3)
    for one in (cache, fork):
        found.append(logits_of(runtime, Rows.chain(ids[:20], one.length), one, 19))
        one.commit(range(20))
        found.append(logits_of(runtime, Rows.chain([9], one.length), one))
        one.commit([0])
    cache.truncate(cache.length - 10)
    found.append(logits_of(runtime, Rows.chain([4, 4, 4], cache.length), cache))
    cache.rollback()
    return [array.tobytes() for array in found] + [cache.save()["state"].tobytes(), fork.save()["state"].tobytes()]


@needs_native
@pytest.mark.parametrize(
    ("model", "kv"), [("plain", "int8"), ("windows", "int4"), ("experts", "f16"), ("plain", "f32")]
)
def test_its_bytes_are_those_of_one_engine(bundles: Any, model: str, kv: str) -> None:
    bundle = bundles(model)
    runtime, ids = pair(bundle, kv), [i * 7 % 101 for i in range(70)]
    assert told(runtime, ids) == told(open_runtime("native", bundle, RuntimeOptions(threads=1, kv=kv)), ids)
    assert min(runtime.calls) > 2
    assert min(times for _, times in runtime.moved) > 0
    assert runtime.capabilities.batch_invariant


@needs_native
def test_prefill_and_decode_of_one_forward_run_at_once(bundles: Any) -> None:
    bundle, began = bundles(), list[tuple[str, float, float]]()

    class Timed(native.NativeRuntime):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            start = time.perf_counter()
            time.sleep(0.05)
            found: list[CallResult] = super().forward(calls)
            began.append((self.tag, start, time.perf_counter()))
            return found

    engines = [Timed(bundle, "int8", 1) for _ in range(2)]
    engines[0].tag, engines[1].tag = "decode", "prefill"
    runtime, plain = PairedRuntime(*engines, EAGER), open_runtime("native", bundle, RuntimeOptions(kv="int8"))
    found = []
    for one in (runtime, plain):
        caches = [one.new_cache(64), one.new_cache(64)]
        calls = [
            Call(Rows.chain([1], 0), caches[0], outputs=Outputs(True)),
            Call(Rows.chain(list(range(40)), 0), caches[1], outputs=Outputs(True)),
        ]
        found.append([result.logits.tobytes() for result in one.forward(calls) if result.logits is not None])
    assert found[0] == found[1]
    (_, start, stop), (_, other, end) = began
    assert {tag for tag, *_ in began} == {"decode", "prefill"}
    assert max(start, other) < min(stop, end)


@needs_native
def test_what_the_engine_for_prefill_has_no_room_for_is_run_by_the_other(bundles: Any) -> None:
    bundle = bundles()

    class Small(native.NativeRuntime):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            if calls[0].cache.length:
                raise MemoryError("no room")
            return super().forward(calls)

    runtime = PairedRuntime(native.NativeRuntime(bundle, "int8", 1), Small(bundle, "int8", 1), EAGER)
    plain = open_runtime("native", bundle, RuntimeOptions(kv="int8"))
    found = []
    for one in (runtime, plain):
        cache = one.new_cache(64)
        for n in (20, 20):
            rows = Rows.chain(list(range(n)), cache.length)
            found.append(logits_of(one, rows, cache).tobytes())
            cache.commit(range(n))
    assert found[:2] == found[2:]
    assert runtime.calls == [1, 1]


@needs_native
def test_errors_are_those_of_one_engine(bundles: Any) -> None:
    runtime = pair(bundles())
    cache = runtime.new_cache(8)
    with pytest.raises(ContextFull):
        logits_of(runtime, Rows.chain(list(range(9)), 0), cache)
    with pytest.raises(UsageError, match="cannot truncate"):
        cache.truncate(1)
    with pytest.raises(UsageError):
        cache.commit([0, 1])
    with pytest.raises(UsageError, match="another runtime"):
        logits_of(runtime, Rows.chain([1], 0), runtime.engines[0].new_cache(8))
    with pytest.raises(UsageError, match="two calls for one cache"):
        runtime.forward([Call(Rows.chain([1], 0), cache), Call(Rows.chain([1], 0), cache)])


@needs_native
def test_a_text_too_long_for_one_engine_s_memory_is_run_by_the_other(bundles: Any) -> None:
    runtime = pair(bundles())
    assert runtime.longest is None
    runtime.engines[1].longest = 100
    assert runtime.longest is None
    cache, ids = runtime.new_cache(200), [i * 7 % 101 for i in range(130)]
    for at, end, calls in ((0, 60, [0, 1]), (60, 100, [0, 2]), (100, 130, [1, 2])):
        logits_of(runtime, Rows.chain(ids[at:end], at), cache)
        cache.commit(range(end - at))
        assert runtime.calls == calls
    plain = open_runtime("native", bundles(), RuntimeOptions(threads=1, kv="int8"))
    other = plain.new_cache(200)
    logits_of(plain, Rows.chain(ids, 0), other)
    other.commit(range(130))
    assert cache.save()["state"].tobytes() == other.save()["state"].tobytes()
    runtime.engines[0].longest = 64
    assert runtime.longest == 100


@needs_native
@pytest.mark.parametrize("model", ["plain", "hybrid"])
def test_a_long_chat_hands_over_what_is_new(bundles: Any, model: str) -> None:
    """A prompt, an answer, the next turn, another answer: each token goes to the other engine once."""
    runtime = pair(bundles(model))
    cache, ids, moved = runtime.new_cache(600), [i * 7 % 101 for i in range(420)], list[list[int]]()
    for at, end, each in ((0, 300, 60), (300, 305, 1), (305, 345, 40), (345, 350, 1)):
        for first in range(at, end, each):
            logits_of(runtime, Rows.chain(ids[first : first + each], first), cache)
            cache.commit(range(each))
        moved.append([tokens for tokens, _ in runtime.moved])
    # To decode the prompt; to prefill the answer's five tokens; to decode the next turn.
    assert moved == [[0, 0], [300, 0], [300, 5], [340, 5]]
    assert runtime.calls == [10, 6]
    plain = open_runtime("native", bundles(model), RuntimeOptions(threads=1, kv="int8"))
    other, sizes = plain.new_cache(600), list[int]()
    for at, end in ((0, 150), (150, 300), (300, 305), (305, 345), (345, 350)):
        logits_of(plain, Rows.chain(ids[at:end], at), other)
        other.commit(range(end - at))
        sizes.append(len(other.save()["state"]))
    assert cache.save()["state"].tobytes() == other.save()["state"].tobytes()
    states = sum(len(rest) for rest in [other.save_rest(350)])  # what is handed over beside rows
    each = (sizes[1] - states) / 300
    assert runtime.moved_bytes[1] < 6 * each + states
    assert runtime.moved_bytes[0] < 345 * each + 2 * states


@needs_native
@settings(max_examples=30, deadline=None)
@given(
    start=st.integers(0, 150),
    more=st.integers(0, 150),
    model=st.sampled_from(["plain", "hybrid", "windows"]),
    fork=st.booleans(),
)
def test_a_cache_that_follows_another_is_the_same(bundles: Any, start: int, more: int, model: str, fork: bool) -> None:
    runtime = open_runtime("native", bundles(model), RuntimeOptions(threads=1, kv="int8"))
    whole = runtime.new_cache(320)
    ids = [i * 7 % 101 for i in range(start + more)]
    followers = []
    for first, tokens in ((0, ids[:start]), (start, ids[start:])):
        if tokens:
            logits_of(runtime, Rows.chain(tokens, first), whole, len(tokens) - 1)
            whole.commit(range(len(tokens)))
        followers.append(whole.fork())
    follower = followers[0]
    twin = follower.fork() if fork else None
    rest = whole.save_rest(start)
    assert rest is not None
    assert follower.append(rest)
    assert (follower.length, follower.save()["state"].tobytes()) == (whole.length, whole.save()["state"].tobytes())
    if more:
        assert not follower.append(rest)  # it begins elsewhere
        assert not followers[0].fork(start).append(rest[:-1])
    if twin is not None:
        assert twin.length == start
        assert twin.save()["state"].tobytes() == whole.fork(start).save()["state"].tobytes() or model == "hybrid"


def forward(runtime: Runtime, cache: Any, *calls: int) -> None:
    """Calls of so many rows each, which are kept."""
    for rows in calls:
        logits_of(runtime, Rows.chain([i * 7 % 101 for i in range(rows)], cache.length), cache)
        cache.commit(range(rows))


@needs_native
@pytest.mark.parametrize("change", ["drop", "drop_by_head", "attach", "load"])
def test_a_text_with_gaps_is_counted_whole(bundles: Any, change: str) -> None:
    """What is left of it does not follow what another cache has."""
    runtime = pair(bundles())
    cache, block = runtime.new_cache(128), next(iter(runtime.spec.attention))
    forward(runtime, cache, 40, 1, 20)
    assert (runtime.moved, cache.lacking()) == ([(40, 1), (1, 1)], (20, 0))
    if change == "drop_by_head":
        cache.drop_by_head(block, np.array([[3, 4]] * runtime.spec.attention[block].n_kv_heads))
    elif change == "attach":
        logits_of(runtime, Rows.chain([1, 2], 61), cache)
        cache.attach(2)
    else:
        cache.drop(block, [3, 4])
    if change == "load":
        saved = {name: array.copy() for name, array in cache.save().items()}
        cache = runtime.new_cache(128)
        cache.load(saved)
    assert isinstance(cache, PairedCache)
    twin, before = cache.fork(), runtime.moved[:]
    for one in (cache, twin):
        forward(runtime, one, 1)  # to decode, where it is not there yet
        assert one.lacking() == (0, 62)
        forward(runtime, one, 3)
        assert one.lacking() == (65, 0)
    assert runtime.moved[1] == (before[1][0] + 2 * 62, before[1][1] + 2)
    twin.truncate(2)
    forward(runtime, twin, 1)
    assert twin.lacking() == (0, 1)  # from there on it is contiguous


@needs_native
def test_layouts_that_are_handed_over_whole_are_counted_so(bundles: Any) -> None:
    options = RuntimeOptions(kv="f32")
    engines = [open_runtime("reference", bundles("plain", "f32"), options) for _ in range(2)]
    runtime = PairedRuntime(*engines, EAGER)
    cache = runtime.new_cache(128)
    forward(runtime, cache, 40, 1, 20)
    assert runtime.moved == [(40, 1), (41, 1)]
    assert cache.lacking() == (61, 0)


# ---- engines of another layout ----


@needs_native
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_floats_are_handed_over_between_layouts(bundles: Any, kv: str) -> None:
    runtime = pair(bundles("plain", "f32"), kv, other="reference")
    plain = open_runtime("native", bundles("plain", "f32"), RuntimeOptions(kv=kv))
    assert not runtime.capabilities.batch_invariant
    ids, found = [i * 7 % 101 for i in range(70)], []
    for one in (runtime, plain):
        cache = one.new_cache(128)
        logits_of(one, Rows.chain(ids, 0), cache)
        cache.commit(range(70))
        found.append(logits_of(one, Rows.chain([5], 70), cache))
        cache.commit([0])
        saved = cache.save()
    assert runtime.calls == [1, 1]
    assert np.abs(found[0] - found[1]).max() < 1e-2 * np.ptp(found[1])
    assert cache.kind == f"native-{kv}"
    back = runtime.new_cache(128)
    back.load(saved)
    logits_of(runtime, Rows.chain(ids[:8], 71), back)
    assert runtime.calls == [1, 2]


@needs_native
def test_caches_with_scales_of_another_kind_are_not(bundles: Any) -> None:
    with pytest.raises(RuntimeUnavailable, match="no common layout"):
        pair(bundles(), "int8", other="reference")


@needs_native
def test_what_was_dropped_stays_where_it_was(bundles: Any) -> None:
    """Between layouts a text with gaps is not handed over: calls stay on the engine that has it."""
    runtime = pair(bundles("plain", "f32"), "f32", other="reference")
    cache = runtime.new_cache(128)
    logits_of(runtime, Rows.chain(list(range(40)), 0), cache)
    cache.commit(range(40))
    block = next(iter(runtime.spec.attention))
    cache.drop(block, [3, 4])
    assert (cache.slots(block), cache.length) == (38, 40)
    for rows in (Rows.chain([1], 40), Rows.chain(list(range(9)), 41)):
        logits_of(runtime, rows, cache)
        cache.commit(range(rows.count))
    assert isinstance(cache, PairedCache)
    assert cache.lacking() == (cache.length, 0)
    assert runtime.moved == [(0, 0), (0, 0)]


# ---- sessions ----


@needs_native
@pytest.mark.parametrize("speculate", ["off", "auto", "copy:fixed=3"])
def test_a_text_is_that_of_one_engine(nano: Path, tmp_path: Path, speculate: str) -> None:
    text = "Tom had a red ball. Tom had a red ball. Tom had a"
    models = [edgedec.open(nano, kv="int8", prefix_tokens=4096) for _ in range(2)]
    models[0].runtime = pair(models[0].bundle)
    told = []
    for model in models:
        session = model.session(context=256, speculate=speculate)
        words = "".join(session.generate(text, max_tokens=20))
        fork = session.fork()
        words += "|" + "".join(fork.generate(fork.model.tokenizer.decode(fork.ids) + " The end of it.", max_tokens=12))
        path = tmp_path / f"{model.runtime.name}.session"
        session.save(path)
        told.append((words, session.ids, session._context.cache.save()["state"].tobytes()))
        assert session.stats.proposed > 0 or "fixed" not in speculate
    assert told[0] == told[1]
    runtime = models[0].runtime
    assert isinstance(runtime, PairedRuntime)
    assert min(runtime.calls) > 0
    assert runtime.moved[0][1] > 0
    for model, other in (models, models[::-1]):
        session = other.session(context=256, speculate="off")
        session.load(tmp_path / f"{model.runtime.name}.session")
        assert "".join(session.generate(None, max_tokens=8))


@needs_native
def test_texts_share_what_they_begin_with(nano: Path) -> None:
    model = edgedec.open(nano, kv="int8", prefix_tokens=4096)
    model.runtime = pair(model.bundle)
    model.prefixes.__init__(model.runtime.capabilities, 4096)
    text = "Once upon a time there was a little dog who liked to play in the park with his friends. " * 8
    texts = []
    for _ in range(2):
        session = model.session(context=512, speculate="off")
        texts.append("".join(session.generate(text, max_tokens=8)))
    assert session.stats.cached >= 64
    assert texts[0] == texts[1]


def test_the_cache_of_the_host_is_that_of_the_reference() -> None:
    """What `Handover` knows of host arrays is what `HostCache` saves."""
    spec = MODELS["plain"]
    saved = HostCache(spec, 4, "f32").save()
    assert {name.partition(".")[0] for name in saved} == {"length", "kv", "slots"}
