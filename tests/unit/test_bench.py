"""`edgedec bench kernels` and `edgedec bench peers`: what they report and whom they leave out; never how fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from edgedec.bench import peers
from edgedec.bench.timing import Config
from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.cli import _app, _bench_peers
from edgedec.errors import EdgedecError
from edgedec.speculation.rowcost import RowCall, Work, row_costs
from edgedec.runtime.rows import Rows
from edgedec.runtimes.reference import Reference

KERNELS = ["bench", "kernels", "--rows", "4,1,2", "-r", "2", "-t", "1", "--engine", "ort"]
PEERS = ["bench", "peers", "--rows", "1,3", "-p", "6", "-n", "2", "-r", "2", "-t", "1", "--context", "5"]


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args])


def ok(*args: object) -> str:
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def one_line(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("edgedec")
    return result.stderr


# -- what a call of k rows costs


class Spy(Reference):
    """Remembers the positions of every call, and what lay before them."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle.spec, lambda name, start, stop: bundle.rows(name)[start:stop])
        self.calls: list[tuple[list[int], int]] = []

    def run(self, hidden: Any, rows: Rows, cache: Cache, blocks: Any) -> Any:
        self.calls.append((rows.positions.tolist(), cache.length))
        return super().run(hidden, rows, cache, blocks)


def test_rows_are_run_behind_the_prefix_in_turns(tiny: Path) -> None:
    runtime, rounds = Spy(Bundle.open(tiny)), []
    found = row_costs(runtime, [1, 3], context=4, repetitions=2, after=rounds.append)
    waking = [([4], 4)] * 2
    assert runtime.calls == [([0, 1, 2, 3], 0), *[*waking, ([4], 4), ([4, 5, 6], 4)] * 3]
    assert {k: len(seconds) for k, seconds in found.items()} == {1: 2, 3: 2}, "the first round warms up"
    assert all(s > 0 for seconds in found.values() for s in seconds)
    assert rounds == [1, 2, 3]


def test_rows_without_a_prefix(tiny: Path) -> None:
    runtime = Spy(Bundle.open(tiny))
    assert RowCall(runtime, [], 2)([7, 8]) > 0
    assert runtime.calls == [([0, 1], 0)]


def test_the_work_of_a_call_is_that_of_its_matrices(tiny: Path) -> None:
    spec, work = Bundle.open(tiny).spec, Work.of(Bundle.open(tiny).manifest)
    layer = spec.hidden_size * (2 * spec.q_dim + 2 * spec.kv_dim + 3 * spec.intermediate_size)
    assert not spec.tied
    assert work.macs == spec.n_layers * layer + spec.vocab_size * spec.hidden_size
    norms = (2 * spec.n_layers + 1) * spec.hidden_size
    assert work.weight_bytes == 4 * (work.macs + norms)


# -- bench kernels


def probes(monkeypatch: pytest.MonkeyPatch, read: list[float], int8: list[float]) -> None:
    """A native library whose probes find these numbers, one after another."""
    monkeypatch.setattr("edgedec.kernels.cpu.library", object)
    monkeypatch.setattr("edgedec.kernels.cpu.probe_read", lambda size, threads: read.pop(0))
    monkeypatch.setattr("edgedec.kernels.cpu.probe_int8", lambda threads: int8.pop(0))


def test_kernels_reports_costs_beside_ceilings(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, [1.0, 20.0, 5.0], [7.0, 100.0, 3.0])
    report = json.loads(ok(*KERNELS, "-m", tiny, "--kv", "f16", "--context", 9, "--json"))
    assert list(report["rows"]) == ["1", "2", "4"]
    assert report["ceilings"] == {"read_gb_s": 20.0, "int8_gmac_s": 100.0, "reason": None}
    assert (report["engine"], report["threads"], report["kv"], report["context"]) == ("ort", 1, "f16", 9)
    assert {"host", "versions", "model", "bits_per_weight", "quantization", "repetitions"} <= set(report)
    work = Work.of(Bundle.open(tiny).manifest)
    for k, ms in report["rows"].items():
        assert report["spread"][k]["min"] <= ms <= report["spread"][k]["max"]
        assert report["ratio"][k] == pytest.approx(ms / report["rows"]["1"])
        assert report["gb_s"][k] == pytest.approx(work.weight_bytes / ms / 1e6)
        assert report["gmac_s"][k] == pytest.approx(work.macs * int(k) / ms / 1e6)
        assert report["floor_ms"]["read"][k] == pytest.approx(work.weight_bytes / 20 / 1e6)
        assert report["floor_ms"]["int8"][k] == pytest.approx(work.macs * int(k) / 100 / 1e6)


