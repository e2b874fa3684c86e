"""What the README and the docs show works as shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return list(dict.fromkeys(line.split("  #")[0].strip() for line in lines if "edgedec" in line))


def edgedec_part(command: str) -> list[str]:
    return shlex.split(command.split("|")[-1])


def test_the_readme_has_commands():
    assert len(commands()) >= 10


@pytest.mark.parametrize("command", [c for c in commands() if "smol" not in c and not c.startswith("pip")])
def test_a_shown_command_on_the_bundled_model_works(command, nano, tmp_path):
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8")[:2000])
    before, _, _ = command.rpartition("|")
    text = shlex.split(before)[1] if before else None
    arguments = edgedec_part(command)[1:]
    if "--as" in arguments:
        pytest.skip("makes a bundle of 0.7 GB first")
    if "spec" in arguments:
        arguments += ["-r", "1", "-n", "8", "--limit", "1"]
    elif "bench" in arguments:
        arguments += ["-r", "1"]
        arguments[arguments.index("512")] = "32"
        arguments[arguments.index("128")] = "8"
    done = subprocess.run(
        [sys.executable, "-m", "edgedec", *arguments], input=text, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("pip")])
def test_a_shown_flag_exists(command):
    verb, *arguments = edgedec_part(command)[1:]
    below = ["ppl"] if verb == "eval" else [a for a in arguments[:1] if verb == "bench" and not a.startswith("-")]
    shown = subprocess.run(
        [sys.executable, "-m", "edgedec", verb, *below, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for flag in (a for a in arguments if re.fullmatch(r"--?[a-z][\w-]*", a)):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown), f"{flag} is not in `edgedec {verb} --help`"


@pytest.mark.parametrize(
    ("page", "code"),
    [(p.name, b) for p in PAGES for b in blocks(p, "python") if "import edgedec\n" in b],
)
def test_a_shown_program_runs(page, code, nano, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, f"{page}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#][^)]*)\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"
