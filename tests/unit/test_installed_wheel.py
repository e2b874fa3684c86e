"""A wheel, installed into an empty folder: every engine works from there, without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgedec.kernels.cuda import emulated
from edgedec.kernels.cuda.sources import source_files

ROOT = Path(__file__).parents[2]
COPIED = ("edgedec", "export", "runtimes", "kernels", "models", "pyproject.toml", "setup.py", "README.md", "LICENSE")
LEFT = shutil.ignore_patterns("__pycache__", "cubins", "node_modules", "_native.*", "*.wasm")
slow = pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="minutes; set EDGEDEC_SLOW_TESTS")
# Engines by what `conformance --runtime` takes; exit code 2: it cannot be tested here, and says why.
ENGINES = ("native", "reference", "ort", "cuda:emulated", "opencl:0", "tvm")
# The suite takes minutes; this is one call of each of our own engines.
SHORT = """
from edgedec.runtime import RuntimeOptions, Rows, logits_of, open_runtime
from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
import edgedec, numpy as np
found = {}
bundle = Bundle.open(find(NANO))
for name, device in (("reference", ""), ("native", ""), ("cuda", "cuda:emulated")):
    runtime = open_runtime(name, bundle, RuntimeOptions(threads=1, device=device))
    cache = runtime.new_cache(16)
    found[name] = logits_of(runtime, Rows.chain(np.arange(5), 0), cache)
assert found["cuda"].tobytes() == found["native"].tobytes()
assert np.corrcoef(found["native"].ravel(), found["reference"].ravel())[0, 1] > 0.99
print(edgedec.__file__)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel of this checkout was unpacked into, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "src").mkdir()
    for path in (ROOT / name for name in COPIED):
        if path.is_dir():
            shutil.copytree(path, folder / "src" / path.name, ignore=LEFT)
        else:
            shutil.copy(path, folder / "src" / path.name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    new = int(version("setuptools").split(".")[0]) >= 77 if find_spec("setuptools") else False
    apart = ["--no-build-isolation"] if new else []
    build = ["wheel", "--no-deps", *apart, "--wheel-dir", str(folder), str(folder / "src")]
    done = subprocess.run([*pip, *build], capture_output=True, text=True, check=False)
    if done.returncode and not new and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("needs setuptools 77 or later: here is an older one, and no network")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    target = ["install", "--no-deps", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([*pip, *target], capture_output=True, text=True, check=True)
    shutil.rmtree(folder / "src")
    return folder / "site"


def run(site: Path, empty: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site), "EDGEDEC_CACHE": str(site.parent / "cache")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True, check=False)


def test_it_has_the_sources_of_the_gpu_engines(site: Path) -> None:
    kernels = site / "edgedec" / "kernels"
    for path in source_files():
        assert (kernels / "cuda" / path.name).read_bytes() == path.read_bytes()
    assert list((kernels / "opencl").glob("*.cl"))
    assert not list((kernels / "cpu").glob("*.cpp")), "that engine is in it compiled"


@pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")
def test_engines_run_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    done = run(site, tmp_path, "-c", SHORT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(done.stdout.strip()) == site / "edgedec" / "__init__.py"


def test_the_extra_brings_the_compiler(site: Path, tmp_path: Path) -> None:
    done = run(site, tmp_path, "-c", "import json, edgedec.extras as e; print(json.dumps(e.extras()['cuda']))")
    assert [name.split("<")[0] for name in json.loads(done.stdout)] == ["nvidia-cuda-nvrtc"]


@slow
@pytest.mark.parametrize("engine", ENGINES)
def test_conformance(site: Path, tmp_path: Path, engine: str) -> None:
    done = run(site, tmp_path, "-m", "edgedec.testing.conformance", "--runtime", engine)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert " 0 failed" in done.stdout.splitlines()[-1]
