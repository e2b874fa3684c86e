"""Random input for every entry of libedgedec: no crash, and errors with names. With sanitizers in the slow tests, by
libFuzzer where clang has it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import c_toys as toys
import pytest
from clibrary import HEADER, needs_compiler, needs_patience
from fuzz import CORPUS, corpus_of
from hostile.readers import READERS

# How many in the fast tests.
COUNTS = {"json": 1000, "pattern": 1000, "tokenizer": 400, "text": 500, "manifest": 300, "index": 300, "session": 300,
          "adapter": 300, "calls": 400}  # fmt: skip
# Seconds a target in the slow tests; hours find more.
SECONDS = os.environ.get("EDGEDEC_FUZZ_SECONDS", "20")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_toy(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def program(toy: Path) -> Path:
    return toys.build(toy.parent / "driver")


@pytest.fixture(scope="module")
def seeds(program: Path, toy: Path) -> dict[str, list[Path]]:
    return toys.write_seeds(program, toy)


def test_every_function_is_called() -> None:
    """But those that take nothing and return a constant."""
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text("utf-8"), flags=re.S)
    declared = set(re.findall(r"EDGEDEC_API[^;(]*?\b(edgedec_\w+)\(", code))
    called = "".join(path.read_text("utf-8") for path in toys.FOLDER.glob("*.cpp"))
    missing = {name for name in declared if not re.search(rf"\b{name}\(", called)}
    assert missing == {"edgedec_abi", "edgedec_version", "edgedec_isa"}


def run(program: Path, toy: Path, target: str, count: int, seeds: list[Path]) -> int:
    """How many were accepted."""
    command = [program, str(count), "7", *seeds]
    done = subprocess.run(command, env=toys.environment(toy, target), capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, (target, done.stderr[-3000:])
    ran, accepted = map(int, done.stdout.split())
    assert ran == count
    return accepted


@needs_compiler
@pytest.mark.parametrize("target", toys.TARGETS)
def test_random_input(program: Path, toy: Path, seeds: dict[str, list[Path]], target: str) -> None:
    assert 0 < run(program, toy, target, COUNTS[target], seeds[target]) < COUNTS[target]


@needs_compiler
@pytest.mark.parametrize("target", toys.TARGETS)
def test_what_fuzzers_kept(program: Path, toy: Path, seeds: dict[str, list[Path]], tmp_path: Path, target: str) -> None:
    """Inputs that reach what others do not, as `make fuzz` found them."""
    files = [*seeds[target], *corpus_of(target, tmp_path)]
    assert len(files) > 20
    command = [program, "replay", *files]
    done = subprocess.run(command, env=toys.environment(toy, target), capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, (target, done.stderr[-3000:])
    ran, accepted = map(int, done.stdout.split())
    assert ran == len(files)
    assert 0 < accepted < ran


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.glob("*.zip")) < 2_000_000
    assert {path.stem for path in CORPUS.glob("*.zip")} == {*toys.TARGETS, *READERS}


@needs_compiler
@needs_patience
def test_random_input_with_sanitizers(toy: Path, seeds: dict[str, list[Path]], tmp_path: Path) -> None:
    checked = toys.build(tmp_path / "checked", sanitize="address,undefined")
    for target, count in COUNTS.items():
        run(checked, toy, target, 10 * count, seeds[target])


@needs_patience
def test_input_that_coverage_leads_to(toy: Path, seeds: dict[str, list[Path]], tmp_path: Path) -> None:
    """By libFuzzer, with sanitizers: EDGEDEC_FUZZ_SECONDS a target."""
    fuzzer = toys.build_fuzzer(tmp_path / "fuzzer")
    executions = {}
    for target in toys.TARGETS:
        corpus = tmp_path / target
        corpus.mkdir()
        for seed in seeds[target]:
            (corpus / seed.name).write_bytes(seed.read_bytes())
        limits = [f"-max_total_time={SECONDS}", "-max_len=60000", "-timeout=60", "-print_final_stats=1"]
        done = subprocess.run(
            [fuzzer, corpus, *limits, f"-artifact_prefix={tmp_path}/found-"],
            env=toys.environment(toy, target), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (target, done.stderr[-3000:])
        executions[target] = int(re.findall(r"number_of_executed_units: (\d+)", done.stderr)[0])
    print(executions, sum(executions.values()))
    assert all(executions.values())
