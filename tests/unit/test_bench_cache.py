"""`edgedec bench cache`: tasks with known answers, costs in turns, JSON as promised, partial results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec import EdgedecError, UsageError
from edgedec.bench.cache_cost import CostBench, CostReading, CostResult
from edgedec.bench.cache_filled import filled
from edgedec.bench.cache_peers import PeerReadings
from edgedec.bench.cache_quality import QualityBench, alike, at_budgets, right, worded
from edgedec.bench.llama_filled import stretched
from edgedec.cache import memory
from edgedec.cli.bench import _cache_tables, app
from edgedec.kernels.cpu import loader
from edgedec.policies import FAMILY

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
READING = {"prefill_ratio", "prefill_s", "prefill_s_least", "prefill_s_most"}
FACTS = READING | {"step_ratio", "step_ms", "step_ms_least", "step_ms_most", "memory_mb", "memory_ratio"}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


def test_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    words = [
        "cache",
        "--tasks",
        "copy,story",
        "--limit",
        "1",
        "--budgets",
        "0.1,1",
        "--policies",
        "snapkv,h2o:every=16",
    ]
    plot = tmp_path / "costs.png"
    done = CliRunner().invoke(app, [*words, "--context", "200,400", "-t", "1", "--json", "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    copy = report["quality"]["copy"]
    assert copy["full"]["1"] > 0.8
    assert copy["snapkv"]["1"] == copy["h2o:every=16"]["1"] == copy["full"]["1"], "the whole budget is the whole cache"
    assert copy["snapkv"]["0.1"] < 0.5 * copy["full"]["1"]
    assert report["quality"]["story"]["snapkv"]["0.1"] > 0.9 * report["quality"]["story"]["full"]["1"]
    costs = report["policies"]
    assert set(costs) == {"full", *(f"{name}budget={b}" for name in ("snapkv:", "h2o:every=16,") for b in ("0.1", "1"))}
    assert set(costs["snapkv:budget=0.1"]) == {"200", "400"}
    assert set(costs["snapkv:budget=0.1"]["400"]) == FACTS
    assert costs["full"]["400"]["prefill_ratio"] == 1
    assert costs["snapkv:budget=0.1"]["400"]["memory_ratio"] > 1.5 > costs["snapkv:budget=1"]["400"]["memory_ratio"]
    assert plot.stat().st_size > 5000


def test_steps_alone_after_caches_that_were_filled_in() -> None:
    words = ["cache", "--as", "smollm-135m", "--context", "700", "--steps", "--policies", "lserve,snapkv", "-t", "1"]
    words += ["--budgets", "0.2", "-r", "1"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)["policies"]
    assert all(set(found["700"]) == FACTS - READING for found in report.values())
    assert report["snapkv:budget=0.2"]["700"]["memory_ratio"] > 2


@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
def test_a_cache_that_is_filled_in(nano: Path, kv: str) -> None:
    runtime = edgedec.open(nano, engine="native", threads=1, kv=kv).runtime
    cache = filled(runtime, 1024, 1000)
    assert cache.length == 1000
    for block in cache.spec.attention:
        assert cache.positions(block).tolist() == list(range(1000))
        np.testing.assert_array_equal(cache.keys(block)[:, 512:], cache.keys(block)[:, :488])
    with pytest.raises(UsageError, match="use --engine native"):
        filled(edgedec.open(nano, engine="reference").runtime, 1024, 1000)


def test_one_table_of_costs_and_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"prefill_ratio": 1, "prefill_s": 2, "prefill_s_least": 1, "prefill_s_most": 3, "memory_mb": 4.0}
    facts |= {"step_ratio": 0.5, "step_ms": 7.0, "step_ms_least": 6.0, "step_ms_most": 8.5}
    tables = []
    monkeypatch.setattr(_cache_tables, "print_table", lambda rows, head, title: tables.append((head, list(rows))))
    monkeypatch.setattr(_cache_tables, "show_host", lambda report: None)
    monkeypatch.setattr(_cache_tables, "runs_on", lambda report: "")
    names = ("full", "snapkv:budget=0.1", "snapkv:budget=0.5", "anchor", "h2o:budget=0.1")
    values = {"full": {"1": 0.9}, "snapkv": {"0.1": 0.25, "0.5": 0.75}, "anchor": {"1": 0.8}}
    report = {"model": "m", "lossy": "", "quality": {"keys": values}, "policies": {n: {"64": facts} for n in names}}
    _cache_tables.show_report(report)
    head, rows = tables[-1]
    assert head[-1] == "keys"
    assert [row[-1] for row in rows] == ["0.900", "0.250", "0.750", "0.800", ""]
    assert rows[1][:4] == ("snapkv:budget=0.1", "64", "1.00", "0.50")
    assert rows[1][5] == "7.00 (6.00 to 8.50)"
    facts |= {"step_ms_least": 7.0, "step_ms_most": 7.0}
    _cache_tables.show_report(report)
    assert tables[-1][1][1][5] == "7.00"


def test_policies_at_budgets() -> None:
    found = at_budgets(["snapkv", "anchor", "tca:budget=0.3", "lazyllm:prune=1"], [0.1, 0.5])
    assert found == {
        "snapkv:budget=0.1": ("snapkv", 0.1),
        "snapkv:budget=0.5": ("snapkv", 0.5),
        "anchor": ("anchor", 1.0),
        "tca:budget=0.3": ("tca:budget=0.3", 1.0),
        "lazyllm:prune=1,keep=0.1": ("lazyllm:prune=1", 0.1),
        "lazyllm:prune=1,keep=0.5": ("lazyllm:prune=1", 0.5),
    }


def test_costs_have_five_rounds_unless_told_otherwise() -> None:
    said = []
    words = [
        "cache",
        "--tasks",
        "pairs",
        "--limit",
        "1",
        "--budgets",
        "0.5",
        "--policies",
        "streaming",
        "--context",
        "64",
    ]
    for more in ([], ["-r", "2"]):
        done = CliRunner().invoke(app, [*words, *more, "-t", "1", "--json"])
        assert done.exit_code == 0, done.output
        said.append(json.loads(done.stdout)["rounds"])
    assert said == [5, 2]


def test_the_table(nano: Path) -> None:
    words = [
        "cache",
        "--tasks",
        "pairs",
        "--limit",
        "1",
        "--budgets",
        "0.5",
        "--policies",
        "streaming",
        "--context",
        "100",
    ]
    done = CliRunner().invoke(app, [*words, "-t", "1"])
    assert done.exit_code == 0, done.output
    assert "pairs: share that is right" in done.stdout
    assert "step ratio" in done.stdout


def test_every_policy_takes_part() -> None:
    words = ["cache", "--tasks", "pairs", "--limit", "1", "--budgets", "0.5", "-t", "1", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["quality"]["pairs"]
    assert set(found) == {"full", *(name for name in FAMILY.names() if name not in ("aif", "vision"))}
    assert {"snapkv", "lazyllm", "anchor"} < set(found)
    assert [sorted(found[name]) for name in ("full", "anchor", "snapkv")] == [["1"], ["1"], ["0.5"]]


def test_interrupted_measurements_are_kept(model: edgedec.Model) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    quality = QualityBench(model, ["copy"], 1024, 1).measure(["snapkv"], [0.2, 0.5, 1.0], stop)
    assert quality.interrupted
    assert list(quality.report()["copy"]["snapkv"]) == ["0.2"]
    costs = CostBench(model, [64, 128], ["snapkv"]).measure(1, stop, lambda seconds: None)
    assert costs.interrupted
    assert set(costs.report()["snapkv"]) == {"64"}


def test_caches_that_do_not_fit_beside_each_other_are_refused(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are in memory at once, so the system would end the process."""
    bench = CostBench(model, [64], ["snapkv", "quest", "streaming"])
    size = bench._read(64, "full", 0, CostReading()).cache.nbytes
    room = iter([None, int(1.5 * size), int(1.5 * size) - 1])
    monkeypatch.setattr(memory, "available_memory", lambda: next(room, 1 << 40))
    with pytest.raises(UsageError, match=r"after 2 there is no room for another of 0 MiB; name fewer policies"):
        bench.measure(1, lambda done, total: None, lambda seconds: None)
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    bench.measure(1, lambda done, total: None, lambda seconds: None)


