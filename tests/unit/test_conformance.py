"""The conformance suite: runtimes that are here pass it; of one that is broken on purpose it names what fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.cache import HostCache
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import RUNTIMES, Call, CallResult, Rows, Runtime, RuntimeOptions, open_runtime
from edgedec.runtime.trust import trusting
from edgedec.runtimes import reference
from edgedec.testing.conformance import CHECKS, Report, __main__, run_suite, suite
from edgedec.testing.conformance.suite import REFUSED

SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
MODELS = {name: suite.MODELS[name] for name in ("plain", "hybrid")}


def here(name: str) -> None:
    """Skip where the runtime or what its artifacts need is not installed."""
    if name == "graph":
        pytest.skip("runs imported graphs only: tests/parity/test_imported.py")
    if name in ("cuda", "opencl"):
        pytest.skip(f"emulated, it takes minutes: tests/{name}")
    if name == "paired":
        pytest.skip("is made of two engines: tests/unit/test_paired.py")
    if name == "tvm":
        pytest.importorskip("tvm", reason="compiling needs TVM")
        pytest.importorskip("tvm_ffi", reason="libraries are opened by TVM's runtime")
    if name == "ort":
        pytest.importorskip("onnx", reason="making artifacts needs onnx")
    if name == "native":
        loader = pytest.importorskip("edgedec.kernels.cpu.loader")
        if reason := loader.why_not():
            pytest.skip(f"native engine: {reason}")


@pytest.mark.parametrize("name", RUNTIMES.names())
def test_every_runtime_conforms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here(name)

    def opened(bundle: Bundle, options: RuntimeOptions) -> Runtime:
        with trusting(True):  # what was made here a moment ago
            return open_runtime(name, bundle, options)

    if name == "tvm" and not SLOW:  # each is compiled for seconds; the kinds of blocks: tests/parity/test_tvm_kinds.py
        monkeypatch.setattr(suite, "MODELS", MODELS)
    report = run_suite(name, opened)
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    passed = {finding.check for finding in report.findings if finding.state == "passed"}
    assert len(passed) >= 20
    assert {finding.model for finding in report.findings} == set(suite.MODELS)


class Broken(reference.Reference):
    """The reference with one mistake."""


def failures(monkeypatch: pytest.MonkeyPatch, broken: type[Broken], models: Any = MODELS, **can: Any) -> set[str]:
    """The names of the checks that a runtime fails."""
    return {finding.check for finding in report_of(monkeypatch, broken, models, **can).failed}


def report_of(monkeypatch: pytest.MonkeyPatch, broken: type[Broken], models: Any = MODELS, **can: Any) -> Report:
    def opened(bundle: Bundle, options: RuntimeOptions) -> Runtime:
        found = reference.open(bundle, options)
        found.__class__ = broken
        found.capabilities = replace(found.capabilities, **can)
        return found

    monkeypatch.setattr(suite, "MODELS", models)
    return run_suite("broken", opened)


def test_a_tree_without_branches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoBranches(Broken):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            chained = []
            for call in calls:
                rows, n = call.rows, len(call.rows)
                parents = rows.parents if rows.groups is not None else np.arange(-1, n - 1)
                chained.append(call._replace(rows=replace(rows, parents=parents)))
            return super().forward(chained)

    found = failures(monkeypatch, NoBranches, {"plain": MODELS["plain"]})
    assert "trees: a row is the end of its chain" in found
    assert not {name for name in found if name.startswith(("parity: a text", "save", "fork", "truncate", "outputs"))}


def test_a_fork_that_shares_its_arrays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharing(HostCache):
        def fork(self, length: int | None = None, capacity: int | None = None) -> HostCache:
            twin = super().fork(length, capacity)
            twin._data = self._data
            return twin

    class Forking(Broken):
        def new_cache(self, capacity: int) -> HostCache:
            return Sharing(self.spec, capacity, self.kv)

    found = failures(monkeypatch, Forking, {"plain": MODELS["plain"]})
    assert "fork: what happens to one does not change the other" in found
    assert "trees: a row is the end of its chain" not in found


def test_a_commit_that_keeps_the_wrong_rows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(HostCache):
        def commit(self, rows: Sequence[int]) -> None:
            super().commit(range(self._tree.done, self._tree.done + len(rows)))

    class Committing(Broken):
        def new_cache(self, capacity: int) -> HostCache:
            return First(self.spec, capacity, self.kv)

    found = failures(monkeypatch, Committing)
    assert "trees: a path is committed, at once and in pieces" in found
    assert "commit: only rows that are pending" in found
    assert "parity: a text in one call" not in found


def test_bytes_that_depend_on_what_shares_the_call_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(Broken):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            found = super().forward(calls)
            noise = np.float32(1 + 1e-6 * len(calls))
            return [replace(r, logits=None if r.logits is None else r.logits * noise) for r in found]

    plain = {"plain": MODELS["plain"]}
    assert "ragged: calls of all sorts in one forward are what they are alone" in failures(
        monkeypatch, Noisy, plain, batch_invariant=True
    )
    assert failures(monkeypatch, Noisy, plain) == set()


def test_what_is_not_declared_has_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the capabilities off, calls that need them are refused; a runtime that runs them all the same is named."""
    flags = dict.fromkeys(REFUSED, False)

    class Keeping(HostCache):
        def drop(self, block: int, slots: Sequence[int]) -> None:
            raise UsageError("slots cannot be dropped")

        def merge(self, block: int, *parts: object) -> None:
            raise UsageError("slots cannot be merged")

        def attach(self, rows: int) -> None:
            raise UsageError("slots cannot be attached")

    class Strict(Broken):
        def new_cache(self, capacity: int) -> HostCache:
            return Keeping(self.spec, capacity, self.kv)

    report = report_of(monkeypatch, Strict, {"plain": MODELS["plain"]}, **flags)
    assert report.failed == []
    assert {f.message for f in report.findings if f.state == "not declared"} == set(REFUSED)

    class Careless(Broken):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            self.capabilities = replace(self.capabilities, **dict.fromkeys(REFUSED, True))
            return super().forward(calls)

    found = report_of(monkeypatch, Careless, {"plain": MODELS["plain"]}, **flags).failed
    needing = {one.name for one in CHECKS if one.needs and (not one.models or "plain" in one.models)}
    assert {finding.check for finding in found} == needing


