"""SIGTERM, which service managers and containers send, leaves nothing half-written: as an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoints import write_llama

from edgedec.cli import main

pytest.importorskip("onnx", reason="exporting needs onnx")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_export_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    checkpoint, out = write_llama(tmp_path / "checkpoint", num_hidden_layers=8), tmp_path / "made" / "out"
    command = [sys.executable, "-m", "edgedec", "export", str(checkpoint), "-o", str(out), "--no-check"]
    for _ in range(20):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not any(tmp_path.glob("made/.out.partial*")):
            time.sleep(0.001)
        half = any(tmp_path.glob("made/.out.partial*"))
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
        if half and process.returncode != 0:
            break
        out.rename(tmp_path / f"whole{time.monotonic_ns()}")  # it was faster
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], said
    assert "Traceback" not in said
    assert list((tmp_path / "made").iterdir()) == []


def test_a_program_that_calls_it_keeps_its_own_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
