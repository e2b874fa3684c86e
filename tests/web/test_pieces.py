"""Packed bundles in pieces, as bundle.js loads them: in node, without the compiled engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from weblibrary import NODE

pytestmark = pytest.mark.skipif(NODE is None, reason="no node here")


def seen(act: str) -> Any:
    script = Path(__file__).with_name("pieces.mjs")
    done = subprocess.run([str(NODE), script, act], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_load_ends_when_nobody_asks_how_far_it_is() -> None:
    assert seen("quiet") == [[1, 1, 100], 3]


def test_pieces_of_a_file_that_was_changed_are_not_kept() -> None:
    """A load that broke off leaves pieces; when the file changes they are of another version than the rest."""
    broken, refused, loaded, other = seen("changed")
    assert "cannot be reached" in broken
    assert "changed while it was loaded; load it again" in refused
    assert loaded == [2, 2, 100]
    assert other == [1, 1, 100]
