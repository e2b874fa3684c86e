"""Ctrl-C and SIGTERM end a command whatever a graph does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hostile import graphs

onnx = pytest.importorskip("onnx", reason="hostile graphs are made with onnx")

from decoder_graphs import write_decoder  # noqa: E402

from edgedec.export.decoder_graph import import_graph  # noqa: E402

# It says when a graph begins to run, and then is inside of it.
PROGRAM = r"""
    import signal, sys
    import onnxruntime
    from edgedec.cli import main

    def run(session, *given):
        print("\nruns", flush=True)
        return plain(session, *given)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script in the background ignores it
    plain = onnxruntime.InferenceSession.run_with_ort_values
    onnxruntime.InferenceSession.run_with_ort_values = run
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose first token takes many minutes."""
    folder = tmp_path_factory.mktemp("slow")
    bundle = import_graph(write_decoder(folder / "source"), folder / "plain").bundle
    model = graphs.with_work(onnx.load(bundle.path / "model.onnx"))
    return graphs.replace_file(bundle.path, folder / "bundle", "model.onnx", model.SerializeToString())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_inside_a_graph(slow: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), "run", "-m", str(slow), "-p", "a", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert "runs\n" in iter(process.stdout.readline, "")
            process.send_signal(number)
            # Two seconds on an idle machine; without the watch it is many minutes.
            assert process.wait(60) == code
        finally:
            process.kill()
