"""`edgedec bench scaling`: the law is found where it holds, and follows what is measured on a real model."""

from __future__ import annotations

import json
from math import log10
from pathlib import Path

import pytest
from cut import first_layers

import edgedec
from edgedec import Sampling
from edgedec.bench import scaling, scaling_laws
from edgedec.bench.batch import BatchMeasured
from edgedec.bench.prompts import Prompt
from edgedec.bench.scaling import Law, Point, best_length, best_size, fit, parameters
from edgedec.bench.scaling_laws import LawPoint, by_batch, by_data, fit_log
from edgedec.bench.speculation import Run, tasks_of
from edgedec.cli._app import run_app
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


def flat(rows: int) -> float:
    return 1.0


def test_a_law_that_holds_is_found() -> None:
    points = [Point(str(n), n, -0.4 + 0.15 * log10(n), 0.05 + 2e-8 * n) for n in (10**5, 10**6, 10**7)]
    law = fit(points)
    assert (law.a, law.b, law.c, law.d, law.r2) == pytest.approx((-0.4, 0.15, 0.05, 2e-8, 1.0))
    with pytest.raises(UsageError, match="three"):
        fit(points[:2])


@pytest.mark.parametrize(("p", "step"), [(0.8, 0.1), (0.5, 0.3), (0.9, 0.02), (0.3, 0.9)])
def test_the_best_length_is_the_best_of_all(p: float, step: float) -> None:
    speeds = [sum(p**i for i in range(n + 1)) / (n * step + 1) for n in range(13)]
    length, speed = best_length(p, step, flat)
    assert (length, speed) == (speeds.index(max(speeds)), pytest.approx(max(speeds)))


def test_the_best_size_lies_between_too_weak_and_too_slow() -> None:
    law = Law(-0.6, 0.2, 1.0, 0.0, 2e-8)
    best = best_size(law, (1e4, 1e8), flat)
    assert 1e5 < best.parameters < 1e7
    assert best.speed > max(best_length(law.acceptance(n), law.step(n), flat)[1] for n in (1e4, 1e8))


