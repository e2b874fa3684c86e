"""`edgedec bench kernels` and `edgedec bench peers`: what they report and whom they leave out; never how fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import random_weights, write_bundle
from python_steps import python_steps
from typer.testing import CliRunner, Result

from edgedec.bench import llama_weights, peers
from edgedec.bench.device import rates
from edgedec.bench.experts import chosen_experts, expert_costs, rows_choosing
from edgedec.bench.row_costs import RowCall, Work, row_costs
from edgedec.bench.timing import Config
from edgedec.bundle.folder import Bundle
from edgedec.bundle.locate import find
from edgedec.cli import _app
from edgedec.cli.bench import peers as peers_verb
from edgedec.errors import EdgedecError
from edgedec.runtime import Call, Outputs, Rows, open_runtime
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, Mlp, ModelSpec, Moe, Rope

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

    def forward(self, calls: Sequence[Call]) -> Any:
        self.calls += [(call.rows.positions.tolist(), call.cache.length) for call in calls]
        return super().forward(calls)


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
    widths = [
        2 * block.q_dim + 2 * block.kv_dim if isinstance(block, Attention) else 3 * block.inner_size
        for block in spec.blocks
        if isinstance(block, Attention | Mlp)
    ]
    assert len(widths) == spec.n_blocks
    assert not spec.tied
    assert work.macs == sum(widths) * spec.hidden_size + spec.vocab_size * spec.hidden_size
    norms = (spec.n_blocks + 1) * spec.hidden_size
    assert work.weight_bytes == 4 * (work.macs + norms)


def moe_bundle(folder: Path, router: Any = "softmax", norm: Any = "rms") -> Bundle:
    """A random model of two layers with 8 experts, of which a row takes 2."""
    layer = (
        Attention(2, 1, 16, 0.25),
        Moe(8, 2, 16, router=router, router_bias=router == "sigmoid", norm=norm),
    )
    spec = ModelSpec("random", 40, 32, 64, (layer, layer), 1e-5, True, (Rope((1.0, 0.1)),))
    return write_bundle(folder, spec, random_weights(spec))


@pytest.mark.parametrize("router", ["softmax", "softmax_topk", "sigmoid"])
@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_the_experts_of_states_are_those_that_the_runtime_runs(
    tmp_path: Path, router: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedec.runtimes.reference import moe

    bundle = moe_bundle(tmp_path / "moe", router, norm)
    chosen: list[Any] = []
    route = moe.route

    def noted(*args: Any) -> Any:
        found = route(*args)
        chosen.append(found[0])
        return found

    monkeypatch.setattr(moe, "route", noted)
    runtime = open_runtime("reference", bundle)
    states = np.random.default_rng(1).standard_normal((20, 32)).astype(np.float32)
    call = Call(Rows.chain([0] * 20, 0), runtime.new_cache(20), [3], states, Outputs(hidden=(3,)))
    runtime.forward([call])
    assert np.array_equal(np.sort(chosen[0]), np.sort(chosen_experts(bundle, 3, states)))


def test_rows_are_picked_by_how_many_experts_they_choose() -> None:
    experts = np.array([[0, 1], [1, 0], [2, 5], [1, 3], [6, 7]])
    assert rows_choosing(experts, 2, 3).tolist() == [0, 0, 0]
    assert rows_choosing(experts, 4, 3).tolist() == [0, 2, 0]
    assert rows_choosing(experts, 5, 4).tolist() == [0, 2, 3, 0]
    assert rows_choosing(experts, 99, 2).tolist() == [0, 2]


def test_kernels_reports_the_cost_by_distinct_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = moe_bundle(tmp_path / "moe")
    runtime, distinct = open_runtime("reference", bundle), list[int]()
    forward = runtime.forward

    def counted(calls: Sequence[Call]) -> Any:
        for call in calls:
            assert call.hidden is not None
            assert call.rows.count == 6
            distinct.append(len(np.unique(chosen_experts(bundle, next(iter(call.blocks or ())), call.hidden))))
        return forward(calls)

    monkeypatch.setattr(runtime, "forward", counted)
    found = expert_costs(runtime, bundle, [1, 2, 4, 8], 6, 2)
    assert list(found) == [2, 4, 8], "a row takes two"
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
    assert distinct == [2, 2, 4, 4, 8, 8] * 3


def test_every_file_of_the_folder_is_a_benchmark() -> None:
    files = {path.stem for path in Path(peers_verb.__file__).parent.glob("*.py")}
    found = sorted(name for name in files if not name.startswith("_"))
    listed = ok("bench", "--help").split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed if line.strip()] == found
    assert {"batch", "kernels", "targets"} <= set(found)


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
    assert report["experts"] is None, "this model has none"
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
    from edgedec.bench.ceilings import Ceilings

    ceilings = Ceilings(1, 1)
    ceilings.probe()
    assert ceilings.read_gb_s
    assert ceilings.int8_gmac_s


# -- bench peers


def test_peers_takes_turns_and_reports_everyone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_verb, "NAMES", {"oracle": "reference", "abacus": "abacus", "onnxruntime": "ort"})
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
        assert set(engine["spread"]) == {"rows", "prefill_tok_s", "decode_tok_s", "drafted_tok_s"}
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
    monkeypatch.setattr(llama_weights, "find_spec", lambda name: None)
    report = json.loads(ok(*PEERS, "-m", tiny, "--engines", "onnxruntime,llama.cpp", "--json"))
    assert list(report["engines"]) == ["onnxruntime"]
    assert 'pip install "onnxruntime-genai>=0.18" "llama-cpp-python' in report["skipped"]["llama.cpp"]


def test_weights_that_llama_cpp_has_no_format_for_are_a_reason(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_weights, "find_spec", lambda name: object())

    def refuse(bundle: Bundle, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgedec.export.gguf.write_gguf", refuse)
    line = one_line(call(*PEERS, "-m", tiny, "--engines", "llama.cpp"), 1)
    assert "no engine could be measured: llama.cpp: " in line
    assert "No space left" in line


def test_llama_cpp_reads_a_gguf_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an architecture that is not written, with a state that cannot be cut back to its first tokens."""
    for package in ("llama_cpp", "gguf", "torch", "transformers"):
        pytest.importorskip(package, reason="an extra")
    import ggufs
    import readings
    import zoo

    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    path = ggufs.write(
        zoo._causal("Lfm2", layer_types=["conv", "full_attention", "conv"])(), tmp_path / "m.gguf", **readings.NAMES
    )
    assert llama_weights.write_weights(Bundle.open(find(path)), tmp_path / "w.gguf") is not None
    report = json.loads(ok(*PEERS, "-m", path, "--engines", "native,llama.cpp", "--json"))
    assert report["skipped"] == {}
    assert list(report["engines"]["llama.cpp"]["rows"]) == ["1", "3"]
    assert path.is_file()
    monkeypatch.setattr(llama_weights, "find_spec", lambda name: None)
    assert "llama.cpp: needs llama-cpp-python" in one_line(call(*PEERS, "-m", path, "--engines", "llama.cpp"), 1)


