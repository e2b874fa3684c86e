"""docs/extending.md, "Add a kind of block", followed literally on a copy of the package: the kind conforms there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from readme.shown import ROOT, section

PAGE = section(ROOT / "docs" / "extending.md", "Add a kind of block")
FOLDERS = ("export", "runtimes", "kernels", "models")
RUN = """
import sys
from edgedec.runtime import open_runtime
from edgedec.testing.conformance import run_suite, suite
suite.MODELS = {name: suite.MODELS[name] for name in ("gain",)}
for name in sys.argv[1:]:
    report = run_suite(name, lambda bundle, options: open_runtime(name, bundle, options))
    states = [finding.state for finding in report.findings]
    print(name, states.count("passed"), states.count("failed"))
    print(*(finding for finding in report.failed), sep="\\n")
"""
REFUSED = """
import sys
from pathlib import Path
from edgedec.runtime import open_runtime, RuntimeOptions
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS
bundle = write_bundle(Path(sys.argv[1]), MODELS["gain"], random_weights(MODELS["gain"]))
try:
    open_runtime("reference", bundle, RuntimeOptions())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed, with the page's files and changes, all but the reference's."""
    folder = tmp_path_factory.mktemp("copy")
    ignore = shutil.ignore_patterns("__pycache__", "bundle", "*.so", "nano")
    shutil.copytree(ROOT / "edgedec", folder / "edgedec", ignore=ignore)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "edgedec" / name, ignore=shutil.ignore_patterns("__pycache__", "nano"))
    return folder


def steps(parts: slice) -> list[tuple[str, str, str]]:
    """(file, language, block) of some of the page's sections, in order."""
    found, path = [], ""
    for part in re.split(r"^### ", PAGE, flags=re.M)[1:][parts]:
        for line, language, block in re.findall(r"^`([\w./]+)`:$|^```(python|diff)\n(.*?)^```", part, re.M | re.S):
            path = line or path
            if language:
                found.append((path, language, block))
    return found


def follow(folder: Path, parts: slice) -> int:
    for path, language, block in steps(parts):
        inner = path if path.startswith("edgedec/") else f"edgedec/{path}"
        file = folder / inner
        if language == "python":
            assert not file.exists()
            file.write_text(block, "utf-8")
            continue
        old = "".join(line[1:] + "\n" for line in block.splitlines() if line.startswith("-"))
        new = "".join(line[1:] + "\n" for line in block.splitlines() if line.startswith("+"))
        text = file.read_text("utf-8")
        assert text.count(old) == 1, f"{path}: {old}"
        file.write_text(text.replace(old, new), "utf-8")
    return len(steps(parts))


def python(folder: Path, program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={"PYTHONPATH": str(folder)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_makes_a_kind_that_conforms(copy: Path) -> None:
    assert follow(copy, slice(0, 1)) == 4
    assert follow(copy, slice(2, 3)) == 2
    refused = python(copy, REFUSED, str(copy / "bundle"))
    assert refused.startswith("RuntimeUnavailable engine reference: has no gain blocks, which this model needs")
    assert follow(copy, slice(1, 2)) == 5
    name, passed, failed, *others = python(copy, RUN, "reference").split()
    assert (name, failed, others) == ("reference", "0", [])
    assert int(passed) > 20
