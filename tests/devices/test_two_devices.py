"""Two engines for one text: the CPU's decodes what a GPU's read (`--device auto`), and drafts for it (PEARL).

OpenCL is run by PoCL on the CPU and CUDA by its emulation: for results, not for speed, so costs are given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cut import first_layers
from serving import started
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import Bundle
from edgedec.cli import _app
from edgedec.drafters.pearl import Pearl
from edgedec.kernels.cpu import loader
from edgedec.runtime import (
    Call,
    CallResult,
    Rows,
    RuntimeOptions,
    logits_of,
    open_runtime,
    unavailable_reason,
    why_chosen,
)
from edgedec.runtimes.paired import Surveyed
from edgedec.runtimes.paired.costs import CPU, EngineCosts
from edgedec.runtimes.paired.kept import kept_path, read_costs, write_costs
from edgedec.runtimes.paired.runtime import PairedRuntime
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="kernels compile long; set EDGEDEC_SLOW_TESTS")
TEXT = "Tom had a red ball. Tom had a red ball. Tom had a"
COMMANDS = ["opencl", pytest.param("cuda", marks=slow)]  # in processes of their own
# The CPU decodes; another engine reads from eight rows on.
COSTS = {CPU: EngineCosts((1, 8, 128), (0.01, 0.2, 9.0)), "other": EngineCosts((1, 8, 128), (0.5, 0.1, 0.1))}


@pytest.fixture(params=["opencl", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, nano: Path) -> Iterator[str]:
    """An engine for GPUs that runs here, and no other one."""
    word = str(request.param)
    monkeypatch.setenv("EDGEDEC_OPENCL", "0" if word == "opencl" else "no such device")
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated" if word == "cuda" else "99")
    reason = unavailable_reason(word, Bundle.open(nano), word)
    if reason is not None:
        pytest.skip(f"{word}: {reason}")
    return word


@pytest.fixture
def given(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Gives the engines' costs for a bundle, kept where they are looked for."""
    from edgedec.runtimes import paired

    def give(bundle: Bundle) -> str:
        known = {CPU: COSTS[CPU], device: COSTS["other"]}
        monkeypatch.setattr(paired, "measured", lambda runtime, cpu: known[CPU if runtime is cpu else device])
        found = Surveyed.of(bundle, RuntimeOptions(threads=1, kv="int8", device="auto"))
        path = kept_path(bundle, found.engines)
        write_costs(path, known)
        assert read_costs(path, found.engines) == known
        monkeypatch.setattr(paired, "measured", lambda *_: pytest.fail("measured again"))
        return device

    return give


@pytest.mark.parametrize(
    ("model", "kv"),
    [("plain", "int8"), pytest.param("hybrid", "f16", marks=slow), pytest.param("windows", "int4", marks=slow)],
)
def test_the_bytes_are_those_of_the_cpu(device: str, tmp_path: Path, model: str, kv: str) -> None:
    bundle = write_bundle(tmp_path / "bundle", MODELS[model], random_weights(MODELS[model]), "int4")
    options = RuntimeOptions(threads=1, kv=kv)
    engines = open_runtime("native", bundle, options), open_runtime(device, bundle, options)
    from edgedec.runtimes.paired.costs import Rule

    rule, ids = Rule(COSTS["other"], COSTS[CPU], 0.0, 0.0), [7 * i % 101 for i in range(40)]
    runtime, found = PairedRuntime(*engines, rule), []
    for one in (runtime, engines[0]):
        cache = one.new_cache(96)
        told = [logits_of(one, Rows.chain(ids, 0), cache, 39)]
        cache.commit(range(40))
        for rows in (Rows.chain([5], 40), Rows.tree([1, 2, 3], [-1, 0, 0], 41), Rows.chain(ids[:9], 42)):
            told.append(logits_of(one, rows, cache))
            cache.commit([0])
        fork = cache.fork(20)
        told.append(logits_of(one, Rows.chain([9], fork.length), fork))
        found.append([array.tobytes() for array in told] + [cache.save()["state"].tobytes()])
    assert found[0] == found[1]
    assert min(runtime.calls) > 1
    assert min(times for _, times in runtime.moved) > 0
    assert runtime.capabilities.batch_invariant
    assert runtime.name == f"{device}+native"


@pytest.mark.parametrize("speculate", ["off", "copy:fixed=3"])
def test_nano_tells_its_story(given: Any, nano: Path, tmp_path: Path, speculate: str) -> None:
    device = given(Bundle.open(nano))
    found = []
    for place in ("auto", "cpu"):
        model = edgedec.open(nano, kv="int8", threads=1, device=place)
        session = model.session(context=128, speculate=speculate)
        words = "".join(session.generate(TEXT, max_tokens=6))
        words += "|" + "".join(session.fork().generate(None, max_tokens=2))
        session.save(tmp_path / place)
        found.append((words, session.ids, session._context.cache.save()["state"].tobytes()))
        if place == "auto":
            runtime = model.runtime
            assert isinstance(runtime, PairedRuntime)
            assert why_chosen(runtime).startswith(f"{device} for prefill, cpu for decode")
            assert min(runtime.calls) > 0
            assert runtime.moved[0][1] > 0
            assert speculate == "off" or session.stats.proposed > 0
    assert found[0] == found[1]
    other = edgedec.open(nano, kv="int8", threads=1).session(context=128, speculate="off")
    other.load(tmp_path / "auto")
    assert other.ids == found[0][1]


