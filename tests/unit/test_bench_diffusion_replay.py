"""`edgedec bench diffusion`: every method in one table, static at equal passes, stories, replayed acceptances."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.bench.diffusion import DecodingCost, compare, list_tasks
from edgedec.bench.diffusion_replay import AR, CONTESTANTS, ReplayBench, ReplayCell, Replayed
from edgedec.bench.diffusion_ways import at_equal_passes, every_way
from edgedec.bench.prompts import read_prompts
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.cli._app import app
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.words import SEAMS
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime import Capabilities


@pytest.fixture(scope="module")
def block() -> edgedec.Model:
    return edgedec.open("nano-block", threads=1)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "diffusion", *arguments])


# ---- every method -----------------------------------------------------------------------------------


def host(context: Any, shift: bool) -> DiffusionHost:
    return DiffusionHost(DiffusionFacts(30, shift, context, 8), Capabilities(kinds=("attention",), kv_formats=("f32",)))


@pytest.mark.parametrize(("context", "shift"), [("causal", True), ("causal", False), ("full", False)])
def test_every_method_is_measured_or_left_out_with_a_reason(context: str, shift: bool) -> None:
    ways, skipped = every_way(host(context, shift))
    assert len(set(ways)) == len(ways)
    assert (ways[0] == "off") is (context == "causal" and shift)
    for seam, family in SEAMS.items():
        for name in family.names():
            words = [way for way in [*ways, *skipped] if way.partition(",")[0] == f"{seam}={name}"]
            assert len(words) == 1, (seam, name)
    assert all(why.startswith("--diffusion") for why in skipped.values())
    assert ("keep=window" in ways) is (context == "full")
    assert ("blocks=sliding,keep=reorder" in ways) is (context == "causal" and not shift)


def test_static_at_as_many_passes() -> None:
    costs = {"schedule=static": (40, 10), "schedule=static:count=2": (20, 6), "schedule=static:count=4": (10, 2)}
    found = {way: {"copy": DecodingCost(10, right, passes=passes)} for way, (passes, right) in costs.items()}
    found["schedule=threshold"] = {"copy": DecodingCost(10, 9, passes=15)}
    assert at_equal_passes(found, "schedule=threshold", "copy") == 0.4
    assert at_equal_passes(found, "schedule=static", "copy") == 1.0
    few = {way: found[way] for way in ("schedule=static", "schedule=threshold")}
    assert at_equal_passes(few, "schedule=threshold", "copy") is None


def test_the_command_with_every_method() -> None:
    done = bench("--every", "--tasks", "copy", "--limit", "1", "-n", "8", "--threads", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {"off", "schedule=static", "schedule=bacd", "keep=none", "verify=branches,schedule=static"} <= set(
        found["ways"]
    )
    assert "keep=window" in found["skipped"]
    assert all("static_at_these_passes" in cost["copy"] for cost in found["ways"].values())
    cost = found["ways"]["schedule=static"]["copy"]
    assert cost["ms_per_text"] == pytest.approx(1000 * cost["seconds"], abs=0.01)


# ---- stories ----------------------------------------------------------------------------------------


def test_a_story_is_as_likely_as_its_own_model_finds_it(block: edgedec.Model) -> None:
    (task,) = list_tasks(["story"], 1)
    found = compare(block, ["off", "schedule=static:count=6"], [task], 24, lambda done, total: None)
    plain, bold = (found[way]["story"] for way in ("off", "schedule=static:count=6"))
    assert plain.tokens == bold.tokens == 24
    assert (plain.trigrams, plain.right) == (22, 0)
    session = block.session(diffusion="off", speculate="off")
    ids = list(map(int, session.tokens(block.tokenizer.encode(task.prompt), max_tokens=24)))
    told = block.session(diffusion="off", speculate="off")
    list(told.tokens(block.tokenizer.encode(task.prompt), max_tokens=0))
    nats = 0.0
    for token in ids:
        nats -= float(np.log(told.next_probs()[token]))
        told = told.fork()
        list(told.tokens([*told.ids, token], max_tokens=0))
    assert plain.nats == pytest.approx(nats, rel=1e-3)
    assert plain.to_json()["nats"] == pytest.approx(nats / 24, abs=1e-3)
    assert bold.nats > plain.nats
    assert bold.to_json()["distinct_3"] <= 1


# ---- replayed acceptances ---------------------------------------------------------------------------


def block_of(positions: list[int]) -> SeenBlock:
    n = len(positions)
    two = np.zeros((n, 2))
    return SeenBlock(np.array(positions), two.astype(int), two, two)


@pytest.mark.parametrize("rate", [1.0, 2.2, 2.5, 3.3])
def test_passes_fill_as_many_as_told(rate: float) -> None:
    """On average, though a block has room for four; always one, and from the left."""
    schedule, passes, blocks = Replayed(rate), 0, 300
    for _ in range(blocks):
        left = [0, 1, 2, 3]
        while left:
            chosen = list(schedule.choose(block_of(left), Canvas([], 9)))
            assert chosen == left[: len(chosen)]
            assert chosen
            left, passes = left[len(chosen) :], passes + 1
    assert 4 * blocks / passes == pytest.approx(rate, rel=0.03)


def test_every_contestant_brings_what_it_is_told(block: edgedec.Model) -> None:
    bench_ = ReplayBench(block, read_prompts(), 3, 40)
    cells = bench_.measure([1, 3], 1)
    by_name = {(cell.name, cell.sequences): cell for cell in cells}
    assert [name for name, n in by_name if n == 1] == [AR, *(one.name for one in CONTESTANTS)]
    assert [name for name, n in by_name if n == 3] == [AR, *(one.name for one in CONTESTANTS if one.most > 1)]
    json_ = {key: cell.to_json(by_name[AR, key[1]]) for key, cell in by_name.items()}
    for one in CONTESTANTS:
        found = json_[one.name, 1]
        rate = 1 + 0.65 + 0.65**2 + 0.65**3 if one.guesses else one.rate
        assert found["tokens_per_call"] == pytest.approx(rate, rel=0.35 if one.guesses else 0.1)
        rows = {"block 4, commit fused": (5.5, 7.0), "causal window 8": (8, 8.1)}.get(one.name)
        if rows:
            assert rows[0] <= found["rows_per_call"] <= rows[1]
        elif one.guesses:
            assert found["rows_per_call"] == pytest.approx(1 + 3 + 4, abs=0.5)
        else:  # the prompt and every mask, in each step
            assert found["rows_per_call"] == len(bench_.prompts[0]) + bench_.tokens
    assert json_[AR, 3]["over_off"] == 1.0
    assert (json_[AR, 3]["tokens_per_call"], json_[AR, 3]["rows_per_call"]) == (1.0, 3.0)


def test_drafts_that_changed_a_text_are_an_error(block: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    bench_ = ReplayBench(block, read_prompts(), 1, 12)
    plain = bench_._plain()
    monkeypatch.setattr(bench_, "_plain", lambda: [[*text[:-8], *(t + 1 for t in text[-8:])] for text in plain])
    with pytest.raises(EdgedecError, match="a text is not what it is without drafts"):
        bench_.measure([1], 1)


def test_ratios_are_of_rounds_beside_each_other() -> None:
    ours, plain = ReplayCell("a", 2, [30, 10, 8]), ReplayCell(AR, 2, [10, 5, 2])
    assert ours.to_json(plain)["over_off"] == 3.0


def test_the_command_that_replays() -> None:
    done = bench("--replay", "-n", "12", "--sequences", "1", "-r", "1", "--threads", "1")
    assert done.exit_code == 0, done.output
    for one in CONTESTANTS:
        assert one.name in done.stdout
    done = bench("--replay", "-n", "12", "--sequences", "1", "-r", "1", "--threads", "1", "--json")
    assert [cell["name"] for cell in json.loads(done.stdout)["cells"]] == [AR, *(one.name for one in CONTESTANTS)]


def test_a_model_without_a_mask() -> None:
    with pytest.raises(UsageError, match="nano has no mask"):
        ReplayBench(edgedec.open("nano", threads=1), read_prompts(), 1, 8)
    done = bench("-m", "nano", "--every", "--limit", "1")
    assert done.exit_code != 0
    assert "is no diffusion model" in done.output
