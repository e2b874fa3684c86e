"""Defaults from config.toml and variables, completion, --verbose, the cache folder, bench --compare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from edgedec.cli import _app
from edgedec.cli._defaults import config_path
from edgedec.cli.bench import _compare


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EDGEDEC_CONFIG", str(path))
    return path


def generated(*args: object) -> int:
    result = call("run", "-p", "Once", "--json", "--ignore-eos", *args)
    assert result.exit_code == 0, result.stderr
    return len(json.loads(result.stdout)["tokens"])


def test_a_flag_wins_over_a_variable_over_a_command_s_section_over_the_file(
    nano: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("max-tokens = 3\nport = 9000\n")
    assert generated() == 3
    config.write_text("max-tokens = 3\n[run]\nmax_tokens = 4\n[serve]\nport = 1\n")
    assert generated() == 4
    monkeypatch.setenv("EDGEDEC_MAX_TOKENS", "5")
    assert generated() == 5
    assert generated("-n", 6) == 6


def test_the_cache_folder_is_no_cache_policy(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    assert generated("-n", 3) == 3
    assert "snapkv" in call("run", "-p", "Once", "-n", 2, "--cache", "snapkv", "--stats").stderr
    monkeypatch.setenv("EDGEDEC_CACHE_POLICY", "h2o")
    assert "h2o" in call("run", "-p", "Once", "-n", 2, "--stats").stderr
    assert "snapkv" in call("run", "-p", "Once", "-n", 2, "--cache", "snapkv", "--stats").stderr


def test_switches_lists_and_every_name_of_an_option(nano: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('n-predict = 4\n[run]\nstop = ["zzz", "qqq"]\nstats = true\nlogit-bias = "5=-1"\n')
    assert "generated 4 in" in call("run", "-p", "Once", "--ignore-eos").stderr
    monkeypatch.setenv("EDGEDEC_STATS", "0")
    monkeypatch.setenv("EDGEDEC_TEMPERATURE", "0")
    result = call("run", "-p", "Once", "--ignore-eos")
    assert result.stderr == ""
    assert result.stdout == call("run", "-p", "Once", "--temp", "0", "--ignore-eos").stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = ", "not TOML"),
        ("warmth = 3", "no option 'warmth' of any command"),
        ("[run]\nport = 3", "[run] has no option 'port'; there are: "),
        ("[runs]\nstats = true", "[runs] is no command; there are: run, chat"),
        ("[run]\nprompt = 'x'", "[run] has no option 'prompt'"),
        ("[run]\nmax-tokens = 'many'", "max-tokens"),
    ],
)
def test_a_wrong_file_is_one_line(nano: Path, config: Path, text: str, said: str) -> None:
    config.write_text(text)
    result = call("run", "-p", "Once", "-n", 1) if "many" not in text else call("run", "-p", "Once")
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_named_must_be_there(config: Path) -> None:
    assert f"EDGEDEC_CONFIG={config}: no such file" in call("run", "-p", "Once").stderr


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_file_is_read_or_refused_in_one_line(raw: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(raw)
        result = CliRunner(env={"EDGEDEC_CONFIG": str(path)}).invoke(_app.app, ["verify", "--help"])
        assert result.exit_code == 0 or result.stderr.count("\n") == 1, result.output
        assert "Traceback" not in result.output


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGEDEC_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() == tmp_path / "edgedec" / "config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_path() == tmp_path / ".config" / "edgedec" / "config.toml"


TRAINED = ("cache", "diffusion", "embedder", "exits", "experts", "heads", "latent", "lora", "subwords")
TR = {f"train-{part}" for part in TRAINED} | {"trace", "trust"}


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("edgedec tr", 1, TR),
        ("edgedec run --max", 2, {"--max-tokens"}),
    ],
)
def test_a_shell_completes(words: str, at: int, expected: set[str]) -> None:
    env = {**os.environ, "_EDGEDEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    done = subprocess.run([sys.executable, "-m", "edgedec"], env=env, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_scripts(shell: str) -> None:
    assert "_EDGEDEC_COMPLETE" in call("completion", shell).stdout


def test_verbose_says_what_takes_which_time(nano: Path) -> None:
    result = call("run", "-p", "Once", "-n", 4, "--verbose")
    lines = result.stderr.splitlines()
    assert [line.split(" ms ")[1].split(",")[0].split(":")[0].strip().split(" ")[0] for line in lines[:4]] == [
        "opened",
        "session",
        "tokenizer",
        "prompt",
    ]
    assert any("between the calls" in line for line in lines)
    assert "generated 4 in" in result.stderr


def test_the_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    for name in ("costs/a.json", "padded/x/weights.bin", "padded/x/edgedec.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 1000)
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(outside)
    assert "2 files" in call("cache").stdout
    result = call("cache", "--clear", "nothing")
    assert result.exit_code == 1
    assert "costs, link, padded, all" in result.stderr
    report = json.loads(call("cache", "--clear", "padded", "--json").stdout)
    assert report["freed_bytes"] == 2000
    assert set(report["entries"]) == {"costs", "link"}
    assert "freed" in call("cache", "--clear", "all").stdout
    assert list(tmp_path.iterdir()) == []
    assert (outside / "kept").exists(), "what a link points to stays"


def test_two_reports_beside_each_other(nano: Path, tmp_path: Path) -> None:
    args = ["bench", "-m", nano, "-p", 8, "-n", 4, "-r", 2, "-t", 1, "--json"]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(call(*args).stdout)
    text = call("bench", "--compare", tmp_path / "a.json", tmp_path / "b.json").stdout
    assert "results.edgedec.decode_tokens_per_s" in text
    assert "numbers are the same" in text
    found = json.loads(call("bench", "--compare", tmp_path / "a.json", tmp_path / "b.json", "--json").stdout)
    row = found["rows"]["results.edgedec.decode_tokens_per_s"]
    assert row["ratio"] == pytest.approx(row["b"] / row["a"])
    (tmp_path / "c.json").write_text("[1]")
    for other in ("c.json", "none.json"):
        result = call("bench", "--compare", tmp_path / "a.json", tmp_path / other)
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1


def test_ranges_that_do_not_overlap_are_apart() -> None:
    def report(median: float, least: float, most: float) -> dict[str, object]:
        return {"host": {}, "model": "m", "speed": {"median": median, "min": least, "max": most, "spread": 0.1}, "n": 3}

    found = _compare.compare(report(10, 9, 11), report(20, 18, 22))
    assert found["rows"]["speed"] == {"a": 10, "b": 20, "ratio": 2.0, "apart": True}
    assert found["rows"]["n"]["apart"] is None
    assert _compare.compare(report(10, 9, 11), report(11, 10, 12))["rows"]["speed"]["apart"] is False
    assert found["differences"] == []


def test_every_variable_is_on_the_page() -> None:
    """Those that are read by name; each option has one besides."""
    root = Path(__file__).parents[2]
    sources = [
        path for folder in ("edgedec", "export", "runtimes", "kernels") for path in (root / folder).rglob("*.py")
    ]
    read = {name for path in sources for name in re.findall(r'"(EDGEDEC_[A-Z_]+)"', path.read_text("utf-8"))}
    page = (root / "docs" / "configuration.md").read_text("utf-8")
    macros = {"EDGEDEC_API", "EDGEDEC_BUILD", "EDGEDEC_WASM"}  # of the C header
    assert len(read) > 10
    assert {name for name in read - macros if f"`{name}" not in page} == set()