def test_kernels_without_the_native_library_says_why(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("not built, says this test")

    monkeypatch.setattr("edgedec.kernels.cpu.library", missing)
    args = [*KERNELS, "-m", tiny, "--rows", "2"]
    report = json.loads(ok(*args, "--json"))
    assert report["ceilings"]["read_gb_s"] is report["ceilings"]["int8_gmac_s"] is None
    assert "not built, says this test" in report["ceilings"]["reason"]
    assert report["floor_ms"] == {"read": None, "int8": None}
    assert report["ratio"] is None, "no call of one row was measured"
    assert "not built, says this test" in ok(*args)


def test_a_probe_that_cannot_run_is_no_ceiling(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, [0.0] * 3, [2.0, 0.0, 1.0])
    report = json.loads(ok(*KERNELS, "-m", tiny, "--json"))
    assert report["ceilings"] == {"read_gb_s": None, "int8_gmac_s": 2.0, "reason": None}
    assert report["floor_ms"]["read"] is None
    assert report["floor_ms"]["int8"]


def test_the_native_library_has_probes() -> None:
    cpu = pytest.importorskip("edgedec.kernels.cpu")
    try:
        cpu.library()
    except ImportError as error:
        pytest.skip(str(error))
    from edgedec.cli._ceilings import Ceilings

    ceilings = Ceilings(1, 1)
    ceilings.probe()
    assert ceilings.read_gb_s
    assert ceilings.int8_gmac_s


# -- bench peers


def test_peers_takes_turns_and_reports_everyone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_peers, "NAMES", {"oracle": "reference", "abacus": "abacus", "onnxruntime": "ort"})
    args = [*PEERS, "-m", tiny, "--engines", "oracle,abacus,onnxruntime"]
    report = json.loads(ok(*args, "--json"))
    assert list(report["engines"]) == ["oracle", "onnxruntime"]
    assert "no runtime 'abacus'" in report["skipped"]["abacus"]
    for engine in report["engines"].values():
        assert list(engine["rows"]) == ["1", "3"]
        assert engine["prefill_tok_s"] > 0
        assert engine["decode_tok_s"] > 0
        assert engine["peak_rss_mb"] > 1
        assert engine["load_s"] > 0
        assert engine["logits"] == "all rows"
        assert set(engine["spread"]) == {"rows", "prefill_tok_s", "decode_tok_s"}
    assert report["base"] == "oracle"
    ratio = report["ratios"]["onnxruntime"]
    assert set(ratio) == {"prefill", "decode", "rows"}
    assert ratio["rows"]["3"]["min"] <= ratio["rows"]["3"]["median"] <= ratio["rows"]["3"]["max"]
    text = ok(*args)
    assert "skipped abacus: no runtime 'abacus'" in text
    assert "oracle over" in text


@pytest.mark.parametrize(
    ("name", "package", "logits"),
    [("onnxruntime-genai", "onnxruntime_genai", "last row only"), ("llama.cpp", "llama_cpp", "all rows")],
)
def test_other_peoples_engines_take_part(tiny: Path, name: str, package: str, logits: str) -> None:
    pytest.importorskip(package, reason="an extra")
    report = json.loads(ok(*PEERS, "-m", tiny, "--engines", name, "--json"))
    assert report["skipped"] == {}
    assert list(report["engines"]) == [name]
    assert list(report["engines"][name]["rows"]) == ["1", "3"]
    assert report["engines"][name]["logits"] == logits


def test_a_peer_that_is_not_installed_is_left_out(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_peers, "find_spec", lambda name: None)
    report = json.loads(ok(*PEERS, "-m", tiny, "--engines", "onnxruntime,llama.cpp", "--json"))
    assert list(report["engines"]) == ["onnxruntime"]
    assert 'pip install "edgedec[peers]"' in report["skipped"]["llama.cpp"]


