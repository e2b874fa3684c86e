"""The docs site builds with warnings as errors; search and reference hold what they should; generated pages are new."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import edgedec

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


def run(*args: object, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true", **more}
    return subprocess.run([sys.executable, *map(str, args)], cwd=ROOT, capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason='an extra: pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    done = run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_found(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "reference"}
    assert pages <= {path.stem for path in site.glob("*.html")}
    found = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    assert {entry["location"].split(".html")[0] or "index" for entry in found} >= pages - {"index"}
    assert any("GBNF" in entry["text"] for entry in found)


def test_the_reference_holds_the_public_names(site: Path) -> None:
    text = (site / "reference.html").read_text("utf-8")
    for name in set(edgedec.__all__) - {"__version__"}:
        assert re.search(rf'id="edgedec\.[\w.]*\b{name}"', text), name
    assert "The text that follows" in text, "docstrings"


def test_no_page_asks_another_host(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text("utf-8"))
        assert [url for url in loaded if "canonical" not in url] == [], page.name


def test_the_terminal_picture_is_made_of_what_commands_print(nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="an extra")
    done = run(SITE / "record.py", "--out", tmp_path / "demo.svg", "--cast", tmp_path / "demo.cast")
    assert done.returncode == 0, done.stderr
    head, *events = map(json.loads, (tmp_path / "demo.cast").read_text("utf-8").splitlines())
    assert head["version"] == 2
    assert [t for t, _, _ in events] == sorted(t for t, _, _ in events)
    shown = "".join(text for _, _, text in events)
    assert "Once upon a time" in shown
    assert "Traceback" not in shown
    for picture in (tmp_path / "demo.svg", ROOT / "docs" / "img" / "demo.svg"):
        tree = ET.parse(picture)
        assert len(tree.findall(".//{*}animate")) > 50
        assert not tree.findall(".//{*}script")
