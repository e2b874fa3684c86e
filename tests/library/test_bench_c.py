"""`edgedec bench c`: a C program, Python and llama.cpp's programs in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from clibrary import needs_compiler, needs_patience

LLAMA_BENCH = """#!/bin/sh
echo '[{"n_gen": 4, "avg_ts": 12.5}]'
"""


@needs_compiler
def test_each_takes_its_turns(nano: Path, tmp_path: Path) -> None:
    """llama.cpp's programs are stand-ins, which say what theirs say."""
    for name, content in (("llama-bench", LLAMA_BENCH), ("llama-completion", "#!/bin/sh\necho ' there'\n")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    command = [sys.executable, "-m", "edgedec", "bench", "c", "-m", nano, "-n", "30", "-r", "1", "-t", "1", "--json"]
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    engines = json.loads(done.stdout)["engines"]
    ours, python = engines["libedgedec"], engines["Python"]
    assert 0 < ours["first_token_ms"]["median"] < python["first_token_ms"]["median"]
    assert ours["peak_mb"]["median"] > 0
    assert ours["overhead"] > 0
    assert 500_000 < ours["bytes"] < 2_450_000
    assert python["tokens_per_second"]["median"] > 0
    assert engines["llama.cpp"]["tokens_per_second"]["median"] == 12.5
    if find_spec("llama_cpp"):
        library = engines["llama.cpp (C)"]
        assert library["tokens_per_second"]["median"] > 0
        assert 0 < library["first_token_ms"]["median"] < python["first_token_ms"]["median"]


@needs_compiler
@needs_patience
@pytest.mark.parametrize(("options", "goal"), [((), "first"), (("--as", "smollm-135m"), "overhead")])
def test_the_goals(nano: Path, options: tuple[str, ...], goal: str) -> None:
    """The first token of nano within 20 ms of the process's start; at 135M less than 1% outside of forward calls."""
    command = [
        sys.executable,
        "-m",
        "edgedec",
        "bench",
        "c",
        "-m",
        nano,
        *options,
        "-n",
        "40",
        "-r",
        "5",
        "-t",
        "1",
        "--json",
    ]
    done = subprocess.run(command, env=os.environ | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)["engines"]["libedgedec"]
    if goal == "first":
        assert ours["first_token_ms"]["min"] < 20
    else:
        assert ours["overhead"] < 0.01


@needs_compiler
def test_without_llama_cpp_it_says_so(nano: Path) -> None:
    command = [sys.executable, "-m", "edgedec", "bench", "c", "-m", nano, "-n", "5", "-r", "1", "-t", "1"]
    done = subprocess.run(command, env=os.environ | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "skipped llama.cpp: no llama-completion and no llama-bench on PATH" in done.stdout
