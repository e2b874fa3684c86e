"""`edgedec plugins` and the server's lists: families, the plug-ins of one, the options of a plug-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec import families
from edgedec.cli._app import COMPLETE, app
from edgedec.cli._flags.completing import plugins_of
from edgedec.errors import UsageError
from edgedec.plugins import Family
from edgedec.server.plugins import LISTED


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plugins", *arguments])


def test_every_family_is_declared_where_the_table_says() -> None:
    for name in families.PACKAGES:
        found = families.family(name)
        assert isinstance(found, Family)
        assert found.package.startswith(families.PACKAGES[name])
        assert found.names()


@pytest.mark.parametrize(
    ("family", "typed", "completed"),
    [
        ("drafters", "rec", ["recycling"]),
        ("drafters", "au", ["auto"]),
        ("drafters", "copy+recy", ["copy+recycling"]),
        ("drafters", "copy:ngram=3,le", ["copy:ngram=3,length="]),
        (
            "drafters",
            "exit:layer=4+copy:",
            ["exit:layer=4+copy:fixed=", "exit:layer=4+copy:ngram=", "exit:layer=4+copy:length="],
        ),
        ("drafters", "copy:fixed=3,ngram=2,", ["copy:fixed=3,ngram=2,length="]),
        ("drafters", "nothing:", []),
        ("policies", "snap", ["snapkv"]),
        ("policies", "snapkv:bud", ["snapkv:budget="]),
    ],
)
def test_words_are_completed(family: str, typed: str, completed: list[str]) -> None:
    assert plugins_of(family)(typed) == completed


def test_a_flag_completes_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As bash calls it."""
    env = os.environ | {COMPLETE: "complete_bash", "COMP_WORDS": "edgedec run --spec recy", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-m", "edgedec"], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["recycling"]


def test_a_family_that_there_is_none_of() -> None:
    with pytest.raises(UsageError, match=r"no family 'procesors' \(did you mean processors.*\); there are: drafters"):
        families.family("procesors")


def test_all_families_are_listed() -> None:
    lines = call().stdout.splitlines()
    assert lines[0].split()[:2] == ["family", "plug-ins"]
    assert [line.split()[0] for line in lines[1:]] == list(families.PACKAGES)
    found = json.loads(call("--json").stdout)
    assert found["processors"] == ["dola", "momentum"]
    assert found["drafters"] == list(families.family("drafters").names())


def test_all_families_are_listed_where_only_edgedec_is_installed() -> None:
    """What other packages would bring is not looked for until a plug-in is used."""
    code = "import sys; [sys.modules.__setitem__(name, None) for name in ('torch', 'onnx', 'transformers')]; "
    code += "from edgedec.cli import main; sys.argv = ['edgedec', 'plugins']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(families.PACKAGES)


@pytest.mark.parametrize("name", families.PACKAGES)
def test_a_family_is_listed(name: str) -> None:
    family = families.family(name)
    result = call(name)
    assert result.exit_code == 0, result.output
    listed = [line.split()[0] for line in result.stdout.splitlines()]
    assert listed[1:] == list(family.names())
    described = json.loads(call(name, "--json").stdout)
    assert [item["name"] for item in described] == list(family.names())
    assert all(item["summary"] for item in described)


def test_a_plug_in_is_shown_with_options_and_facts() -> None:
    shown = call("processors", "dola").stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith("  ")}
    assert shown.startswith("dola: Contrast between layers")
    assert "list of integer" in rows["early"]
    assert "[]" in rows["early"]
    assert "above 0 to 1" in rows["share"]
    assert "0.1" in rows["share"]
    assert rows["lossy"].split() == ["lossy", "true"]
    schema = {line.split()[0]: line for line in call("constraints", "json_schema").stdout.splitlines() if line}
    assert "required" in schema["schema"]
    assert "one of none, space, any" in schema["whitespace"]
    found = json.loads(call("processors", "dola", "--json").stdout)
    assert {option["name"] for option in found["options"]} == {"early", "share"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["procesors"], "did you mean processors"),
        (["processors", "dolla"], "no processor 'dolla' (did you mean dola?); there are: dola"),
    ],
)
def test_names_that_there_are_none_of(arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_plug_in_that_cannot_be_imported_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edgedec.processors.dola", None)
    result = call("processors")
    assert result.exit_code == 0
    assert "cannot be imported here" in result.stdout


@pytest.mark.parametrize(
    ("line", "word"), [("edgedec plugins proc", "processors"), ("edgedec plugins processors d", "dola")]
)
def test_a_shell_completes_names(line: str, word: str) -> None:
    words = {**os.environ, COMPLETE: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = subprocess.run([sys.executable, "-m", "edgedec"], env=words, capture_output=True, text=True)
    assert done.stdout.split() == [word], done.stderr


def test_the_server_lists_them(nano: Path) -> None:
    with serving(edgedec.open(nano, threads=1)) as (place, _):
        listed = httpx.get(f"{place}/v1/plugins", timeout=60).json()["data"]
        assert {item["id"]: item["plugins"] for item in listed} == {
            name: list(families.family(name).names()) for name in LISTED
        }
        for name in LISTED:
            found = httpx.get(f"{place}/v1/plugins/{name}", timeout=60).json()
            assert [item["name"] for item in found["data"]] == list(families.family(name).names())
        dola, _ = httpx.get(f"{place}/v1/plugins/processors", timeout=60).json()["data"]
        assert {option["name"] for option in dola["options"]} == {"early", "share"}
        other = httpx.get(f"{place}/v1/plugins/runtimes", timeout=60)
        assert (other.status_code, other.json()["error"]["param"]) == (404, "family")
        described = httpx.get(f"{place}/openapi.json", timeout=60).json()["paths"]
        assert described["/v1/plugins/{family}"]["parameters"][0]["schema"]["enum"] == list(LISTED)
