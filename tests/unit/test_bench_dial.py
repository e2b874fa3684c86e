"""`edgedec bench dial`: a drafter that is right as often as told, beside none and fixed lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drafting import reading
from typer.testing import CliRunner

from edgedec.bench.dial import GOVERNED, OFF, Cell, Dial, DialBench, Race
from edgedec.bench.prompts import Prompt
from edgedec.cli._app import app
from edgedec.errors import EdgedecError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.model import open as open_model

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
PROMPTS = [Prompt("story", ("Once upon a time there was a little fox who lived in the wood",))]


@pytest.mark.parametrize("right", [0.0, 0.3, 0.9, 1.0])
def test_a_guess_is_right_as_often_as_the_dial_says(right: float) -> None:
    text = list(range(100, 5100))
    dial, came, asked = Dial(text, right, 1, 10000), 0, 0
    for at in range(10, 4500):
        draft = dial.propose(reading(text[:at]), 6, 0.0)
        assert isinstance(draft.tokens, tuple)
        assert len(draft.tokens) == 6
        for token, truth in zip(draft.tokens, text[at:], strict=False):
            asked += 1
            came += token == truth
            if token != truth:
                break
    assert came / asked == pytest.approx(right, abs=0.02)
    assert not dial.propose(reading(text), 6, 0.0).tokens


def test_the_same_tokens_are_guessed_rightly_however_many_are_guessed() -> None:
    text = list(range(100, 200))
    few, many = (Dial(text, 0.5, 3, 1000) for _ in range(2))
    for at in range(80):
        short = few.propose(reading(text[:at]), 2, 0.0).tokens
        assert short == many.propose(reading(text[:at]), 9, 0.0).tokens[:2]


def test_ratios_are_of_a_round() -> None:
    cell = Cell(0.3, 4, {OFF: [10.0, 20.0, 10.0], GOVERNED: [11.0, 21.0, 12.0], "fixed=1": [8.0, 25.0, 9.0]})
    assert cell.over_off == pytest.approx(1.1)
    assert cell.best == OFF
    assert cell.over_best == cell.over_off


@needs_native
def test_cells_of_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    bench = DialBench(open_model("nano", threads=2), PROMPTS, 3, 8)
    expected: list[float] = []
    cells, interrupted = bench.measure([0.0, 0.9], [1, 3], [2, 200], 2, expect=expected.append)
    assert not interrupted
    assert expected[0] > 0
    assert [(cell.right, cell.sequences) for cell in cells] == [(0.0, 1), (0.9, 1), (0.0, 3), (0.9, 3)]
    assert [list(cell.speeds) for cell in cells] == [[OFF, GOVERNED, "fixed=2", "fixed=200"]] * 2 + [
        [OFF, GOVERNED, "fixed=2"]
    ] * 2  # 3 times 201 rows are more than a call holds
    assert all(len(speeds) == 2 and min(speeds) > 0 for cell in cells for speeds in cell.speeds.values())


@needs_native
def test_contestants_take_turns_of_as_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DialBench(open_model("nano", threads=2), PROMPTS, 2, 24)
    bench.texts = bench._plain()
    run, turns = Race.run, list[tuple[int, int, bool]]()

    def noted(race: Race, until: int) -> None:
        before = race.made
        run(race, until)
        turns.append((id(race), until, race.made > before))

    monkeypatch.setattr(Race, "run", noted)
    speeds = bench._speeds(0.9, 2, [OFF, "fixed=2"], 0)
    assert set(speeds) == {OFF, "fixed=2"}
    assert [until for _, until, _ in turns] == [2 * tokens for tokens in range(2, 25, 2) for _ in range(2)]
    assert [race for race, _, _ in turns] == [turns[0][0], turns[1][0]] * 12
    assert all(more for race, _, more in turns if race == turns[0][0])


@needs_native
def test_another_text_is_an_error_and_an_interrupt_keeps_what_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DialBench(open_model("nano", threads=2), PROMPTS, 1, 4)
    speeds, made = bench._speeds, [0]

    def broken(*arguments: Any) -> dict[str, float]:
        made[0] += 1
        if made[0] == 5:  # after the warm-up, a round, and half of another
            raise KeyboardInterrupt
        return speeds(*arguments)

    monkeypatch.setattr(bench, "_speeds", broken)
    cells, interrupted = bench.measure([0.0, 0.5], [1], [2], 2)
    assert interrupted
    assert [cell.right for cell in cells] == [0.0, 0.5]
    assert [[len(speeds) for speeds in cell.speeds.values()] for cell in cells] == [[2, 2, 2], [1, 1, 1]]
    made[0] = 3
    with pytest.raises(KeyboardInterrupt):
        bench.measure([0.0, 0.5], [1], [2], 2)
    bench.texts[0][-1] += 1
    bench.texts[0][-5] += 1
    monkeypatch.undo()
    bench.texts = [[*text[:12], *(0 for _ in text[12:])] for text in bench.texts]
    with pytest.raises(EdgedecError, match="not what it is without drafts"):
        bench._speeds(0.5, 1, [GOVERNED], 0)
    with pytest.raises(UsageError, match="do not fit the context"):
        DialBench(bench.model, PROMPTS, 1, 4000)


@needs_native
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    words = ["bench", "dial", "--sequences", "1,2", "--acceptance", "0,0.9", "--lengths", "2", "-n", "6", "-r", "1"]
    plot = tmp_path / "dial.png"
    done = CliRunner().invoke(app, [*words, "--json", "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {(cell["acceptance"], cell["sequences"]) for cell in report["cells"]} == {(0, 1), (0, 2), (0.9, 1), (0.9, 2)}
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "Speed over the best fixed length" in shown.output
    assert "least:" in shown.output
    wrong = CliRunner().invoke(app, ["bench", "dial", "--acceptance", "2"])
    assert wrong.exit_code != 0
