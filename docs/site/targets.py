"""Writes the table in docs/devices.md: block kinds and cache formats by target, as `edgedec/targets` declares them.

python docs/site/targets.py           # write it
python docs/site/targets.py --check   # exit with 1 if it is not what the sources say
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgedec.targets import Target, all_targets

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
BEGIN, END = "<!-- targets: docs/site/targets.py -->\n", "<!-- /targets -->\n"
TRIED = {"native": "yes", "emulated": "emulated", "compiled": "compiled, never run", "no": "no"}


def table() -> str:
    """A line a target."""
    head = ["target", "`--engine`", "blocks", "trees", "KV cache", "tried", "needs"]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *map(_row, all_targets())))


def _row(target: Target) -> list[str]:
    engine, trees = f"`{target.engine}`" if target.engine else "", "yes" if target.trees else ""
    kinds, caches = ", ".join(target.kinds), ", ".join(target.kv)
    return [f"`{target.name}`", engine, kinds, trees, caches, TRIED[target.tried], target.needs]


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main(check: bool) -> int:
    page = PAGE.read_text("utf-8")
    if check:
        return int(written(page) != page)
    PAGE.write_text(written(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