class FakeWorker:
    """Answers from a script: an engine's speed is its name's length; `fails` at its third request."""

    def __init__(self, config: Config) -> None:
        self.config, self.facts, self.requests = config, {"load_s": 0.5, "kv": "f32"}, 0

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        if self.config.engine == "fails" and self.requests == 3:
            raise EdgedecError("fails: it did")
        slow = len(self.config.engine) * self.requests
        if request["do"] == "end":
            return {"peak_bytes": 3_000_000}
        if request["do"] == "rows":
            return {"rows_s": {str(k): k * slow for k in request["counts"]}, "all_logits": False}
        return {"prefill_s": slow, "decode_s": 2 * slow}


def test_who_fails_leaves_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BenchWorker", FakeWorker)
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


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA A100-PCIE-40GB", 1.555e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12),
        ("NVIDIA A100-SXM-64GB", 7e11),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA L4", 0.3e12),
        ("NVIDIA L40S", 7e11),
        ("NVIDIA GeForce RTX 4090", 7e11),
    ],
)
def test_the_rate_of_a_gpu_s_memory(name: str, memory: float) -> None:
    """Of those that are not known what the driver says."""
    assert rates(name, 7e11)[0] == memory


# -- plots


@pytest.mark.parametrize("args", [KERNELS, [*PEERS, "--engines", "onnxruntime"]], ids=lambda args: args[1])
def test_a_plot_is_written(tiny: Path, tmp_path: Path, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="an extra")
    probes(monkeypatch, [9.0] * 3, [9.0] * 3)
    assert str(tmp_path / "p.png") in ok(*args, "-m", tiny, "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_one_token_a_call_is_plain_and_drafts_are_measured_apart(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On text that repeats itself drafting gains much: none of that may be in the speed of one token a call."""
    from edgedec.bench.engines import Edgedec, Genai
    from edgedec.runtimes.native import NativeRuntime
    from edgedec.speculation import choose
    from edgedec.speculation.costs import Costs

    monkeypatch.setattr(choose, "host_costs", lambda runtime, bundle: Costs({1: 1.0, 32: 1.01}))
    engine = Edgedec(Config("native", str(nano), 8, 24), 1)
    python_steps(engine._model.runtime)
    rows: list[int] = []
    forward = NativeRuntime.forward

    def counted(self: Any, calls: Any) -> Any:
        rows.extend(call.rows.count for call in calls)
        return forward(self, calls)

    monkeypatch.setattr(NativeRuntime, "forward", counted)
    engine.run([5, 6, 7, 8] * 8, 24)
    assert rows == [32] + [1] * 24
    rows.clear()
    assert engine.drafted([5, 6, 7, 8] * 8, 24) is not None
    assert len(rows) < 25, "something was drafted"
    assert Genai.drafted(None, [1], 1) is None  # type: ignore[arg-type]


def test_bench_has_a_column_for_drafts(nano: Path) -> None:
    args = ["bench", "-m", nano, "-p", "8", "-n", "8", "-r", "1", "-t", "1"]
    (row,) = json.loads(ok(*args, "--json"))["results"]
    assert row["decode_tokens_per_s"]["median"] > 0
    assert row["drafted_tokens_per_s"]["median"] > 0
    assert "with drafts" in ok(*args)


def test_a_plot_without_its_extra_says_what_to_install(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = one_line(call(*KERNELS, "-m", tiny, "--plot", "p.png"), 1)
    assert 'pip install "matplotlib' in line


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
    (["bench", "-p", "9", "peers"], "stand after it"),
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
