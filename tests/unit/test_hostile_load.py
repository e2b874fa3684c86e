"""Strangers' schemas cost the others little: running streams, with attackers beside them and without, in turns."""

from __future__ import annotations

import os
import runpy
import statistics
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

for package in ("httpx", "starlette", "uvicorn", "llguidance"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
from serving import started  # noqa: E402

LOAD = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "bench" / "hostile_load.py")))
pytestmark = [
    pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="a minute: EDGEDEC_SLOW_TESTS=1"),
    pytest.mark.skipif(sys.platform != "linux", reason="priorities of worker processes are Linux's"),
]
TURNS, SECONDS, STREAMS, ATTACKERS = 5, 6.0, 2, 2


def test_streams_stay_within_twice_their_latency(nano: Path) -> None:
    """The median gap between tokens, turn by turn; the machine's other work is in both halves of a turn."""
    ratios, answers = [], Counter[str]()
    with started(nano, "--slots", str(STREAMS + ATTACKERS + 1)) as (place, process):
        LOAD.measured(place, 1, 1, 1.0)  # what is loaded once
        for _ in range(TURNS):
            quiet, _, _ = LOAD.measured(place, STREAMS, 0, SECONDS)
            attacked, held, codes = LOAD.measured(place, STREAMS, ATTACKERS, SECONDS)
            answers += codes
            assert len(quiet) > 200
            assert len(attacked) > 200
            assert held, "the stream that follows a schema goes on"
            ratios.append(statistics.median(attacked) / statistics.median(quiet))
        assert process.poll() is None, "the server is alive"
    print(f"ratios {[round(ratio, 2) for ratio in ratios]}, answers {dict(answers)}")
    assert answers["200"] > 2, "some were compiled and followed"
    assert answers["400"] > 2, "some were refused"
    assert set(answers) <= {"200", "400", "429", "503"}, answers
    assert statistics.median(ratios) <= 2, ratios
