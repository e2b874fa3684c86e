"""`edgedec bench spec --sweep exit` and the picture of `bench scaling`: the whole grid is measured, and what is best is
what the numbers say; never how fast anything was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import edgedec
from edgedec.bench.sweep import ExitSweep, swept, usual_exits
from edgedec.cli._app import app
from edgedec.decoding.loop import StepTrace
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
ARGS = ["bench", "spec", "-r", "1", "-t", "1", "-n", "10", "--limit", "1", "--categories", "story", "--sweep", "exit"]


def call(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_every_pair_is_measured_beside_the_choice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra")
    picture = tmp_path / "sweep.png"
    done = call(*ARGS, "--exits", "2,4", "--lengths", "1,2", "--json", "--plot", picture)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["sweep"]
    assert [(cell["layer"], cell["gamma"]) for cell in found["cells"]] == [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert all(cell["identical"] for cell in (*found["cells"], found["choice"]))
    assert found["best"]["speed"] == max(cell["speed"] for cell in found["cells"])
    assert found["over_best"] == pytest.approx(found["choice"]["speed"] / found["best"]["speed"])
    assert min(cell["tokens_per_call"] for cell in found["cells"]) > 1, "something was accepted"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_table_names_the_best_and_the_choice() -> None:
    done = call(*ARGS, "--exits", "3", "--lengths", "2")
    assert done.exit_code == 0, done.output
    assert "best fixed: after 3 layers, 2 tokens" in done.stdout
    assert "DEL's choice: " in done.stdout
    assert "same text: yes" in done.stdout


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_fixed_length_is_drafted_whatever_it_brings(gamma: int) -> None:
    model, trace = edgedec.open("nano", engine="native", threads=1), list[StepTrace]()
    session = model.session(speculate=next(iter(ExitSweep([2], [gamma]).pairs())))
    list(session.tokens(model.tokenizer.encode("qx zq jk"), max_tokens=24, trace=trace, ignore_eos=True))
    sizes = {len(turn.draft.tokens) for turn in trace[1:-3]}
    assert sizes == {gamma}
    assert any(len(turn.step.path) <= gamma for turn in trace), "some of it was wrong"


def test_the_best_is_that_of_the_numbers() -> None:
    def drafter(*ratios: float) -> dict[str, object]:
        return {
            "speed_ratios": [*ratios, None],
            "tokens_per_call": 2.0,
            "accepted": 3,
            "proposed": 4,
            "identical": True,
        }

    sweep = ExitSweep([2, 4], [1])
    first, second = sweep.pairs()
    found = swept(
        sweep, {"drafters": {first: drafter(1.0, 4.0), second: drafter(1.5, 1.5), sweep.choice: drafter(1.0)}}
    )
    assert (found["best"]["layer"], found["best"]["speed"]) == (2, pytest.approx(2.0))
    assert found["over_best"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((*ARGS, "--drafters", "copy"), "give one of them"),
        ((*ARGS, "--exits", "14"), "the model has 14 layers"),
        (("bench", "spec", "--lengths", "2"), "are of --sweep exit"),
    ],
)
def test_misuse_is_refused(args: tuple[str, ...], message: str) -> None:
    done = call(*args)
    assert done.exit_code != 0
    assert message in done.stderr or isinstance(done.exception, UsageError)


def test_usual_exits_are_in_the_first_two_thirds() -> None:
    assert usual_exits(14) == [2, 4, 6, 7, 9]
    assert usual_exits(2) == [1]


def test_the_law_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra")
    picture = tmp_path / "law.png"
    done = call("bench", "scaling", "--exits", "2,4,8", "-n", "8", "-t", "1", "--plot", picture)
    assert done.exit_code == 0, done.output
    assert f"plot: {picture}" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
