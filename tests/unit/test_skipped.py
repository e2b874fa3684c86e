"""Why tests are skipped, and which reasons fail a complete run (`conftest.py`)."""

from __future__ import annotations

from pathlib import Path

import conftest
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


def test_what_is_left_to_the_complete_run_exists() -> None:
    """A test that was renamed would be run by everybody again."""
    tests = CONFTEST.parent
    for name in conftest.LONG:
        stem, _, function = name.partition("::")
        files = [path for path in tests.rglob(f"{stem}*") if path.stem == stem or path.is_dir()]
        assert files, name
        assert not function or any(f"def {function}(" in path.read_text("utf-8") for path in files), name


def test_long_tests_are_left_out(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEDEC_PASSED", raising=False)
    folder = pytester.mkdir("unit")
    pytester.makeconftest(CONFTEST.read_text())
    body = "def test_kill_9_at_random_moments(): pass\ndef test_short(): pass\n"
    (folder / "test_batch.py").write_text(body)
    (folder / "test_soak.py").write_text(body)
    pytester.runpytest_subprocess("-m", "not long").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest_subprocess().assert_outcomes(passed=4)


def test_what_passed_is_run_again_only_beside_torch(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_PASSED", str(pytester.path / "passed"))
    pytester.makeconftest(CONFTEST.read_text())
    body = "def test_one(): pass\n"
    pytester.makepyfile(test_plain=body, test_without=f"TORCH = False\n{body}", test_beside=f"TORCH = True\n{body}")
    pytester.runpytest_subprocess().assert_outcomes(passed=3)
    again = pytester.runpytest_subprocess("-v")
    again.assert_outcomes(passed=1, deselected=2)
    again.stdout.fnmatch_lines(["*test_beside.py::test_one PASSED*"])
