"""Variants of the OpenCL program: by what a driver offers, left out where its compiler refuses them, the same bytes."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import opencl_devices
import pytest

from edgedec.kernels.device.interface import Buffer, DeviceError
from edgedec.kernels.opencl import driver, sources, variants
from edgedec.runtimes._selftest import check
from edgedec.runtimes._selftest.cases import CASES

pytestmark = pytest.mark.skipif(
    opencl_devices.why_not() is not None, reason=f"opencl: {opencl_devices.why_not()} (Debian: pocl-opencl-icd)"
)
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="kernels compile long; set EDGEDEC_SLOW_TESTS")
FIXED_SIZE = "cl_intel_required_subgroup_size"
EXTENSIONS = frozenset({"cl_khr_integer_dot_product", "cl_khr_subgroup_shuffle", FIXED_SIZE, "cl_khr_fp16"})
ONE = "__kernel void one(int a, __local uchar* memory) { }\n"
# Of each weight format, whatever a variant computes.
SOME = [case for case in CASES if case.model == "dense" and case.kv == "int8"]


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setenv(driver.DEVICE, "0")
    monkeypatch.delenv(variants.VARIANTS, raising=False)


def offering() -> driver.DeviceFacts:
    """The device, as if it had all extensions."""
    facts = driver.chosen()
    return replace(facts, extensions=facts.extensions | EXTENSIONS)


def test_variants_follow_the_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = driver.chosen()
    none = replace(facts, extensions=frozenset())
    assert not {"PACKED_DOT", "SUBGROUPS", "HALF_DOT"} & set(variants.offered(none))
    assert variants.offered(offering())[:2] == ("PACKED_DOT", "SUBGROUPS")
    # Its subgroups may be of fewer threads than a sum has lanes.
    assert "SUBGROUPS" not in variants.offered(replace(facts, extensions=EXTENSIONS - {FIXED_SIZE}))
    monkeypatch.setenv(variants.VARIANTS, "half_dot")
    assert variants.offered(offering())[0] == "HALF_DOT"
    assert "HALF_DOT" not in variants.offered(none)
    monkeypatch.setenv(variants.VARIANTS, "half_dot,quick")
    with pytest.raises(
        DeviceError, match="EDGEDEC_OPENCL_VARIANTS: no variant QUICK; there are: HALF_DOT, IMAGES, PACKED_DOT"
    ):
        variants.offered(facts)


def test_a_variant_that_is_named_is_tested_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = driver.OpenclDevice(driver.chosen(), ONE)
    monkeypatch.setenv(variants.VARIANTS, "half_dot")
    assert driver.OpenclDevice(driver.chosen(), ONE).kernels != plain.kernels


@pytest.mark.parametrize("refused", [("PACKED_DOT",), ("SUBGROUPS",), ("PACKED_DOT", "SUBGROUPS")])
def test_what_the_compiler_refuses_is_left_out(refused: tuple[str, ...]) -> None:
    """A driver that names an extension and has none of its functions."""
    text = "".join(f"#ifdef {name}\n#error no such function\n#endif\n" for name in refused)
    device = driver.OpenclDevice(replace(offering(), version="OpenCL 1.2"), text + ONE)
    left = [name for name in ("PACKED_DOT", "SUBGROUPS") if name in device.variants]
    assert left == [name for name in ("PACKED_DOT", "SUBGROUPS") if name not in refused]
    device.launch("one", (1, 1, 1), 32, 0, bytes(4))
    device.synchronize()


def test_a_program_that_no_variant_helps_is_refused() -> None:
    with pytest.raises(DeviceError, match="its compiler refuses the kernels"):
        driver.OpenclDevice(offering(), "this is no program\n")


@pytest.mark.parametrize(
    ("version", "used", "language"),
    [
        ("OpenCL 1.2 (Build 0)", ("PACKED_DOT",), "CL1.2"),
        ("OpenCL 2.0 AMD-APP", ("SUBGROUPS",), "CL1.2"),
        ("OpenCL 3.1 (Build 0)", ("SUBGROUPS",), "CL3.0"),
        ("OpenCL 3.0 PoCL", ("EXACT_DIVISION", variants.SHARED), "CL1.2"),
        ("", ("PACKED_DOT",), "CL1.2"),
    ],
)
def test_functions_of_extensions_are_in_the_language_of_opencl_3(
    version: str, used: tuple[str, ...], language: str
) -> None:
    assert variants.language(replace(driver.chosen(), version=version), used) == language


def test_a_corrected_division_rounds_as_ieee_754_says() -> None:
    """-0, infinities and what is no number among it."""
    arith = (sources.HERE / "arith.cl").read_text("utf-8")
    kernel = """typedef struct { ulong a, b, out; long n; } Args;
    __kernel void quotients(Args p, __local uchar* memory) {
      const long i = get_global_id(0);
      if (i < p.n) AT(float, p.out)[i] = divide(AT(const float, p.a)[i], AT(const float, p.b)[i]);
    }
    """
    device = driver.OpenclDevice(driver.chosen(), arith + kernel, without=("EXACT_DIVISION",))
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, 1, -1, 3, 1e30, -1e30, np.inf, -np.inf, np.nan, 127, 1 / 3], np.float32)
    random = (rng.standard_normal(4096) * 10.0 ** rng.integers(-6, 6, 4096)).astype(np.float32)
    a = np.concatenate([np.repeat(special, len(special)), random])
    b = np.concatenate([np.tile(special, len(special)), random[::-1]])
    out, places = np.empty_like(a), [Buffer.of(device, a), Buffer.of(device, b), Buffer(device, a.nbytes)]
    arguments = struct.pack("=3Qq", *(place.at for place in places), len(a))
    device.launch("quotients", (-(-len(a) // 64), 1, 1), 64, 0, arguments)
    device.read(places[2].at, out)
    with np.errstate(all="ignore"):
        expected = a / b
    wrong = ~((out.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(out) & np.isnan(expected)))
    assert a[wrong].tolist() == []


@slow
@pytest.mark.parametrize("words", ["", "half_dot", "half_dot,images"])
def test_every_variant_computes_the_cpu_engine_s_bytes(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of those that the driver has, then one less after another, down to the plain program."""
    monkeypatch.setenv(variants.VARIANTS, words)
    facts = driver.chosen()
    left = driver.OpenclDevice(facts).variants
    extra = [name for name in left if name in variants.EXTRA]
    if not extra:
        pytest.skip(f"{facts.name} ({facts.platform}) has none of {', '.join(sorted(EXTENSIONS))}")
    for n in range(len(extra) + 1):
        device = driver.OpenclDevice(facts, None, extra[:n])
        assert [name for name in extra if name in device.variants] == extra[n:]
        assert [case.name for case in SOME if not check.is_right(device, case)] == []


@slow
def test_each_launch_of_the_golden_cases_is_right() -> None:
    """What `edgedec doctor --device opencl` says, cache policies among it."""
    device = driver.OpenclDevice(driver.chosen())
    cases = [case for case in CASES if case.model in ("policies", "ssm") and case.kv == "int8"]
    assert [found for found in check.examine(device, cases) if found.kernel] == []
