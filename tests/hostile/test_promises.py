"""docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text("utf-8")


def test_every_promise_has_a_test_that_exists() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "test_" in line]
    assert len(rows) > 20
    named = {name for row in rows for name in re.findall(r"`([\w/]*test_\w+\.py)`", row.rpartition(" | ")[2] or row)}
    missing = [name for name in named if not any((place / name).is_file() for place in (TESTS, TESTS / "hostile"))]
    assert missing == []


def test_every_promise_of_a_table_has_one() -> None:
    for table in re.findall(r"\| promise \| test \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE):
        assert [row for row in table.splitlines() if "test_" not in row] == []
