"""The tuning database: kept, shipped, never the cause of other bytes; and products measured for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.runtime.machines import machines_here

pytest.importorskip("tvm", reason="schedules are of TVM's compiler")
from edgedec.bundle.locate import NANO, find
from edgedec.export.amend import add_artifact
from edgedec.export.artifacts import Tuning
from edgedec.export.compiled.database import SHIPPED, TuningDatabase, TuningRecord, processor_here
from edgedec.export.compiled.machines import MACHINES
from edgedec.export.compiled.schedules import DEFAULTS, ProductShape, Schedule

PRODUCT = ProductShape("int4", 32, False, 64, 96, False)
OTHER = ProductShape("int8", 32, True, 64, 96, True)
compiles = pytest.mark.skipif(not machines_here() or shutil.which("c++") is None, reason="no machine to compile for")


def record(
    processor: str = "a", product: ProductShape = PRODUCT, vectors: tuple[int, ...] = (2, 1), ahead: int = 0
) -> TuningRecord:
    return TuningRecord("x86-64-v3", processor, str(product), vectors, ahead, {"1": 10.0})


def test_a_record_of_this_processor_counts_most() -> None:
    database = TuningDatabase([record("mine"), record("other", vectors=(4,))])
    assert database.schedules("x86-64-v3", "mine").of(PRODUCT) == Schedule((2, 1))
    assert database.schedules("x86-64-v3", "neither").of(PRODUCT) in (Schedule((2, 1)), Schedule((4,)))
    assert database.schedules("x86-64-v3", "mine").of(OTHER) == DEFAULTS["x86-64-v3"]
    assert database.schedules("x86-64-v4", "mine").of(PRODUCT) == DEFAULTS["x86-64-v4"]
    assert database.lacking("x86-64-v3", "mine", [PRODUCT, OTHER]) == [OTHER]
    assert list(database.used("x86-64-v3", "mine", [PRODUCT, OTHER]).records) == [record("mine").key]


def test_a_file_comes_back(tmp_path: Path) -> None:
    made = TuningDatabase([record(), record("b", OTHER, (1,) * 8, 2048)])
    made.write(tmp_path / "deep" / "tuning.json")
    back = TuningDatabase.read(tmp_path / "deep" / "tuning.json")
    assert back.records == made.records
    assert back.text() == made.text()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tuning.json"]


def test_what_came_with_edgedec_can_be_read() -> None:
    shipped = TuningDatabase.read(SHIPPED)
    assert {r.machine for r in shipped.records.values()} <= set(MACHINES)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "x"}, "its format is not edgedec-tuning"),
        ({"version": 2}, "its version is not 1"),
        ({"records": [{"machine": "x"}]}, r"records\[0\]: missing key 'processor'"),
        ({"records": [vars(record()) | {"vectors": [3]}]}, r"records\[0\].vectors: \[3\] are no tiles"),
        ({"records": [vars(record()) | {"vectors": []}]}, r"records\[0\].vectors: \[\] are no tiles"),
        ({"records": [vars(record()) | {"ahead": 63}]}, r"records\[0\].ahead: 63 is not a number of lines"),
        ({"records": [vars(record()) | {"more": 1}]}, r"records\[0\]: unknown key 'more'"),
    ],
)
def test_a_wrong_file_is_named(change: dict[str, object], why: str, tmp_path: Path) -> None:
    good = {"format": "edgedec-tuning", "version": 1, "records": []}
    (tmp_path / "t.json").write_text(json.dumps(good | change))
    with pytest.raises(UsageError, match=rf"t.json: no tuning database: .*{why}.*; delete it and tune again"):
        TuningDatabase.read(tmp_path / "t.json")


def test_a_missing_file_is_empty_only_if_it_may_be(tmp_path: Path) -> None:
    assert not TuningDatabase.read(tmp_path / "none.json", must_exist=False).records
    with pytest.raises(UsageError, match=r"none.json: no tuning database"):
        TuningDatabase.read(tmp_path / "none.json")


@given(st.data())
def test_damage_is_an_error_of_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    raw = bytearray(TuningDatabase([record(), record("b", OTHER)]).text())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw[: data.draw(st.integers(at, len(raw)))]))
    problem = ""
    try:
        TuningDatabase.read(path)
    except UsageError as error:
        problem = str(error)
    assert "\n" not in problem


@compiles
def test_products_are_measured() -> None:
    from edgedec.export.compiled.tuner import best

    schedule, ns = best(MACHINES[machines_here()[0]], PRODUCT)
    assert 1 <= schedule.rows <= 8
    assert sorted(ns) == [1, 2, 4, 8]
    assert all(0 < time < inf for time in ns.values())


@compiles
def test_the_fastest_schedule_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows: two vectors for one and two rows, one for more; tiles of eight rows; 1,024 ahead."""
    from edgedec.export.compiled import tuner

    def measured(machine: object, product: object, candidates: Sequence[Schedule]) -> dict[Schedule, dict[int, float]]:
        def time(one: Schedule, rows: int) -> float:
            right = one.vectors[rows - 1 if rows <= one.rows else -1] == (2 if rows <= 2 else 1)
            return rows * (1.0 if right else 2.0) * (1.0 if one.ahead == 1024 else 1.1) * (8 / one.rows) ** 0.1

        return {one: {rows: time(one, rows) for rows in (1, 2, 4, 8)} for one in candidates}

    monkeypatch.setattr(tuner, "measured", measured)
    schedule, ns = tuner.best(MACHINES[machines_here()[0]], PRODUCT)
    assert schedule == Schedule((2, 2, 1, 1, 1, 1, 1, 1), 1024)
    assert ns == {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}


