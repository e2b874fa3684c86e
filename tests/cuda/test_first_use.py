"""Kernels compiled at first use: once for a machine, by sources, architecture and compiler; and what is said."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cuda import ATTRIBUTES, FakeCuda

from edgedec.bundle import Bundle
from edgedec.cli import main
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cuda import driver, emulated, first_use, library, nvrtc, sources
from edgedec.kernels.cuda.sources import CudaBuildFailed
from edgedec.kernels.device.interface import DeviceError
from edgedec.runtime import RuntimeOptions, open_runtime, unavailable_reason
from edgedec.runtimes.paired import Surveyed

CUBIN = b"\x7fELF and so on"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An NVRTC of these tests, a cache folder, and the architectures that were compiled."""
    made: list[str] = []

    def compile_for(architecture: str) -> SimpleNamespace:
        made.append(architecture)
        return SimpleNamespace(code=b"// PTX" if architecture.startswith("compute") else CUBIN)

    for name, value in (("why_not", lambda: None), ("version", lambda: "13.0"), ("compile_for", compile_for)):
        monkeypatch.setattr(nvrtc, name, value)
    monkeypatch.setattr(nvrtc, "architectures", lambda: [75, 80, 86, 89, 90, 100, 120])
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(driver.CUBINS, raising=False)
    monkeypatch.setattr(driver, "HERE", tmp_path)  # an installation without compiled kernels
    return made


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [((9, 0), "sm_90"), ((8, 7), "sm_86"), ((12, 1), "sm_120"), ((13, 0), "compute_120"), ((11, 0), "compute_100")],
)
def test_the_newest_that_the_gpu_runs(compiler: list[str], capability: tuple[int, int], architecture: str) -> None:
    path = driver.kernels_for(capability)
    assert compiler == [architecture]
    assert path.name == sources.cubin_name(architecture)


def test_once_for_sources_architecture_and_compiler(
    compiler: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = driver.kernels_for((9, 0))
    assert "compiling the CUDA kernels for sm_90" in capsys.readouterr().err
    assert driver.kernels_for((9, 0)) == first
    assert capsys.readouterr().err == ""
    assert compiler == ["sm_90"]
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")
    second = driver.kernels_for((9, 0))
    monkeypatch.setattr(first_use, "digest", lambda: "other sources")
    third = driver.kernels_for((9, 0))
    driver.kernels_for((8, 9))
    assert len({first, second, third}) == 3
    assert compiler == ["sm_90"] * 3 + ["sm_89"]


def test_a_damaged_file_is_compiled_again(compiler: list[str]) -> None:
    path = driver.kernels_for((9, 0))
    path.write_bytes(b"")
    assert driver.kernels_for((9, 0)).read_bytes() == CUBIN
    assert compiler == ["sm_90"] * 2
    assert [p.name for p in path.parent.iterdir() if "partial" in p.name] == []


def test_kernels_of_a_folder_are_taken_alone(
    compiler: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(driver.CUBINS, str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    with pytest.raises(DeviceError, match=r"no kernels for compute capability 9\.0 in .*mine"):
        driver.kernels_for((9, 0))
    (tmp_path / "mine" / "engine.sm_90.cubin").write_bytes(CUBIN)
    assert driver.kernels_for((9, 0)).parent == tmp_path / "mine"
    assert compiler == []


def test_what_fails_is_one_line(compiler: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(architecture: str) -> None:
        raise CudaBuildFailed("engine.cu(3): error: nothing works")

    monkeypatch.setattr(nvrtc, "compile_for", refuse)
    with pytest.raises(DeviceError, match=r"^the CUDA kernels do not compile: engine.cu\(3\)"):
        driver.kernels_for((9, 0))
    with pytest.raises(DeviceError, match=r"knows no compute capability 6\.1"):
        driver.kernels_for((6, 1))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match=r"the CUDA kernels cannot be kept in .*file: Not a directory"):
        driver.kernels_for((9, 0))


def _compile_in_another_process(cache: str, started: list[str], folder: Path) -> None:
    os.environ["EDGEDEC_CACHE"] = cache

    def compile_for(architecture: str) -> SimpleNamespace:
        (folder / f"compiled-{os.getpid()}").write_text("")
        time.sleep(0.3)  # long enough that the other one comes meanwhile
        return SimpleNamespace(code=CUBIN)

    for name, value in (("why_not", lambda: None), ("version", lambda: "13.0"), ("compile_for", compile_for)):
        setattr(nvrtc, name, value)
    nvrtc.architectures = lambda: [90]
    (folder / f"found-{os.getpid()}").write_bytes(first_use.compiled((9, 0), lambda said: None).read_bytes())


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_processes_share_one_compilation(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    args = (str(tmp_path / "cache"), [], tmp_path)
    workers = [fork.Process(target=_compile_in_another_process, args=args) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert len(list(tmp_path.glob("compiled-*"))) == 1
    assert [path.read_bytes() for path in tmp_path.glob("found-*")] == [CUBIN] * 3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU as its driver tells of it."""
    if reason := emulated.why_not():
        pytest.skip(f"emulation: {reason}")
    fake = FakeCuda()
    monkeypatch.setattr(library, "libcuda", lambda: fake)
    monkeypatch.setenv("EDGEDEC_CUDA", "0")
    return fake


def test_an_engine_opens_on_kernels_made_then(compiler: list[str], gpu: FakeCuda, nano: Path) -> None:
    bundle = Bundle.open(nano)
    assert unavailable_reason("cuda", bundle) is None
    assert compiler == [], "asking compiles nothing"
    open_runtime("cuda", bundle, RuntimeOptions(threads=1))
    open_runtime("cuda", bundle, RuntimeOptions(threads=1))
    major, minor = ATTRIBUTES[75], ATTRIBUTES[76]
    assert compiler == [f"sm_{major}{minor}"]


MISSING = 'no NVRTC, the compiler of its kernels: pip install "edgedec-runtime[cuda]"'


def test_what_is_missing_is_said_everywhere(
    compiler: list[str],
    gpu: FakeCuda,
    nano: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def absent() -> str:
        return MISSING

    monkeypatch.setattr(nvrtc, "why_not", absent)
    bundle = Bundle.open(nano)
    assert MISSING in str(unavailable_reason("cuda", bundle))
    with pytest.raises(RuntimeUnavailable, match="no NVRTC"):
        open_runtime("cuda", bundle)
    assert main(["doctor", "--json"]) == 0
    assert MISSING in json.loads(capsys.readouterr().out)["gpus"]["cuda"]
    assert main(["targets", "--json"]) == 0
    assert MISSING in {t["name"]: t["missing"] for t in json.loads(capsys.readouterr().out)}["cuda"]
    assert MISSING in Surveyed.of(bundle, RuntimeOptions(device="auto")).missing["cuda"]


@pytest.mark.skipif(nvrtc.why_not() is not None, reason=f"{nvrtc.why_not()}")
@pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="a minute; set EDGEDEC_SLOW_TESTS")
def test_the_real_compiler(tmp_path: Path) -> None:
    code = "from edgedec.kernels.cuda import first_use; print(first_use.compiled((9, 0)))"
    env = os.environ | {"EDGEDEC_CACHE": str(tmp_path)}
    done = [
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [d.returncode for d in done] == [0, 0], done[0].stderr
    assert "compiled in" in done[0].stderr
    assert done[1].stderr == ""
    assert Path(done[1].stdout.strip()).read_bytes()[:4] == b"\x7fELF"