@needs_native
def test_on_a_real_model_larger_drafters_are_accepted_more_often(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [str(first_layers(nano, tmp_path / str(n), n)) for n in (3, 6)]
    options = ["--exits", "2,4,8", *(part for path in small for part in ("--draft", path))]
    assert run_app(["bench", "scaling", "-t", "1", "-n", "32", *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {drafter["name"]: drafter for drafter in report["drafters"]}
    assert set(found) == {*small, "exit:layer=2", "exit:layer=4", "exit:layer=8"}
    for lesser, larger in ((small[0], small[1]), ("exit:layer=2", "exit:layer=4"), ("exit:layer=4", "exit:layer=8")):
        assert 0 < found[lesser]["acceptance"] < found[larger]["acceptance"] < 1
        assert found[lesser]["parameters"] < found[larger]["parameters"]
    spec = edgedec.open("nano").spec
    assert found["exit:layer=4"]["parameters"] == parameters(spec, 4) == round(parameters(spec) * 4 / spec.n_layers)
    assert report["law"]["b"] > 0.1
    assert report["best"]["speed"] >= 1.0
    assert run_app(["bench", "scaling", "-n", "8", "--exits", "2,3,5", "-t", "1"]) == 0
    assert "log10(weights)" in capsys.readouterr().out


@pytest.mark.parametrize("exits", ["2,99", "2,3"])
def test_what_gives_no_law_is_refused(nano: Path, capsys: pytest.CaptureFixture[str], exits: str) -> None:
    assert run_app(["bench", "scaling", "-n", "8", "--exits", exits]) != 0
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_log_linear_law_is_found_and_its_fit_judged() -> None:
    law = fit_log([LawPoint(n, 0.4 + 0.3 * log10(n)) for n in (1000, 10_000, 1_000_000)], "x")
    assert (law.a, law.b, law.r2) == pytest.approx((0.4, 0.3, 1.0))
    assert law.at(100) == pytest.approx(1.0)
    # By hand: x 0 1 2, y 1 3 2 -> y = 1.5 + 0.5 x, rest 1.5 of 2
    law = fit_log([LawPoint(1, 1.0), LawPoint(10, 3.0), LawPoint(100, 2.0)], "x")
    assert (law.a, law.b, law.r2) == pytest.approx((1.5, 0.5, 0.25))
    assert fit_log([LawPoint(n, 2.0) for n in (1, 2, 4)], "x").r2 == 1.0
    for few in ([], [LawPoint(1, 1.0), LawPoint(1, 2.0), LawPoint(4, 3.0)], [LawPoint(n, 1.0) for n in (0, 1, 2)]):
        with pytest.raises(UsageError, match="--batch: a law needs three different sizes"):
            fit_log(few, "--batch")


def test_tokens_a_call_are_all_tokens_over_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each bundle, in the order of the tokens of training; texts without a call count nothing."""

    class Said:
        def __init__(self, model: str, tasks: object, tokens: int, ignore_eos: bool) -> None:
            assert ignore_eos
            self.model = model

        def measure(self, specs: list[str], rounds: int) -> Said:
            assert specs == ["hydra:fixed=7"]
            runs = {"a": [(10, 5), (2, 1)], "b": [(9, 3)]}[self.model]
            self.runs = {specs[0]: [[Run(tokens=tokens, calls=calls) for tokens, calls in runs]]}
            return self

    monkeypatch.setattr(scaling_laws, "Bench", Said)
    found = by_data("hydra", {2000: "b", 100: "a"}, [], 8, lambda path: path)  # type: ignore[arg-type,return-value]
    assert found == [(100, 2.0), (2000, 3.0)]


def test_the_speed_in_a_batch_is_over_plain_decoding_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {
        "off": {1: [10.0, 20.0, 10.0], 4: [40.0, 40.0, 40.0]},
        "copy": {1: [20.0, 30.0, 50.0], 4: [40.0, 36.0, 44.0]},
    }
    monkeypatch.setattr(scaling_laws, "Ours", lambda model, spec: spec)
    monkeypatch.setattr(
        scaling_laws,
        "measure_batch",
        lambda ours, peers, *given: given == ([1, 4], (8, 9), 3) and BatchMeasured(speeds),
    )
    monkeypatch.setattr(scaling_laws, "work_of", lambda model, prompts, n, tokens: (n, tokens))
    found = by_batch(None, "copy", [1, 4], [], 9)  # type: ignore[arg-type]
    assert found == [(1, 2.0), (4, 1.0)]


@needs_native
def test_laws_are_measured_on_a_real_model(nano: Path) -> None:
    """The same head three times is a flat law; batches of one and two."""
    model = edgedec.open("nano", engine="native", threads=1)
    tasks = tasks_of([Prompt("story", ("Once upon a time",))], Sampling(), 0)
    found = by_data("medusa", dict.fromkeys((10, 100, 1000), "nano"), tasks, 8, lambda path: model)
    assert [point.size for point in found] == [10, 100, 1000]
    assert found[0].value == found[1].value == found[2].value > 1
    found = by_batch(model, "copy:fixed=2", [1, 2], [Prompt("story", ("Once upon a time",))], 8, 1)
    assert [point.size for point in found] == [1, 2]
    assert min(point.value for point in found) > 0


def test_the_command_fits_prints_and_draws_each_law(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="draws with matplotlib")
    points = [Point(f"exit:layer={n}", n * 1000, 0.1 * n, 0.1 * n) for n in (2, 3, 5)]
    monkeypatch.setattr(scaling, "measure", lambda *given, **named: points)
    monkeypatch.setattr(scaling, "row_costs", lambda runtime: flat)
    monkeypatch.setattr(scaling_laws, "by_data", lambda head, trained, *rest: [LawPoint(n, 2.0) for n in trained])
    monkeypatch.setattr(scaling_laws, "by_batch", lambda model, spec, n, *rest: [LawPoint(i, 3.0) for i in n])
    trained = [part for n in ("1e1", "100", "1000") for part in ("--trained", f"{n}=nano")]
    options = ["bench", "scaling", "--exits", "2,3,5", "--batch", "1,2,4", "--head", "medusa", *trained]
    assert run_app([*options, "--json", "--plot", str(tmp_path / "x.png")]) == 0
    laws = json.loads(capsys.readouterr().out)["laws"]
    assert [tuple(point.values()) for point in laws["data"]["points"]] == [(10, 2.0), (100, 2.0), (1000, 2.0)]
    assert (laws["data"]["a"], laws["batch"]["a"]) == pytest.approx((2.0, 3.0))
    assert [point["size"] for point in laws["batch"]["points"]] == [1, 2, 4]
    assert (tmp_path / "x.png").stat().st_size > 1000
    assert run_app(options) == 0
    shown = capsys.readouterr().out
    assert "tokens a call = 2.000" in shown
    assert "speed over plain decoding = 3.000" in shown


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--trained", "x=nano", "--head", "hydra"], "TOKENS=BUNDLE"),
        (["--trained", "100", "--head", "hydra"], "TOKENS=BUNDLE"),
        (["--trained", "100=nano"], "give both"),
        (["--head", "hydra"], "give both"),
    ],
)
def test_what_names_no_trained_heads_is_refused(
    nano: Path, capsys: pytest.CaptureFixture[str], given: list[str], why: str
) -> None:
    assert run_app(["bench", "scaling", *given]) != 0
    assert why in capsys.readouterr().err