def test_an_estimate_comes_first(model: edgedec.Model) -> None:
    said: list[float] = []
    CostBench(model, [256], ["streaming"]).measure(1, lambda done, total: None, said.append)
    assert len(said) == 1
    assert said[0] > 0


def test_ratios_are_of_the_whole_cache() -> None:
    readings = {"full": CostReading([4.0, 6.0], [0.4, 0.4], 8 << 20), "x": CostReading([2.0, 2.0], [0.1, 0.2], 2 << 20)}
    facts = CostResult({64: readings}).report()["x"]["64"]
    assert (facts["prefill_ratio"], facts["step_ratio"], facts["memory_ratio"]) == (2.5, 3.0, 4.0)
    assert (facts["step_ms"], facts["step_ms_least"], facts["step_ms_most"]) == (150, 100, 200)
    assert (facts["prefill_s_least"], facts["prefill_s_most"]) == (2, 2)


def test_scores_of_answers() -> None:
    assert alike([1, 2, 9, 3], [1, 2, 3, 4]) == 0.75
    assert right([4, 5, 1], [4, 5, 6, 7]) == 0.5
    assert right([], [4]) == 0
    assert worded("snapkv", 0.2) == "snapkv:budget=0.2"
    assert worded("snapkv:window=16", 0.2) == "snapkv:window=16,budget=0.2"
    assert worded("lazyllm", 0.3) == "lazyllm:keep=0.3"