def test_doctor_measures_and_says_who_does_what(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from edgedec.runtimes.paired import measure

    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(measure, "_ROWS", (1, 4))
    monkeypatch.setattr(measure, "_TIMES", 1)
    spec = MODELS["plain"]
    folder = write_bundle(tmp_path / "bundle", spec, random_weights(spec), "int4").path
    done = CliRunner().invoke(_app.app, ["doctor", "--device", "auto", "-m", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report["engines"]) == {"cpu", device}
    assert report["engines"][device]["rows"][0] == 1
    assert report["engines"][device]["fixed"] > 0
    assert report["decode"] == "cpu"  # what runs on the CPU anyway is not quicker there
    shown = CliRunner().invoke(_app.app, ["doctor", "--device", "auto", "-m", str(folder)]).stdout
    assert "handed over" in shown
    assert "--device auto is" in shown


@pytest.mark.parametrize("device", COMMANDS, indirect=True)
def test_run_and_batch_take_it(given: Any, nano: Path, tmp_path: Path) -> None:
    device = given(Bundle.open(nano))
    told = []
    for place in ("auto", "cpu"):
        words = [
            sys.executable,
            "-m",
            "edgedec",
            "run",
            "-p",
            TEXT,
            "-n",
            "4",
            "--temp",
            "0",
            "--kv",
            "int8",
            "-t",
            "1",
        ]
        done = subprocess.run([*words, "-v", "--device", place], capture_output=True, text=True, check=True)
        told.append(done.stdout)
        assert (f"--device auto: {device} for prefill, cpu for decode" in done.stderr) == (place == "auto")
        out = tmp_path / f"{place}.jsonl"
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"{TEXT} {word}"}) + "\n" for word in ("big", "red")))
        words = [sys.executable, "-m", "edgedec", "batch", str(prompts), "-o", str(out), "-n", "3", "--temp", "0"]
        subprocess.run([*words, "--kv", "int8", "-t", "1", "--device", place], capture_output=True, check=True)
        told.append([json.loads(line)["text"] for line in out.read_text().splitlines()])
    assert told[:2] == told[2:]


@pytest.mark.parametrize("device", COMMANDS, indirect=True)
def test_serve_takes_it(given: Any, nano: Path) -> None:
    given(Bundle.open(nano))
    asked = {"model": "nano", "prompt": TEXT, "max_tokens": 4, "temperature": 0}
    texts = []
    for place in ("auto", "cpu"):
        with started(nano, "--device", place, "-c", "64", "--slots", "2", "--kv", "int8") as (address, _):
            request = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=120) as answer:
                texts.append(json.load(answer)["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert texts[0].strip()


# ---- drafts on the CPU for a GPU ----


class Watched:
    """Counts the draft model's forwards that begin while one of the target runs."""

    def __init__(self) -> None:
        self.target, self.during, self.drafts = threading.Event(), 0, 0

    def watch(self, target: Any, draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        run, step = target.forward, draft.forward

        def forward(calls: Sequence[Call]) -> list[CallResult]:
            self.target.set()
            try:
                return list(run(calls))
            finally:
                self.target.clear()

        def drafted(calls: Sequence[Call]) -> list[CallResult]:
            self.drafts += 1
            self.during += self.target.is_set()
            return list(step(calls))

        monkeypatch.setattr(target, "forward", forward)
        monkeypatch.setattr(draft, "forward", drafted)


def test_the_cpu_drafts_while_the_gpu_verifies(
    device: str, nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = first_layers(nano, tmp_path / "small", 2)
    found = []
    for speculate in (f"pearl:path={small},overlap=always,gamma=4,fixed=4", "off"):
        model = edgedec.open(nano, device=device, kv="int8")
        assert model.runtime.name == device
        session = model.session(context=128, speculate=speculate)
        watched = Watched()
        if speculate != "off":
            pearl = drafter_of(session)
            draft = pearl._ahead._runtime
            assert (draft.name, draft.capabilities.device) == ("native", "cpu")
            watched.watch(model.runtime, draft, monkeypatch)
        tokens = [int(token) for token in session.tokens(model.tokenizer.encode(TEXT), max_tokens=24)]
        found.append((tokens, session._context.cache.save()["state"].tobytes()))
        if speculate != "off":
            assert session.stats.proposed > 4
            assert session.stats.accepted > 0
            assert watched.during > 2, f"{watched.drafts} drafts, none of them while the target ran"
    assert found[0] == found[1]


def drafter_of(session: edgedec.Session) -> Pearl:
    """The session's PEARL, below whatever governs it."""
    seen, left = set[int](), [session._drafter]
    while left:
        one: Any = left.pop()
        if isinstance(one, Pearl):
            return one
        if id(one) not in seen and hasattr(one, "__dict__"):
            seen.add(id(one))
            for value in vars(one).values():
                left += value if isinstance(value, list | tuple) else [value]
    pytest.fail("no PEARL in the session's drafters")
