"""Targets: what they say is what the runtimes declare, and the page is what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.runtime import RuntimeOptions, open_runtime, runtime_names, unavailable_reason
from edgedec.targets import Target, all_targets, lacking_packages

ROOT = Path(__file__).parents[2]
TARGETS = all_targets()


def test_names_are_unique_and_engines_exist() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names) >= 5
    assert {target.engine for target in TARGETS if target.engine} <= set(runtime_names())


@pytest.mark.parametrize("target", [t for t in TARGETS if t.engine and not t.device], ids=lambda t: t.name)
def test_a_target_declares_what_its_runtime_does(target: Target) -> None:
    bundle = Bundle.open(find(NANO))
    if (reason := unavailable_reason(target.engine, bundle)) is not None:
        pytest.skip(reason)
    can = open_runtime(target.engine, bundle, RuntimeOptions(threads=1)).capabilities
    assert (set(can.kinds), can.kv_formats, can.trees) == (set(target.kinds), target.kv, target.trees)


def test_missing_packages_are_named() -> None:
    assert lacking_packages("json", "no_such_package_")() == "no_such_package_ is not installed"
    assert lacking_packages("json")() is None


def test_the_page_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "docs" / "site" / "targets.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run python docs/site/targets.py"
