"""`edgedec bench scaling`: the law is found where it holds, and follows what is measured on a real model."""

from __future__ import annotations

import json
from math import log10
from pathlib import Path

import pytest
from cut import first_layers

import edgedec
from edgedec.bench.scaling import Law, Point, best_length, best_size, fit, parameters
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
