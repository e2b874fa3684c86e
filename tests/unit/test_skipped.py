"""Why tests are skipped, and which reasons fail a complete run (`conftest.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

def test_one(): pytest.importorskip("torch_of_nobody", reason="needs torch")
def test_two(): pytest.skip("no shared data beside this checkout")
def test_three(): pytest.skip("no shared data beside this checkout")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TESTS)
    for name in ("CI", "EDGEDEC_ALL_TESTS"):
        monkeypatch.delenv(name, raising=False)
    return pytester


def test_reasons_are_counted(project: pytest.Pytester) -> None:
    found = project.runpytest_subprocess()
    assert found.ret == 0
    found.stdout.fnmatch_lines(["*skipped, by reason*", "    2 no shared data*", "    1 needs torch"])


@pytest.mark.parametrize(("ci", "everything", "code"), [(True, False, 0), (False, True, 0), (True, True, 1)])
def test_what_could_have_been_installed_fails_a_complete_run(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: bool, everything: bool, code: int
) -> None:
    if ci:
        monkeypatch.setenv("CI", "true")
    if everything:
        monkeypatch.setenv("EDGEDEC_ALL_TESTS", "1")
    found = project.runpytest_subprocess()
    assert found.ret == code
    named = "skipped although it can be installed: needs torch"
    assert (named in found.stdout.str()) == bool(code)
