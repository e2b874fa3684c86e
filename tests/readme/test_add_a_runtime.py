"""docs/extending.md, "Add a runtime", followed literally: the file that its blocks make conforms."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from readme.shown import ROOT, section

import edgedec.runtimes
from edgedec.bundle import Bundle
from edgedec.runtime import RUNTIMES, Runtime, RuntimeOptions, open_runtime
from edgedec.testing.conformance import run_suite

PAGE = section(ROOT / "docs" / "extending.md", "Add a runtime")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's file, in a folder of runtimes beside those that ship."""
    path = tmp_path / "lazy.py"
    path.write_text("\n".join(BLOCKS), "utf-8")
    monkeypatch.setattr(edgedec.runtimes, "__path__", [*edgedec.runtimes.__path__, str(tmp_path)])
    monkeypatch.setitem(vars(RUNTIMES), "shipped", (*RUNTIMES.shipped, "lazy"))
    monkeypatch.delitem(sys.modules, "edgedec.runtimes.lazy", raising=False)
    return path


def opened(bundle: Bundle, options: RuntimeOptions) -> Runtime:
    return open_runtime("lazy", bundle, options)


def test_the_page_makes_a_runtime_that_conforms(lazy: Path) -> None:
    assert "lazy" in RUNTIMES
    report = run_suite("lazy", opened)
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert sum(finding.state == "passed" for finding in report.findings) > 80
    refused = {f.model for f in report.findings if "ssm" in f.message}
    hybrids = {"hybrid", "blocks that feed", "experts chosen before attention"}
    assert refused == {"state space", "state space beside attention"} | hybrids


def test_what_the_page_says_of_a_mistake_is_so(lazy: Path) -> None:
    lines = re.findall(r"^FAILED +plain +(.*)$", PAGE, re.M)
    assert len(lines) == 2
    text = lazy.read_text("utf-8")
    assert "        check_calls(calls, self.spec, self.capabilities)\n" in text
    lazy.write_text(text.replace("        check_calls(calls, self.spec, self.capabilities)\n", ""), "utf-8")
    found = [f"{f.check}: {f.message}" for f in run_suite("lazy", opened).failed if f.model == "plain"]
    assert all(any(each.startswith(line) for each in found) for line in lines), found
