"""The self-test of GPU engines: its cases are the CPU engine's bytes, it names planted faults, and openings heed it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from edgedec.bench import device_report
from edgedec.cli import _app
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.kernels.cuda.sources import HERE
from edgedec.kernels.device.interface import DeviceError, Recorded
from edgedec.runtime import RuntimeOptions
from edgedec.runtimes import cuda
from edgedec.runtimes._selftest import cases, check, golden, opening
from edgedec.runtimes._selftest.cases import CASES, GoldenCase
from edgedec.runtimes._selftest.models import SPECS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="a minute; set EDGEDEC_SLOW_TESTS")
INT4, NARROW, ZEROS, NORMS, EXPERTS, RECURRENT = CASES[2], CASES[7], *CASES[17:21]
POLICIES = CASES[23]
INT3, INT2 = CASES[25:27]
FACTS, CONVOLVED, DELTA = CASES[-3:]
DENSE = SPECS["dense"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_CACHE", os.environ.get("EDGEDEC_CACHE") or str(Path.home() / ".cache" / "edgedec"))
    emulated.Emulated()  # compiled before the cache is another
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    return tmp_path


class Faulty(emulated.Emulated):
    """A driver that runs one of its kernels wrong: after it, the sign of a number is changed in memory that the kernel
    was given to write. `at`: where in the arguments that memory's address is."""

    driver, kernels = "faulty 1.0", "k"

    def __init__(self, kernel: str, at: int) -> None:
        super().__init__()
        self.kernel, self.at = kernel, at
        self.place = 4 * 5 if kernel.startswith("attend") else 0  # past what scales all of an item

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        super()._run(kernel, grid, threads, shared, arguments)
        if kernel == self.kernel:
            (address,) = struct.unpack_from("@Q", arguments, self.at)
            (value,) = ctypes.string_at(address + self.place + 3, 1)
            ctypes.memset(address + self.place + 3, value ^ 0x80, 1)


def out_of_product() -> int:
    """Where a product's arguments hold the address of its output."""
    from edgedec.kernels.device.structs import DeviceWeights, Product

    return Product(DeviceWeights(), 0x1122334455667788, 0).pack(0).index(struct.pack("@Q", 0x1122334455667788))


def test_the_cases_run_every_kernel() -> None:
    text = "".join(path.read_text("utf-8") for path in sorted(HERE.glob("*.h")))
    there = set(re.findall(r"^(?:KERNEL|PRODUCT|MATRIX|ATTEND|ATTEND_VIEW)\((\w+)", text, re.MULTILINE))
    run = set[str]()
    for case in (INT4, NARROW, CASES[4], CASES[9], CASES[12], CASES[17], NORMS, EXPERTS, RECURRENT, *CASES[21:]):
        for missing in ((), ("matrix", "fused")) if case in (INT4, NORMS) else ((),):
            run |= {kernel for kernel, _ in check.trace(emulated.Emulated().without(missing), case)[0]}
    assert len(there) == 60
    assert run == there


def test_the_golden_results_are_those_of_the_cpu_engine() -> None:
    assert {case.name: golden.expected(case) for case in CASES} == {
        name: facts.result for name, facts in check.golden().items()
    }


@pytest.mark.parametrize(
    "case",
    [INT4, NORMS, EXPERTS, RECURRENT, POLICIES, INT3, INT2, FACTS, CONVOLVED, DELTA],
    ids=lambda case: f"{case.model} {case.packing.format}",
)
def test_the_golden_launches_are_those_that_are_made(case: GoldenCase) -> None:
    """If this fails after a change of launches: python -m edgedec.runtimes._selftest.golden."""
    kept = json.loads(check.GOLDEN.read_text("utf-8"))[case.name]
    assert golden.facts(case) == kept
    assert all(len(digests) > 200 for digests in kept["launches"].values())


@slow
def test_the_file_is_that_which_its_command_makes() -> None:
    assert {case.name: golden.facts(case) for case in CASES} == json.loads(check.GOLDEN.read_text("utf-8"))


