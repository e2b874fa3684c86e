"""The tables of plug-ins are those of the sources, and what the pages write of plug-ins can be written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from readme.shown import PAGES

from edgedec import families
from edgedec.drafters import FAMILY as DRAFTERS
from edgedec.policies import FAMILY as POLICIES

ROOT = Path(__file__).parents[2]
# A drafter or policy with options, as in `exit:layer=4,fixed=8+copy`, wherever it stands between backquotes or blanks.
WORDS = re.compile(r"(?<![\w./:-])((?:[a-z0-9_]+(?::[a-z_]+=[^\s`|…)]*)?\+?)+)")


def named(text: str) -> list[str]:
    """Words with options of drafters and policies."""
    found = [match for match in WORDS.findall(text) if ":" in match and "=" in match]
    return [word.rstrip(".,;+") for word in found if word.partition(":")[0] in (*DRAFTERS.names(), *POLICIES.names())]


def test_words_are_found() -> None:
    assert named("use `exit:layer=4,fixed=8+copy` or snapkv:budget=0.2, not http://x:80?a=b") == [
        "exit:layer=4,fixed=8+copy",
        "snapkv:budget=0.2",
    ]
    assert sum(len(named(page.read_text("utf-8"))) for page in PAGES) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_exist(page: Path) -> None:
    for words in named(page.read_text("utf-8")):
        for part in re.split(r"\+(?=[a-z])", words):
            name, _, rest = part.partition(":")
            family = DRAFTERS if name in DRAFTERS else POLICIES if name in POLICIES else None
            if family is None:
                assert part in ("auto", "off"), f"{page.name}: {words}: no drafter or policy {name}"
                continue
            keys = re.findall(r"(?:^|,)([a-z_]+)=", rest)
            assert rest == "" or keys, f"{page.name}: {words}"
            for key in keys:
                assert key in family.options(name), f"{page.name}: {words}: {name} has no option {key}"


def test_the_models_are_those_of_the_files() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "site" / "models.py"), "--check"])
    assert done.returncode == 0, "model types have changed: python docs/site/models.py"


def test_the_page_is_what_the_sources_say() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "site" / "plugins.py"), "--check"])
    assert done.returncode == 0, "plug-ins have changed: python docs/site/plugins.py"
    text = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    for name in families.PACKAGES:
        for plugin in families.family(name).names():
            assert plugin in text, f"{name}: {plugin}"
