"""What the README and the docs say exists: flags and links. `test_blocks.py` runs what they show."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from readme.shown import PAGES, commands

# As a reader types them; of a pipeline its last command.
EDGEDEC = list(dict.fromkeys(c for page in PAGES for c in commands(page) if re.search(r"(^|\| |&& )edgedec ", c)))


def edgedec_part(command: str) -> list[str]:
    return shlex.split(re.split(r"\| (?=edgedec)|&& ", command)[-1].split(" > ")[0])


@pytest.mark.parametrize("command", EDGEDEC)
def test_a_shown_flag_exists(command: str) -> None:
    verb, *arguments = edgedec_part(command)[1:]
    below = [a for a in arguments[:1] if verb in ("bench", "eval") and not a.startswith("-")]
    from typer.testing import CliRunner

    from edgedec.cli import _app
    from edgedec.cli._llama_flags.table import FLAGS

    shown = CliRunner().invoke(_app.app, [verb, *below, "--help"]).stdout
    for flag in (a for a in arguments if re.fullmatch(r"--?[a-z][\w-]*", a)):
        known = re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown) or flag in FLAGS
        assert known, f"{flag} is not in `edgedec {verb} --help`"


def test_the_command_is_there() -> None:
    assert len(EDGEDEC) >= 40
    done = subprocess.run([sys.executable, "-m", "edgedec", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("edgedec ")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"
