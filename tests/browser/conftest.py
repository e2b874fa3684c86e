"""A browser for the tests of pages: playwright's own Chromium, or one on the PATH."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For one module, as playwright keeps an event loop running for as long as it lives."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    # Chromium's sandbox refuses the superuser, who runs tests in containers.
    root = sys.platform == "linux" and os.geteuid() == 0
    with api.sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        except api.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        yield opened
        opened.close()