def test_kinds_that_are_not_declared_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = {"plain": MODELS["plain"], "hybrid": MODELS["hybrid"]}
    report = report_of(monkeypatch, Broken, hybrid, kinds=("attention", "mlp"))
    assert {f.model for f in report.failed} == {"hybrid"}
    assert all("opens a model that has them" in f.message for f in report.failed)

    def opened(bundle: Bundle, options: RuntimeOptions) -> Runtime:
        if "ssm" in bundle.spec.kinds:
            raise RuntimeUnavailable("has no moe, ssm blocks, which this model needs")
        found = reference.open(bundle, options)
        found.capabilities = replace(found.capabilities, kinds=("attention", "mlp"))
        return found

    findings = run_suite("narrow", opened).findings
    assert {(f.model, f.state) for f in findings} == {("plain", "passed"), ("hybrid", "not declared")}
    assert {f.message for f in findings if f.model == "hybrid"} == {"moe, ssm"}


def test_the_command(nano: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "CHECKS", [one for one in CHECKS if one.name.startswith("trees: a row")])
    assert __main__.main(["--runtime", "reference", "--bundle", str(nano)]) == 0
    assert "1 checks, 0 failed" in capsys.readouterr().out
    assert __main__.main(["--runtime", "reference", "--bundle", str(nano), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runtime"], found["passed"], found["findings"][0]["state"]) == ("reference", True, "passed")
    monkeypatch.setattr(reference.Reference, "forward", lambda self, calls: [CallResult()] * len(calls))
    assert __main__.main(["--runtime", "reference", "--bundle", str(nano)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert __main__.main(["--runtime", "none", "--bundle", str(nano)]) == 2
    assert "no runtime 'none'" in capsys.readouterr().err


def test_rows_are_compared_with_something() -> None:
    """Checks do not compare nothing with nothing."""
    assert len({one.name for one in CHECKS}) == len(CHECKS) > 20
    assert set(REFUSED) <= {one.needs for one in CHECKS}
    assert Rows.chain([1], 0).is_chain
