"""What users are told to install exists, is ours, and works where they are."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from edgedec import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# "pip install edgedec", "pip install 'edgedec[x]'", "edgedec[x]": somebody else's package on PyPI.
FOREIGN = re.compile(r"pip3? install (?:-\S+ )*['\"]?edgedec(?!-runtime)\b|(?<![\w./-])edgedec\[(?!\w*\]\()[a-z]")


def texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    kinds = {".py", ".md", ".toml", ".html", ".yml", ".yaml", ".cpp", ".h", ".txt", ""}
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in kinds and path.is_file() and path != Path(__file__)]


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("pip install edgedec", True),
        ('pip install "edgedec[export]"', True),
        ("needs edgedec[serve]", True),
        ("pip install -U edgedec", True),
        ("pip install edgedec-runtime", False),
        ('pip install ".[export]"', False),
        ("pip install edgedec_runtime-0.1-py3-none-any.whl", False),
    ],
)
def test_the_old_words_are_known(text: str, foreign: bool) -> None:
    assert bool(FOREIGN.search(text)) == foreign


def test_nothing_says_to_install_the_package_of_that_name_which_is_a_strangers() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in texts()
        for i, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert len(texts()) > 200
    assert found == []


def test_the_distribution_is_ours() -> None:
    assert PROJECT["name"] == extras.DISTRIBUTION == "edgedec-runtime"
    assert PROJECT["scripts"] == {"edgedec": "edgedec.cli:main"}


def test_every_command_names_an_extra_that_exists() -> None:
    named = {
        name
        for folder in ("edgedec", "export", "runtimes")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"install_command\(['\"](\w+)['\"]\)", path.read_text("utf-8"))
    }
    assert len(named) >= 6
    assert named <= set(PROJECT["optional-dependencies"])


def test_docs_name_extras_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\"\.\[([\w,]+)\]\"", page.read_text("utf-8"))}
    assert len(named) >= 4
    assert {part for name in named for part in name.split(",")} <= set(PROJECT["optional-dependencies"])


def test_requirements_by_extra() -> None:
    lines = ["numpy>=1.26", 'onnx>=1.18; extra == "export"', "ray[data]>=2.60; extra == 'ray'", 'x; extra == "ray"']
    assert extras.requirements_by_extra(lines) == {"export": ("onnx>=1.18",), "ray": ("ray[data]>=2.60", "x")}
    assert extras.import_name("llama-cpp-python>=0.3.36") == "llama_cpp"
    assert extras.import_name("ray[data]>=2.60") == "ray"


def test_the_command_names_the_packages_or_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['onnx>=1.18; extra == "export"', 'httpx; extra == "export"']
    monkeypatch.setattr(extras.metadata, "requires", lambda name: lines)
    assert extras.install_command("export") == 'pip install "onnx>=1.18" httpx'

    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert extras.install_command("export") == 'pip install ".[export]" in the checkout of edgedec'
