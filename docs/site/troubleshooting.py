"""Writes docs/troubleshooting.md: every message that edgedec gives on purpose, by kind, with what to do.

python docs/site/troubleshooting.py           # write it
python docs/site/troubleshooting.py --check   # exit with 1 if it is not what the sources say
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # also where Python keeps the script's folder out

import other_messages  # noqa: E402
import python_messages  # noqa: E402
from message_kinds import HEAD, KINDS, LANGUAGES, REASONS  # noqa: E402
from python_messages import Message  # noqa: E402
from python_sources import Sources  # noqa: E402

PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("edgedec", "export", "runtimes", "models", "kernels")
SECTIONS = (*KINDS, *LANGUAGES, "Reasons")


def messages() -> dict[str, list[Message]]:
    """The messages by section; each once, with the first file that has it."""
    found: dict[str, dict[tuple[str, str], Message]] = {section: {} for section in SECTIONS}
    for message in (
        *_python(),
        *(m for language in other_messages.LANGUAGES for m in other_messages.messages(ROOT, language)),
    ):
        section = "Reasons" if message.kind in REASONS else message.kind
        found[section].setdefault((message.text, message.status), message)
    return {section: [of[key] for key in sorted(of)] for section, of in found.items() if of}


def _python() -> Iterable[Message]:
    sources = Sources.read(ROOT, SOURCES)
    kept = [module for module in sources.modules.values() if "edgedec/testing/conformance/" not in module.file]
    return python_messages.messages(Sources(kept), {*KINDS, *REASONS})


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, found in messages().items():
        if section == "Reasons":
            named = ", ".join(sorted(set(REASONS.values())))
            advice = f"They stand after the colon or in the brackets of a message above: {named}."
        else:
            advice = KINDS.get(section) or LANGUAGES[section]
        title = "Notes" if section == "print" else section
        parts.append(f"## {title}\n\n{advice}\n\n{_table(found)}")
    return "\n".join(parts)


def _table(found: Sequence[Message]) -> str:
    """A row a message; a column of statuses where there are any."""
    status = any(message.status for message in found)
    head = ["message", *["status"] * status, "from"]
    rows = [[_cell(m.text), *[f"`{m.status}`" if m.status else ""] * status, f"`{m.file}`"] for m in found]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _cell(text: str) -> str:
    """As a cell of a table: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def main(check: bool) -> int:
    new = page()
    if not check:
        PAGE.write_text(new, "utf-8")
    return int(PAGE.read_text("utf-8") != new)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
