"""Layers skipped for a speed (lossy): as fast as asked, and the text of exactly that smaller model."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import edgedec
from edgedec import skipping as file
from edgedec.cli import _app
from edgedec.drafters._slices.block_search import Skipped
from edgedec.drafters._slices.stack import block_costs
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Hidden, Rows, Runtime, forward_one
from edgedec.skipping import SkippingRuntime, candidates, skipping
from edgedec.testing.fakes import FakeRuntime, random_reference, tiny_spec

SPEC = tiny_spec(n_layers=16, hidden_size=32, inner_size=64)


class Timed(FakeRuntime):
    """A block takes its share of a second, times `odd` for every other one."""

    def __init__(self, odd: float = 1.0) -> None:
        super().__init__(SPEC)
        self.clock, self.odd, self.ran = 0.0, odd, list[int]()
        self.shares, self.rest = block_costs(SPEC)

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> NDArray[np.float32] | None:
        self.clock += self.shares[b] * (self.odd if b % 2 else 1.0)
        self.ran.append(b)
        return super().run_block(b, hidden, call, span)

    def head(self, hidden: Hidden) -> NDArray[np.float32]:
        self.clock += self.rest
        return super().head(hidden)


@pytest.mark.parametrize("odd", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("speed", [1.1, 1.3, 1.5, 2.0, 3.0])
def test_it_is_as_fast_as_asked(speed: float, odd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Timed(odd)
    monkeypatch.setattr(file, "perf_counter", lambda: runtime.clock)
    faster = skipping(runtime, speed)
    assert isinstance(faster, SkippingRuntime)
    assert faster.skipped
    assert faster.speed == pytest.approx(speed, rel=0.05)
    took = []
    for one in (runtime, faster):
        began = runtime.clock
        forward_one(one, Call(Rows.chain([1], 0), one.new_cache(4), outputs=ALL_LOGITS))
        took.append(runtime.clock - began)
    assert took[0] / took[1] == pytest.approx(speed, rel=0.05)
    assert f"{faster.speed:.2f}x" in faster.about()


def test_a_speed_that_is_not_to_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Timed()
    monkeypatch.setattr(file, "perf_counter", lambda: runtime.clock)
    with pytest.raises(UsageError, match=r"skip_speed=16.*the most is"):
        skipping(runtime, 16.0)
    for speed in (0.9, 17.0, float("nan")):
        with pytest.raises(UsageError, match="must be from 1"):
            skipping(runtime, speed)
    assert skipping(runtime, 1.0) is runtime


@pytest.mark.parametrize("times", [0.6, 0.9, 1.2, 2.0])
def test_measurements_beside_other_work_refuse_nothing(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is said, whatever it is; a speed that no set has is refused by the smallest one alone."""
    told: list[float] = []

    def measured(runtime: Runtime, skipped: Skipped) -> float:
        told.append(times / (1 - 0.9 * len(skipped) / runtime.spec.n_blocks))
        return told[-1]

    monkeypatch.setattr(file, "measured", measured)
    faster = skipping(FakeRuntime(SPEC), 1.2)
    assert isinstance(faster, SkippingRuntime)
    assert 1 < len(told) < 9
    assert faster.speed in (1.0, *told)
    monkeypatch.setattr(file, "measured", lambda runtime, skipped: 1.0)
    with pytest.raises(UsageError, match=r"skip_speed=1.2.*the most is 1.00"):
        skipping(FakeRuntime(SPEC), 1.2)


def test_delayed_calls_do_not_move_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three calls of ten take twenty times as long."""
    runtime, random = Timed(), np.random.default_rng(3)
    clock = [0.0, 0.0]

    def now() -> float:
        took, clock[1] = runtime.clock - clock[1], runtime.clock
        clock[0] += took * (20.0 if random.random() < 0.3 else 1.0)
        return clock[0]

    skipped = candidates(SPEC)[9]
    monkeypatch.setattr(file, "perf_counter", lambda: runtime.clock)
    quiet = file.measured(runtime, skipped)
    monkeypatch.setattr(file, "perf_counter", now)
    assert quiet > 1.05
    for _ in range(20):
        assert file.measured(runtime, skipped) == pytest.approx(quiet, rel=0.02)


def test_a_model_without_layers_to_spare_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the most is 1.00"):
        skipping(FakeRuntime(tiny_spec(n_layers=1)), 1.5)


def test_sets_grow_by_blocks_and_keep_the_ends() -> None:
    shares, _ = block_costs(SPEC)
    sets = candidates(SPEC)
    sizes = sorted(sum(shares[block] for block in skipped) for skipped in sets)
    assert max(b - a for a, b in itertools.pairwise(sizes)) < 0.06
    for skipped in sets:
        assert not {0, 1, 30, 31} & set(skipped)
        assert list(skipped) == sorted(set(skipped))


def test_the_text_is_that_of_the_kept_blocks() -> None:
    """Token for token: as calls that name the kept blocks."""
    runtime: Runtime = random_reference(tiny_spec(n_layers=6), 3)
    skipped = (2, 3, 7)
    smaller = SkippingRuntime(runtime, skipped, 1.2)
    kept = [block for block in range(12) if block not in skipped]
    rows = Rows.chain([1, 2, 3, 4], 0)
    found = forward_one(smaller, Call(rows, smaller.new_cache(8), outputs=ALL_LOGITS)).logits
    asked = forward_one(runtime, Call(rows, runtime.new_cache(8), kept, outputs=ALL_LOGITS)).logits
    whole = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=ALL_LOGITS)).logits
    assert found.tobytes() == asked.tobytes() != whole.tobytes()


def _texts(speed: float, *specs: str) -> list[str]:
    model = edgedec.open("nano", threads=1, skip_speed=speed)
    return ["".join(model.session(speculate=spec).generate("Once upon a time", max_tokens=40)) for spec in specs]


def test_drafts_are_lossless_over_the_smaller_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "measured", lambda runtime, skipped: 1 / (1 - 0.8 * len(skipped) / runtime.spec.n_blocks))
    plain, drafted = _texts(1.3, "off", "copy+recycling:fixed=4")
    assert plain == drafted
    assert _texts(1.0, "off") != [plain]
    model = edgedec.open("nano", threads=1, skip_speed=1.3)
    with pytest.raises(UsageError, match="exit"):
        model.session(speculate="exit")


def test_the_report_calls_it_lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "measured", lambda runtime, skipped: 1 / (1 - 0.8 * len(skipped) / runtime.spec.n_blocks))
    ask: list[Any] = ["run", "-p", "Once upon a time", "-n", "4", "--json", "--skip-speed", "1.3"]
    found = CliRunner().invoke(_app.app, ask)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["stats"]["skipped"].startswith("lossy: ")
    assert "Lossy" in CliRunner().invoke(_app.app, ["run", "--help"]).output