@compiles
def test_a_bundle_is_tuned_and_carries_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nano's products are said to be measured, so none is; the library is written by what the records say."""
    from edgedec.export.compiled import tuner

    machine, measured = machines_here()[0], list[ProductShape]()

    def best(of: object, product: ProductShape) -> tuple[Schedule, dict[int, float]]:
        measured.append(product)
        return Schedule((2, 1), 1024), {1: 5.0}

    monkeypatch.setattr(tuner, "best", best)
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    folder, own = tmp_path / "nano", tmp_path / "own.json"
    shutil.copytree(find(NANO), folder)
    bundle = add_artifact(folder, f"tvm:{machine}", tuning=Tuning(True, own))
    files = bundle.manifest.artifacts[f"tvm:{machine}"].files
    assert files == (f"tvm-{machine}.so", f"tvm-{machine}.tuning.json")
    assert len(measured) == len(set(measured)) >= 4
    shipped = TuningDatabase.read(folder / files[1])
    assert {(r.processor, r.schedule) for r in shipped.records.values()} == {(processor_here(), Schedule((2, 1), 1024))}
    assert TuningDatabase.read(own).records == shipped.records
    assert not (tmp_path / "cache").exists()
    assert _story(bundle, "tvm") == _story(bundle, "native")


def _tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: Callable[[], object] = lambda: None) -> Bundle:
    """Nano with a library by a database of tmp_path/keep, products said to be measured; `at_end`: after each."""
    from edgedec.export.compiled import tuner

    def best(of: object, product: ProductShape) -> tuple[Schedule, dict[int, float]]:
        at_end()
        return Schedule((2, 1), 1024), {1: 5.0}

    monkeypatch.setattr(tuner, "best", best)
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    target = f"tvm:{machines_here()[0]}"
    return add_artifact(folder, target, tuning=Tuning(True, tmp_path / "keep" / "own.json"))


@compiles
def test_a_database_that_cannot_be_written_is_named_before_minutes_of_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keep").write_text("a file, not a folder")
    measured = list[int]()
    with pytest.raises(UsageError, match=r"keep/own\.json: cannot be written: "):
        _tuned(tmp_path, monkeypatch, lambda: measured.append(1))
    assert not measured


@compiles
def test_what_was_measured_is_not_lost_with_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder becomes a file while products are measured."""

    def lose() -> None:
        if (tmp_path / "keep").is_dir():
            shutil.rmtree(tmp_path / "keep")
            (tmp_path / "keep").write_text("a file")

    bundle = _tuned(tmp_path, monkeypatch, lose)
    assert "own.json: cannot be written: " in caplog.text
    assert "what was measured is in the bundle alone" in caplog.text
    kept = TuningDatabase.read(bundle.path / f"tvm-{machines_here()[0]}.tuning.json")
    assert {r.schedule for r in kept.records.values()} == {Schedule((2, 1), 1024)}


def _story(bundle: Bundle, engine: str) -> str:
    from edgedec import open as open_model

    session = open_model(bundle.path, engine=engine, threads=1, trust_code=True).session()
    return "".join(session.generate("Once upon a time", max_tokens=20))


def test_tuning_for_another_machine_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    other = next(name for name in MACHINES if name not in machines_here())
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UsageError, match=f"--tune: this machine is not {other}; tune on one that is"):
        add_artifact(folder, f"tvm:{other}", tuning=Tuning(True, tmp_path / "own.json"))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_only_compiled_targets_are_tuned() -> None:
    from typer.testing import CliRunner

    from edgedec.cli.add import app

    done = CliRunner().invoke(app, ["ort", "nano", "--tune"])
    assert done.exit_code == 2
    assert "--tune and --tuning are for targets tvm:" in done.output