@pytest.mark.parametrize(
    ("kernel", "at", "case"),
    [
        ("embed", 48, INT4),
        ("prepare", 16, CASES[9]),
        ("product_int4_1", out_of_product(), INT4),
        ("product_int4_8", out_of_product(), INT4),
        ("matrix_int8", out_of_product(), CASES[4]),
        ("matrix_int8_zeros", out_of_product(), NORMS),
        ("matrix_int4_zeros", out_of_product(), CASES[17]),
        ("product_int3_1", out_of_product(), INT3),
        ("matrix_int2", out_of_product(), INT2),
        ("product_f16", out_of_product(), CASES[9]),
        ("attend_int4", 16, NARROW),
        ("merge_chunks", 24, NARROW),
        ("norm_rows", 16, NORMS),
        ("gated", 16, INT4),
        ("best_tokens", 32, INT4),
        ("route", 32, EXPERTS),
        ("combine", 40, EXPERTS),
        ("ssm_scan", 56, RECURRENT),
        ("conv_rows", 32, CONVOLVED),
        ("delta_scan", 64, DELTA),
    ],
)
def test_a_planted_fault_is_named(kernel: str, at: int, case: GoldenCase) -> None:
    assert not check.is_right(Faulty(kernel, at), case)
    (finding,) = check.examine(Faulty(kernel, at), [case])
    assert finding.kernel == kernel
    assert "other bytes than those of the CPU engine" in finding.problem


def test_a_kernel_that_fails_is_named() -> None:
    class Failing(emulated.Emulated):
        def _run(self, kernel: str, *rest: object) -> None:
            if kernel == "gated":
                raise DeviceError("GPU: running kernels: misaligned address (CUDA error 716)")
            super()._run(kernel, *rest)  # type: ignore[arg-type]

    (finding,) = check.examine(Failing(), [INT4])
    assert (finding.kernel, finding.problem) == ("gated", "GPU: running kernels: misaligned address (CUDA error 716)")


def test_another_variant_is_taken_where_there_is_one() -> None:
    faulty = Faulty("matrix_int4", out_of_product())
    device = opening.checked("cuda", faulty, DENSE, ["int4"], "int8")
    assert (faulty.has_matrix, device.has_matrix, device.fused_bytes > 0) == (True, False, True)
    record = json.loads(opening.record_path(faulty).read_text("utf-8"))
    assert record["without"] == ["matrix"]
    assert set(record["cases"].values()) == {""}
    again = Faulty("matrix_int4", out_of_product())
    assert not opening.checked("cuda", again, DENSE, ["int4"], "int8").has_matrix
    assert again.launches == 0


def test_a_product_that_makes_its_rows_ready_wrong_is_run_without() -> None:
    class Fused(Faulty):
        def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
            self.at = out_of_product() if self.fused_bytes else 0
            if self.fused_bytes:
                return super()._run(kernel, grid, threads, shared, arguments)
            emulated.Emulated._run(self, kernel, grid, threads, shared, arguments)

    device = opening.checked("cuda", Fused("product_int4_1", 0), DENSE, ["int4"], "int8")
    assert (device.has_matrix, device.fused_bytes) == (True, 0)


def test_a_path_without_variant_is_refused_by_name_and_others_go_on() -> None:
    wrong = Faulty("attend_int4", 16)
    for _ in range(2):
        launches = wrong.launches
        with pytest.raises(
            DeviceError, match=r"kernel attend_int4 of driver faulty 1\.0 does not compute .* --device cuda"
        ):
            opening.checked("cuda", wrong, DENSE, ["int8"], "int4")
    assert wrong.launches == launches  # the second time it is known
    assert opening.checked("cuda", wrong, DENSE, ["int8"], "int8") is wrong
    assert wrong.launches > launches


@pytest.mark.parametrize(("fmt", "case"), [("int3", INT3), ("int2", INT2)])
def test_products_of_few_bits_are_tested_whatever_the_cache(fmt: str, case: GoldenCase) -> None:
    wrong = Faulty(f"product_{fmt}_8", out_of_product())
    with pytest.raises(DeviceError, match=rf"kernel product_{fmt}_8 of driver .*case: {case.name}"):
        opening.checked("cuda", wrong, DENSE, [fmt], "f16")
    assert opening.checked("cuda", wrong, DENSE, ["int4"], "f16") is wrong


def test_a_launch_that_is_lost_is_refused_though_each_kernel_is_right() -> None:
    class Losing(Faulty):
        def record(self, launches: Callable[[], None]) -> Recorded:
            made = super().record(launches)
            made._launches.pop()  # type: ignore[attr-defined]
            return made

    with pytest.raises(DeviceError, match=r"^launches one after another of driver faulty 1\.0 do not compute"):
        opening.checked("cuda", Losing("none", 0), DENSE, ["int4"], "int8")


def test_another_driver_is_tested_again_and_so_is_a_damaged_record() -> None:
    device = Faulty("none", 0)
    opening.checked("cuda", device, DENSE, ["int4"], "int8")
    for damaged in (b"", b"[]", b'{"device": 3}', b'{"device": "a", "driver": "b", "without": 5}'):
        opening.record_path(device).write_bytes(damaged)
        other = Faulty("none", 0)
        assert opening.checked("cuda", other, DENSE, ["int4"], "int8") is other
        assert other.launches > 50
    other = Faulty("none", 0)
    other.driver = "faulty 1.1"
    opening.checked("cuda", other, DENSE, ["int4"], "int8")
    assert other.launches > 50


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)
fields = st.sampled_from(["device", "driver", "without", "cases", "other"])


