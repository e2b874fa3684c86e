"""`python -m edgedec.testing.new`: files go where they belong; their tests fail until the plug-in does something."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.testing.new.__main__ import main
from edgedec.testing.new.skeletons import SKELETONS

# What a stranger writes into the skeleton, by family: (what stands there, what comes in its place).
WRITTEN = {
    "drafter": [
        (
            "        return Draft()",
            "        ids = context.ids\n"
            "        found = [i for i in range(len(ids) - 1) if ids[i] == ids[-1]]\n"
            "        most = min(nodes, self._length)\n"
            "        return Draft.chain(ids[found[-1] + 1 : found[-1] + 1 + most]) if found else Draft()",
        )
    ],
    "policy": [
        ("    def decide(self, cache: Cache) -> None:\n", "    def unused(self, cache: Cache) -> None:\n"),
        ("        raise NotImplementedError", '        return cache.positions(block).astype("float32")'),
    ],
    "processor": [("        return logits", "        return -self._strength * logits")],
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTEST_ADDOPTS")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=env | {"PYTHONPATH": str(folder)}, capture_output=True, text=True)


@pytest.mark.parametrize("family", SKELETONS)
def test_a_plugin_of_another_distribution(family: str, tmp_path: Path, nano: Path) -> None:
    """From the command to a plug-in that is found, listed and tested, by touching the two files that it wrote."""
    done = run(tmp_path, "edgedec.testing.new", family, "echo")
    assert done.returncode == 0, done.stderr
    group = f"edgedec.{SKELETONS[family].folder.rpartition('/')[2]}"
    assert f'[project.entry-points."{group}"]\necho = "echo"' in done.stdout
    installed = tmp_path / "echo-1.0.dist-info"  # what pip writes
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n", "utf-8")
    (installed / "entry_points.txt").write_text(f"[{group}]\necho = echo\n", "utf-8")
    test = ("pytest", "-q", "-p", "no:cacheprovider", "test_echo.py")
    before = run(tmp_path, *test)
    assert before.returncode == 1, before.stdout
    assert "no drafter" not in before.stdout
    assert "nothing was" in before.stdout
    file = tmp_path / "echo.py"
    for old, new in WRITTEN[family]:
        text = file.read_text("utf-8")
        assert text.count(old) == 1
        file.write_text(text.replace(old, new), "utf-8")
    after = run(tmp_path, *test)
    assert after.returncode == 0, after.stdout


@pytest.mark.parametrize("family", SKELETONS)
def test_in_a_checkout_files_go_where_they_belong(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / SKELETONS[family].folder
    for folder in (package, tmp_path / "tests" / "unit", tmp_path / "docs" / "site"):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "docs" / "site" / "plugins.py").write_text("open('written', 'w').close()\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert main([family, "two_words"]) == 0
    file, test = package / "two_words.py", tmp_path / "tests" / "unit" / f"test_{family}_two_words.py"
    assert f"`pytest {test.relative_to(tmp_path)}`" in capsys.readouterr().out
    assert "TwoWords" in {
        node.name for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)
    }
    assert "two_words" in test.read_text("utf-8")
    assert (tmp_path / "written").exists(), "the tables of the docs were not written anew"
    assert main([family, "two_words"]) == 1
    assert "exists; choose another name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Echo", "1st", "a-b", "class", "", "../up"])
def test_names_that_are_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["drafter", name]) == 1
    assert capsys.readouterr().err.startswith(f"new: {name!r}: must be lower-case letters")
    assert list(tmp_path.iterdir()) == []
