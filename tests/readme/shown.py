"""The commands and programs of the pages, as a reader copies them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("models/nano", "examples/clients", "android_demo")),
]
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_STARTS = re.compile(r"(?:edgedec|python|pip|pytest|make|cat|echo|printf|curl|[A-Z_]+=\S+) ")


def fences(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every block."""
    return _FENCE.findall(page.read_text("utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in fences(page) if name == language]


def section(page: Path, title: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    parts = re.split(r"^## ", page.read_text("utf-8"), flags=re.MULTILINE)
    (found,) = (part for part in parts if part.startswith(f"{title}\n"))
    return found


def indented(page: Path) -> list[str]:
    """Lines that look like commands and stand in no fence."""
    rest = _FENCE.sub("", page.read_text("utf-8"))
    return [line for line in rest.splitlines() if line.startswith("    ") and _STARTS.match(line.strip())]


def commands(page: Path) -> list[str]:
    """Every command of a page, without its comment; one that ends with a backslash goes on."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return [found for line in lines if (found := re.sub(r"\s{2,}#.*|^#.*", "", line).strip())]