@settings(max_examples=30, deadline=None)
@given(data=st.binary() | st.dictionaries(fields, json_like).map(lambda value: json.dumps(value).encode()))
def test_any_record_is_read_or_passed_over(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "record.json"
    path.write_bytes(data)
    record = opening._read(path)
    assert record is None or all(isinstance(part, str) for part in (*record.without, *record.cases.values()))


def test_a_cache_folder_that_cannot_be_written_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_cache / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEDEC_CACHE", str(own_cache / "file"))
    device = Faulty("none", 0)
    assert opening.checked("cuda", device, DENSE, ["int4"], "int8") is device


@pytest.fixture
def two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CASES", (INT4, NORMS))
    monkeypatch.setattr(check.examine, "__defaults__", ((INT4, NORMS),))


def test_doctor_says_that_all_is_well(two_cases: None) -> None:
    done = CliRunner().invoke(_app.app, ["doctor", "--device", "cuda"])
    assert done.exit_code == 0, done.output
    assert "all is well" in done.stdout
    assert INT4.name in done.stdout


def test_doctor_names_what_is_wrong(two_cases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "open_device", lambda place: Faulty("matrix_int8_zeros", out_of_product()))
    done = CliRunner().invoke(_app.app, ["doctor", "--device", "cuda"])
    assert done.exit_code == 1
    assert "emulated, driver faulty 1.0" in done.stdout
    assert f"right without matrix, which is what edgedec will do: {NORMS.name}" in done.stdout
    assert "1 of 2 cases are wrong: matrix_int8_zeros" in done.stdout
    found = json.loads(CliRunner().invoke(_app.app, ["doctor", "--device", "cuda", "--json"]).stdout)
    assert [case["kernel"] for case in found["cases"]] == ["", "matrix_int8_zeros"]
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("word", "why"), [("cpu", "the self-test is of cuda and opencl"), ("opencl:no such", "no OpenCL")]
)
def test_doctor_refuses_in_one_line(word: str, why: str) -> None:
    done = CliRunner().invoke(_app.app, ["doctor", "--device", word])
    assert done.exit_code != 0
    assert why in done.output


def test_an_engine_is_refused_with_the_kernel(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.bundle import Bundle

    monkeypatch.setattr(cuda, "open_device", lambda place: Faulty("rope_store", 8))
    with pytest.raises(RuntimeUnavailable, match="engine cuda: kernel rope_store of driver faulty"):
        cuda.open(Bundle.open(nano), RuntimeOptions())


def test_the_report_names_all_wrong_kernels_though_nano_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Faulty):
        def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
            self.kernel, self.at = ("norm_rows", 16) if kernel == "norm_rows" else ("rope_store", 8)
            super()._run(kernel, grid, threads, shared, arguments)

    monkeypatch.setattr(cuda, "open_device", lambda place: Twice("rope_store", 8))
    monkeypatch.setattr(cases, "CASES", (INT4, NORMS))
    monkeypatch.setattr(device_report, "costs", lambda *_: {})
    found = device_report.report("cuda", False, lambda text: None)
    assert {case: said.partition(":")[0] for case, said in found["wrong kernels"].items()} == {
        INT4.name: "rope_store",
        NORMS.name: "norm_rows",
    }
    assert found["failed"].keys() == {"correctness"}


@pytest.mark.parametrize(
    ("part", "value", "code"),
    [
        ("correctness", {"story int8": "12ab", "story int8 as native": True}, 0),
        ("correctness", {"story int8 as native": "unknown: not compiled"}, 0),
        ("correctness", {"story int8 as native": False}, 1),
        ("wrong kernels", {INT4.name: "gated: other bytes"}, 1),
        ("failed", {"costs": "GPU: out of memory"}, 1),
    ],
)
def test_the_report_ends_with_1_where_anything_is_wrong(
    part: str, value: object, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"wrong kernels": {}, "correctness": {}, "failed": {}, part: value}
    monkeypatch.setattr(device_report, "report", lambda *_: found)
    assert device_report.main(["--small"]) == code


def test_variants_are_left_out_one_by_one_then_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Collection[str]]()
    monkeypatch.setattr(Faulty, "without", lambda self, parts: tried.append(tuple(parts)) or self)
    with pytest.raises(DeviceError):
        opening.checked("cuda", Faulty("rope_store", 8), DENSE, ["int4"], "int8")
    assert tried == [("matrix",), ("fused",), ("matrix", "fused")]
