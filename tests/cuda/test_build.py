"""The kernels compile for every GPU, without a GPU: no stack, no spills; and which file a GPU is given."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.kernels.cuda import build, driver, emulated, nvrtc
from edgedec.kernels.cuda.sources import SOURCE, CudaBuildFailed, cubin_name, source_files
from edgedec.kernels.device.interface import WIDE, DeviceError

slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="a minute; set EDGEDEC_SLOW_TESTS")
ROOT = Path(__file__).parents[2]
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() is not None, reason=f"{nvrtc.why_not()}")
KERNELS = {
    name
    for path in source_files()
    if path.suffix == ".h"
    for name in re.findall(
        r"^(?:KERNEL|KERNEL_SHARED|PRODUCT|ATTEND|ATTEND_VIEW|MATRIX)\((\w+),", path.read_text("utf-8"), re.MULTILINE
    )
}


@needs_nvrtc
@pytest.mark.parametrize(
    "architecture",
    ["sm_90", *(pytest.param(name, marks=slow) for name in build.ARCHITECTURES if name != "sm_90")],
)
def test_no_kernel_spills(architecture):
    made = nvrtc.compile_for(architecture)
    assert made.kernels.keys() == KERNELS
    assert made.code[:4] == b"\x7fELF"
    wrong = {name: use for name, use in made.kernels.items() if use.stack or use.spills}
    assert wrong == {}
    most = {name: use.registers for name, use in made.kernels.items()}
    assert max(most.values()) <= 255
    assert len(made.code) < 4 << 20  # 4 MiB


@needs_nvrtc
def test_what_does_not_compile_is_one_line(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong() { undeclared(); }\n', "utf-8")
    with pytest.raises(CudaBuildFailed, match=r"wrong\.cu\(1\).*undeclared") as error:
        nvrtc.compile_for("sm_90", source)
    assert "\n" not in str(error.value)


def test_what_ptxas_says_is_read():
    log = """ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Compiling entry function 'two' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers"""
    assert nvrtc.uses(log) == {"one": nvrtc.KernelUse(40, 16, 20), "two": nvrtc.KernelUse(8, 0, 0)}


@pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")
def test_the_emulation_has_every_kernel():
    lib = ctypes.CDLL(str(build.emulation()))
    assert [name for name in KERNELS if not lib.ed_cuda_has(name.encode())] == []


@pytest.mark.parametrize(
    ("capability", "found"),
    [
        ((9, 0), "engine.sm_90.cubin"),
        ((8, 0), "engine.sm_80.cubin"),
        ((8, 7), "engine.sm_80.cubin"),  # a cubin runs on later ones of its major version
        ((8, 9), "engine.sm_89.cubin"),
        ((13, 0), "engine.compute_120.ptx"),
        ((12, 1), "engine.compute_120.ptx"),
    ],
)
def test_the_kernels_that_a_gpu_is_given(tmp_path, capability, found):
    for name in ("sm_80", "sm_89", "sm_90", "compute_90", "compute_120"):
        (tmp_path / cubin_name(name)).write_bytes(b"")
    assert driver.kernels_in(tmp_path, capability).name == found


def test_a_gpu_without_kernels_is_one_line(tmp_path):
    with pytest.raises(DeviceError, match=r"compute capability 7\.0 .*build --arch sm_70") as error:
        driver.kernels_in(tmp_path, (7, 0))
    assert "\n" not in str(error.value)


def test_kernels_of_other_sources_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compile_for", lambda architecture: SimpleNamespace(code=b"code"))
    assert build.main(["--out", str(tmp_path), "--arch", "sm_90"]) == 0
    assert driver.kernels_in(tmp_path, (9, 0)).name == "engine.sm_90.cubin"
    (tmp_path / "SOURCES").write_text("of last week\n")
    with pytest.raises(DeviceError, match=r"^kernels in .* are of other sources: python -m "):
        driver.kernels_in(tmp_path, (9, 0))


def test_kernels_of_other_sources_are_named_when_it_is_installed(tmp_path):
    pytest.importorskip("setuptools.command.bdist_wheel", reason="needs a setuptools that builds wheels")
    scripts = [path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels/cpu").glob("*.py")]
    for path in (*scripts, "kernels/cuda", "setup.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, tmp_path / path, ignore=shutil.ignore_patterns("cubins"))
        else:
            shutil.copy(ROOT / path, tmp_path / path)
    project = "[project]\nname = 'edgedec'\nversion = '0'\n[tool.setuptools]\npackages = []\n"
    (tmp_path / "pyproject.toml").write_text(project)
    env, said = os.environ | {"EDGEDEC_NO_NATIVE": "1"}, []
    for _ in range(2):
        command = [sys.executable, "setup.py", "build_native"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        said.append([line for line in (done.stdout + done.stderr).splitlines() if "of other sources" in line])
        (tmp_path / "kernels/cuda/cubins").mkdir(exist_ok=True)
        (tmp_path / "kernels/cuda/cubins/SOURCES").write_text("of last week\n")
    assert [len(lines) for lines in said] == [0, 1]  # none are needed: they are compiled at first use


def test_the_command_writes_whole_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "compile_for", lambda architecture: SimpleNamespace(code=architecture.encode()))
    assert build.main(["--out", str(tmp_path), "--arch", "sm_90", "--arch", "compute_120"]) == 0
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["SOURCES", "engine.compute_120.ptx", "engine.sm_90.cubin"]
    assert "engine.sm_90.cubin 5 bytes" in capsys.readouterr().out


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    assert build.main(["--emulation", str(tmp_path / "made.so")]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "the emulation needs a C++ compiler" in capsys.readouterr().err


def test_numbers_of_the_header_are_those_of_python():
    from edgedec.kernels.device import structs

    text = "".join(path.read_text("utf-8") for path in source_files())
    for name in ("PAGE_SLOTS", "CHUNK", "LANES", "STRIP", "PRODUCT_STEPS", "MOST_QUERIES"):
        assert int(re.search(rf"constexpr int {name} = (\d+);", text)[1]) == getattr(structs, name)  # type: ignore[index]
    assert Path(SOURCE).is_file()
    assert "SUM_ROW = PRODUCT_STEPS * LANES + LANES, SCALE_ROW = PRODUCT_STEPS + 1;" in text
    steps, lanes = structs.PRODUCT_STEPS, structs.LANES
    assert (WIDE.product, WIDE.product_row) == (4 * steps * lanes, 4 * (steps * lanes + lanes + steps + 1))
