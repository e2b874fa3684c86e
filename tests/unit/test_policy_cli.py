"""`--cache` on the command line: it prunes, and says that it is lossy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgedec.cli._app import app
from edgedec.kernels.cpu import loader

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


def test_run_says_that_it_is_lossy(nano: Path) -> None:
    words = ["run", "-m", str(nano), "-t", "1", "-p", "Once upon a time " * 20, "-n", "8", "--temp", "0"]
    done = CliRunner().invoke(app, [*words, "--cache", "snapkv:budget=0.2", "--json"])
    assert done.exit_code == 0, done.output
    kept = json.loads(done.stdout)["stats"]["cache"]
    assert kept["lossy"] is True
    assert kept["policy"] == "snapkv:budget=0.2"
    assert kept["share"] < 0.6
    done = CliRunner().invoke(app, [*words, "--cache", "snapkv:budget=0.2", "--stats"])
    assert "lossy: cache policy snapkv:budget=0.2 keeps" in done.output
    assert "cache" not in json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["stats"]


def test_batch_prunes(nano: Path, tmp_path: Path) -> None:
    """A text that is to be said again needs all of it."""
    story = "Sam had a kite. It was yellow with a long blue tail. One day the wind was very strong. The string broke."
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": f"Say it again.\n\n{story}\n\nAgain:"}) + "\n")
    words = ["batch", str(source), "-o", str(out), "-m", str(nano), "-t", "1", "-n", "60", "--temp", "0", "--force"]
    texts = {}
    for cache in ("full", "snapkv:budget=10,window=4"):
        assert CliRunner().invoke(app, [*words, "--cache", cache]).exit_code == 0
        texts[cache] = json.loads(out.read_text())["text"]
    assert texts["full"].count("kite") > texts["snapkv:budget=10,window=4"].count("kite")
    done = CliRunner().invoke(app, [*words, "--cache", "nothing"])
    assert done.exit_code != 0
