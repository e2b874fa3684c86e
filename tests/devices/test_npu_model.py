"""The latency model of NPUs gives back the figures that it was made of, and says what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.bench.npu_model import PUBLISHED, Published, expected_seconds
from edgedec.bundle import Bundle
from edgedec.errors import UsageError


def test_published_figures_come_to_rates_that_such_chips_have() -> None:
    for known in PUBLISHED.values():
        assert 30e9 < known.bytes_a_second < 85e9  # below the memory's own 85 to 135 GB/s
        assert 2e12 < known.products_a_second < 25e12  # below 45 TOPS of int8


def test_a_call_costs_what_takes_longer(nano: Path) -> None:
    bundle = Bundle.open(nano)
    seconds = [expected_seconds(bundle, "SM8750", rows, 256) for rows in (1, 4, 8, 128)]
    assert seconds[0] == seconds[1] == seconds[2] < seconds[3]
    assert expected_seconds(bundle, "SM8750", 1, 1024) > seconds[0]
    assert expected_seconds(bundle, "SC8380XP", 1, 256) > seconds[0]
    assert Published(10.0, 0.2).products_a_second == 2 * Published(10.0, 0.4).products_a_second
    with pytest.raises(UsageError, match="no published figures of SM8650; there are: SM8750"):
        expected_seconds(bundle, "SM8650", 1, 64)


def test_it_says_that_it_is_a_model() -> None:
    command = [sys.executable, "-m", "edgedec.bench.npu_model"]
    done = subprocess.run([*command, "--soc", "SC8380XP"], capture_output=True, text=True, check=True)
    assert "nothing was measured" in done.stdout
    assert done.stdout.count("ms") == 15
    done = subprocess.run([*command, "--soc", "X"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no published figures" in done.stderr
