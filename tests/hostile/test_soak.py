"""Half an hour of all attacks at once; a few seconds of it in every run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

for package in ("starlette", "uvicorn", "llguidance"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
from edgedec.constraints import compiling  # noqa: E402
from edgedec.text import template  # noqa: E402
from hostile.servers import server  # noqa: E402
from hostile.soak import soaked  # noqa: E402

LONG = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
# Clients that behave, clients that do not, seconds.
# Descriptors of workers that are kept: compiled grammars, idle renderers of templates.
KEPT = compiling._KEPT + template._IDLE
SIZES = (200, 50, 1800.0) if LONG else (8, 4, 6.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_answer_is_right_and_nothing_grows(nano: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server(str(nano), ["-t", "1", "--slots", "16", "-c", "512"], 1024, log) as (place, pid):
        found: dict[str, Any] = soaked(place, pid, *SIZES)
    print(found)
    assert not found["wrong"], found
    assert found["kills"], found
    assert found["filled"] == [200] * 20, found
    assert found["answers"].get(200, 0) > SIZES[0], found
    before, after = found["descriptors"]
    assert after <= before + KEPT, found
    if LONG:
        before, after = found["MiB"]
        assert after <= 1.05 * before, found
    assert "Traceback" not in log.read_text()