def test_weights_that_llama_cpp_has_no_format_for_are_a_reason(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_peers, "find_spec", lambda name: object())

    def refuse(bundle: Bundle, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgedec.export.gguf.write_gguf", refuse)
    line = one_line(call(*PEERS, "-m", tiny, "--engines", "llama.cpp"), 1)
    assert "no engine could be measured: llama.cpp: " in line
    assert "No space left" in line


class FakeWorker:
    """Answers from a script: an engine's speed is its name's length; `fails` at its third request."""

    def __init__(self, config: Config) -> None:
        self.config, self.facts, self.asked = config, {"load_s": 0.5, "kv": "f32"}, 0

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        if self.config.engine == "fails" and self.asked == 3:
            raise EdgedecError("fails: it did")
        slow = len(self.config.engine) * self.asked
        if request["do"] == "end":
            return {"peak_bytes": 3_000_000}
        if request["do"] == "rows":
            return {"rows_s": {str(k): k * slow for k in request["counts"]}, "all_logits": False}
        return {"prefill_s": slow, "decode_s": 2 * slow}


def test_who_fails_leaves_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "Worker", FakeWorker)
    configs = {name: Config(engine, "m", 12, 6) for name, engine in [("a", "x"), ("b", "fails"), ("c", "xyz")]}
    shown: list[tuple[int, int]] = []
    found, skipped = peers.compare(configs, peers.Rounds((1, 2), 0, 2), {"d": "away"}, lambda *at: shown.append(at))
    assert skipped == {"d": "away", "b": "it did"}
    assert list(found) == ["a", "c"]
    assert found["a"].seconds == {"prefill": [2, 3], "decode": [4, 6], "1": [6, 7], "2": [12, 14]}
    ratios = found["a"].faster_than(found["c"])
    assert {part: spread.median for part, spread in ratios.items()} == dict.fromkeys(ratios, 3)
    report = found["c"].to_json([1, 2])
    assert report["rows"] == {"1": 19500, "2": 39000}
    assert report["prefill_tok_s"] == np.median([12 / 6, 12 / 9])
    assert (report["peak_rss_mb"], report["load_s"], report["logits"]) == (3.0, 0.5, "last row only")
    assert shown == [(i + 1, 7) for i in range(7)]


# -- plots


@pytest.mark.parametrize("args", [KERNELS, [*PEERS, "--engines", "onnxruntime"]], ids=lambda args: args[1])
def test_a_plot_is_written(tiny: Path, tmp_path: Path, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="an extra")
    probes(monkeypatch, [9.0] * 3, [9.0] * 3)
    assert str(tmp_path / "p.png") in ok(*args, "-m", tiny, "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_its_extra_says_what_to_install(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = one_line(call(*KERNELS, "-m", tiny, "--plot", "p.png"), 1)
    assert 'pip install "edgedec[plot]"' in line


# -- misuse


MISUSE: list[tuple[list[str], str]] = [
    ([*KERNELS, "--rows", "1,0"], "--rows 1,0"),
    ([*KERNELS, "--rows", "few"], "--rows few"),
    ([*KERNELS, "--rows", ""], "--rows"),
    ([*KERNELS, "-r", "0"], "--repetitions"),
    ([*KERNELS, "--plot", "p.txt"], ".png"),
    ([*KERNELS, "--plot", "no/such/p.png"], "no such folder"),
    ([*PEERS, "--engines", "native,abacus"], "'abacus'"),
    ([*PEERS, "--rows", "-1"], "--rows -1"),
    (["bench", "nope"], "nope"),
    (["bench", "-p", "9", "peers"], "stand behind it"),
]


@pytest.mark.parametrize(("args", "said"), MISUSE, ids=[" ".join(args) for args, _ in MISUSE])
def test_misuse_is_one_line_and_exit_code_2(args: list[str], said: str) -> None:
    line = one_line(call(*args), 2)
    assert said in line
    assert f"see edgedec {args[0]}" in line


@pytest.mark.parametrize("more", [["--context", "255"], ["--rows", "300"]], ids=" ".join)
@pytest.mark.parametrize("args", [KERNELS, PEERS], ids=lambda args: args[1])
def test_rows_beyond_the_context_are_one_line(tiny: Path, args: list[str], more: list[str]) -> None:
    assert "do not fit the context of 256" in one_line(call(*args, "-m", tiny, *more), 1)