def test_refusals(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match=r"--context 1024: with 64 steps"):
        CostBench(model, [1024], [])
    for words, said in {
        "--budgets 0,2": "above 0, up to 1",
        "--tasks nothing": "no task 'nothing'",
        "--context x": "must be numbers",
        "--policies nothing --context 64": "no policy 'nothing'",
    }.items():
        done = CliRunner().invoke(app, ["cache", *words.split()])
        assert done.exit_code != 0
        assert said in done.output + str(done.exception)


def test_another_engine_beside_it() -> None:
    pytest.importorskip("llama_cpp", reason="compares with llama-cpp-python")
    for steps in ((), ("--steps",)):
        words = ["cache", "--as", "smollm-135m", "--context", "700", "--kv", "int8", "--policies", "snapkv", "-t", "1"]
        done = CliRunner().invoke(app, [*words, "--peers", "llama.cpp", "--json", *steps])
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        facts = {"step_ratio", "step_ms"} | (set() if steps else {"prefill_ratio", "prefill_s"})
        assert set(report["peers"]["llama.cpp"]["700"]) == facts
        assert report["peers"]["llama.cpp"]["700"]["step_ms"] > 0
        assert "skipped" not in report


def test_another_engine_that_cannot_take_part() -> None:
    def missing(context: int) -> tuple[float, float]:
        raise UsageError(f"no {context}")

    readings = PeerReadings()
    for _ in range(2):
        readings.add({"one": missing, "two": lambda context: (6.0, 0.2)}, 64)
    assert readings.left_out == {"one": "no 64"}
    assert readings.report({64: ([2.0, 3.0], [0.1, 0.4])}) == {
        "two": {"64": {"prefill_ratio": 2.5, "prefill_s": 6.0, "step_ratio": 1.25, "step_ms": 200.0}}
    }


def test_states_of_llama_cpp_that_are_saved_in_another_way() -> None:
    held, row = 3, 4
    cells = np.stack([np.arange(held), np.ones(held), np.zeros(held)], 1).astype(np.int32)
    parts = [np.array([7, 0, 1, held], np.uint32), cells, np.array([0, 1], np.uint32)]
    for _ in range(2):
        parts += [np.array([8], np.int32), np.array([row], np.uint64), np.arange(held * row, dtype=np.uint8)]
    state = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
    long = np.concatenate(list(stretched(state, 7)))
    assert len(long) == 16 + 7 * 12 + 8 + 2 * (12 + 7 * row)
    assert long[-7 * row :].tolist() == [*range(12), *range(12), *range(4)]
    for at, value in ((8, 2), (20, 7), (52, 1), (56, 2)):
        wrong = state.copy()
        wrong[at] = value
        with pytest.raises(EdgedecError, match="in another way"):
            list(stretched(wrong, 7))


def test_quality_is_measured_where_the_model_is_the_trained_one() -> None:
    """A padded model writes the same text, so that its cost is asked for alone unless tasks are named."""
    from edgedec.bench.cache_quality import TASKS
    from edgedec.cli.bench.cache import QualityFlags

    assert QualityFlags().chosen("smollm-135m") == []
    assert QualityFlags().chosen(None) == list(TASKS)
    assert QualityFlags(tasks=next(iter(TASKS))).chosen("smollm-135m") == [next(iter(TASKS))]
