"""`edgedec bench batch`: who is compared, what is told of it, what is refused; never how fast anything was."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import edgedec
from edgedec.bench import batch as batchbench
from edgedec.bench import batch_peers
from edgedec.bench.batch import (
    SEQUENTIAL,
    BatchMeasured,
    BatchWork,
    Ours,
    Took,
    measure,
    side_by_side,
    texts_of,
    work_of,
)
from edgedec.bench.batch_peers import LlamaServer
from edgedec.bench.prompts import Prompt, read_prompts
from edgedec.cli import _app
from edgedec.cli.bench._about import spec_list
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.offline.row import RowRequest

ARGS = ["bench", "batch", "--prompts", "5", "-n", "4", "-r", "2", "-t", "1", "--sizes", "1,3"]
WORK = BatchWork(((1, 2), (3, 4, 5)), 4)


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args])


def one_line(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("edgedec")
    return result.stderr


# -- turns


class Fake:
    """Writes down its turns; fails at one of them."""

    def __init__(
        self, name: str, log: list[tuple[str, int, int]], texts: Sequence[str] | None, fails: int = -1
    ) -> None:
        self.name, self.log, self.texts, self.fails = name, log, texts, fails

    def run(self, work: BatchWork, size: int) -> Took:
        if self.fails == len([entry for entry in self.log if entry[0] == self.name]):
            raise RuntimeUnavailable("no more")
        self.log.append((self.name, size, work.tokens))
        return Took(2.0, None if self.texts is None else list(self.texts)[: len(work.prompts)])


class Stepped(Fake):
    """Makes two steps, each of a second of the `Clock`, and writes down each."""

    def steps(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
        for _ in range(2):
            texts = self.run(work, size).texts
            Clock.now += 1.0
            yield
        assert texts is not None
        return texts


class Clock:
    now = 0.0

    @classmethod
    def read(cls) -> float:
        return cls.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchbench, "perf_counter", Clock.read)


@pytest.mark.usefixtures("clock")
def test_everyone_takes_turns_and_each_round_begins_elsewhere() -> None:
    log: list[tuple[str, int, int]] = []
    work = BatchWork(((1,), (2,)), 100)
    ours = {name: Stepped(name, log, "xy") for name in "ab"}
    found = measure(ours, {"p": Fake("p", log, None)}, [1, 2], work, 2)
    warm, first, second = log[:14], log[14:28], log[28:]
    # One by one, at 1 and at 2: steps of both in turn, the other one first in the next round.
    order = [("ba" * 2, SEQUENTIAL), ("ba" * 2, 1), ("p", 1), ("ba" * 2, 2), ("p", 2)]
    assert [entry[:2] for entry in first] == [(name, size) for text, size in order for name in text]
    order = [(text.replace("ba", "ab"), size) for text, size in order]
    assert [entry[:2] for entry in second] == [(name, size) for text, size in order[2:] + order[:2] for name in text]
    assert {tokens for _, _, tokens in warm} == {8}
    assert {tokens for _, _, tokens in first + second} == {100}
    both = {0: [100.0] * 2, 1: [100.0] * 2, 2: [100.0] * 2}
    assert found.speeds == {"a": both, "b": both, "p": {1: [100.0] * 2, 2: [100.0] * 2}}
    assert found.identical


@pytest.mark.usefixtures("clock")
def test_each_has_the_time_of_its_own_steps() -> None:
    class Slow(Stepped):
        def steps(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
            yield from super().steps(work, size)
            Clock.now += 3.0
            yield
            return ["y"]

    took = side_by_side({"a": Stepped("a", [], "x"), "slow": Slow("slow", [], "x")}, WORK, 2)
    assert took == {"a": Took(2.0, ["x"]), "slow": Took(5.0, ["y"])}


def test_a_peer_that_fails_is_left_out_and_ours_is_an_error() -> None:
    found = measure({"a": Stepped("a", [], "xy")}, {"p": Fake("p", [], None, fails=3)}, [1, 2], WORK, 2)
    assert found.skipped == {"p": "no more"}
    assert list(found.speeds) == ["a"]
    with pytest.raises(RuntimeUnavailable, match="no more"):
        measure({"a": Stepped("a", [], "xy", fails=3)}, {}, [1, 2], WORK, 2)


def test_a_text_that_differs_is_counted() -> None:
    found = measure({"a": Stepped("a", [], "xy"), "b": Stepped("b", [], "xz")}, {}, [2], WORK, 2)
    assert not found.identical
    assert found.differ == {"a": {0: 0, 2: 0}, "b": {0: 1, 2: 1}}


def test_ratios_are_of_runs_beside_each_other() -> None:
    found = BatchMeasured({"a": {0: [1.0, 2.0, 4.0], 4: [3.0, 4.0, 4.0]}})
    ratio = found.ratio("a", 4, "a", 0)
    assert (ratio.median, ratio.min, ratio.max) == (2.0, 1.0, 3.0)


# -- the work


def test_texts_begin_differently_and_have_other_lengths() -> None:
    prompts = [Prompt("x", ("a b c",)), Prompt("y", (" ".join(map(str, range(100))),))]
    texts = list(texts_of(prompts, 6))
    assert texts[::2] == ["a b c", "b c a", "c a b"]
    assert [text.split()[0] for text in texts[1::2]] == ["0", "1", "2"]
    assert [len(text.split()) for text in texts[1::2]] == [16, 32, 64]


def test_what_ships_makes_a_thousand_texts_of_which_few_begin_alike(nano: Path) -> None:
    tokenizer = edgedec.open(nano, threads=1).tokenizer
    ids = [tuple(tokenizer.encode(text)) for text in texts_of(read_prompts(), 1000)]
    assert len({text[:8] for text in ids}) > 800
    assert max(map(len, ids)) < 256


def test_what_does_not_fit_the_context_is_refused(tiny: Path) -> None:
    model = edgedec.open(tiny, threads=1)
    with pytest.raises(UsageError, match="do not fit the context"):
        work_of(model, [Prompt("x", ("the king",))], 1, model.spec.context_length)


# -- the command


def test_json(tiny: Path) -> None:
    result = call(*ARGS, "-m", tiny, "--spec", "off,copy:fixed=2", "--engine", "ort", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["sizes"] == [1, 3]
    assert (report["prompts"], report["generate"], report["repetitions"], report["threads"]) == (5, 4, 2, 1)
    assert list(report["tokens_per_s"]) == ["off", "copy:fixed=2"]
    for by in report["tokens_per_s"].values():
        assert list(by) == ["0", "1", "3"]
        assert all(0 < spread["min"] <= spread["median"] <= spread["max"] for spread in by.values())
    assert report["over_sequential"]["off"]["0"]["median"] == 1
    assert list(report["over_first"]) == ["copy:fixed=2"]
    assert list(report["over_first"]["copy:fixed=2"]) == ["0", "1", "3"]
    assert report["host"]["cores"] >= 1
    assert report["over_peers"] == report["skipped"] == {}


def test_nano_says_the_same_at_all_sizes(nano: Path) -> None:
    result = call(*ARGS, "-m", nano)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "identical: yes" in result.stdout
    assert "one by one" in result.stdout
    assert "Speed over off, a step of each in turn" in result.stdout


def test_one_way_to_draft_is_compared_with_no_other(tiny: Path) -> None:
    result = call(*ARGS, "-m", tiny, "--spec", "off", "--engine", "ort")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "Speed over one by one" in result.stdout
    assert "Speed over off" not in result.stdout


@pytest.mark.parametrize(("engine", "code"), [("native", 1), ("ort", 0)])
def test_another_text_is_told(nano: Path, monkeypatch: pytest.MonkeyPatch, engine: str, code: int) -> None:
    """It is a mistake only where rows do not change each other."""
    try:
        edgedec.open(nano, engine=engine, threads=1)
    except RuntimeUnavailable:
        pytest.skip(f"no engine {engine} here")
    real = Ours._together

    def other(self: Ours, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
        texts = yield from real(self, work, size)
        return [*texts[:-1], "something else"]

    monkeypatch.setattr(Ours, "_together", other)
    result = call(*ARGS, "-m", nano, "--spec", "off", "--engine", engine)
    assert result.exit_code == code, (result.output, result.exception)
    assert "identical: no (" in result.stdout
    assert ("not what they are alone" in result.stderr) == (code == 1)


def test_a_text_that_ends_early_is_an_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edgedec.open(tiny, threads=1, engine="reference")
    monkeypatch.setattr(batchbench, "RowRequest", lambda write, ids, config: RowRequest(write, error="torn"))
    with pytest.raises(edgedec.EdgedecError, match="text 0 ended after 0 of 4 tokens: torn"):
        Ours(model, "off").run(WORK, 2)


def test_what_is_wrong_is_said(tiny: Path) -> None:
    for more, says in [
        (["--sizes", "1,none"], "--sizes 1,none: must be numbers of 1 or more"),
        (["--sizes", "0"], "--sizes 0: must be"),
        (["--spec", ","], "--spec: name one or more"),
        (["--peer", "other"], "--peer other: must be llama.cpp"),
    ]:
        result = call(*ARGS, *more, "-m", tiny)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.replace("│", " ").split())
    assert "no drafter 'guess'" in one_line(call(*ARGS, "-m", tiny, "--spec", "guess"), 1)


def test_specs_have_commas_of_their_own() -> None:
    assert spec_list("off, copy+suffix:fixed=8,top=4,off,") == ["off", "copy+suffix:fixed=8,top=4"]


# -- llama.cpp


def test_without_llama_cpp_the_others_are_measured(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_peers, "which", lambda name: None)
    monkeypatch.setattr(batch_peers, "find_spec", lambda name: None)
    result = call(*ARGS, "-m", tiny, "--peer", "llama.cpp", "--spec", "off", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    report = json.loads(result.stdout)
    assert 'pip install "onnxruntime-genai>=0.18" "llama-cpp-python' in report["skipped"]["llama.cpp"]
    assert list(report["tokens_per_s"]) == ["off"]


def test_the_library_makes_many_texts_at_a_time(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(batch_peers, "which", lambda name: None)
    result = call(*ARGS, "-m", nano, "--peer", "llama.cpp", "--spec", "off", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    report = json.loads(result.stdout)
    assert report["skipped"] == {}
    assert list(report["tokens_per_s"]["llama.cpp, batched decode"]) == ["1", "3"]
    assert list(report["over_peers"]["llama.cpp, batched decode"]["off"]) == ["1", "3"]


SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

options = dict(zip(sys.argv[1::1], sys.argv[2::1]))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        greedy = asked["temperature"] == 0 and asked["ignore_eos"] and not asked["cache_prompt"]
        right = greedy and options["-np"] == "2"
        self.say({{"tokens_predicted": asked["n_predict"] - {short}}} if right else {{"error": asked}})

    def say(self, answer):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        pass

ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


def serve(folder: Path, text: str) -> LlamaServer:
    binary = folder / "llama-server"
    binary.write_text(text)
    binary.chmod(0o755)
    return LlamaServer(str(binary), "weights.gguf", 1)


@pytest.mark.skipif(os.name != "posix", reason="needs scripts that begin with #!")
def test_the_server_is_asked_for_what_is_compared(tmp_path: Path) -> None:
    took = serve(tmp_path, SERVER.format(python=sys.executable, short=0)).run(WORK, 2)
    assert took.seconds > 0
    assert took.texts is None
    with pytest.raises(RuntimeUnavailable, match="2 texts have 3 tokens and not 4"):
        serve(tmp_path, SERVER.format(python=sys.executable, short=1)).run(WORK, 2)
    with pytest.raises(RuntimeUnavailable, match="n_predict"):
        serve(tmp_path, SERVER.format(python=sys.executable, short=0)).run(WORK, 3)


@pytest.mark.skipif(os.name != "posix", reason="needs scripts that begin with #!")
def test_a_server_that_does_not_start_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="ended with code 7"):
        serve(tmp_path, "#!/bin/sh\nexit 7\n").run(WORK, 2)


def test_an_interrupt_keeps_the_turns_that_are_whole() -> None:
    class Stopping:
        def __init__(self, after: int) -> None:
            self.left = after

        def steps(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            yield
            return []

    expected: list[float] = []
    # Two cells (one by one, 2 at a time): a warm-up, one whole turn, half of another.
    found = measure({"a": Stopping(6)}, {}, [2], WORK, 3, expect=expected.append)
    assert found.interrupted
    assert {size: len(speeds) for size, speeds in found.speeds["a"].items()} == {0: 1, 2: 1}
    assert len(expected) == 1
    assert expected[0] > 0
    with pytest.raises(KeyboardInterrupt):
        measure({"a": Stopping(4)}, {}, [2], WORK, 3)
