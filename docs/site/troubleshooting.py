"""Writes docs/troubleshooting.md: every message that edgedec raises on purpose, by kind, with what to do.

python docs/site/troubleshooting.py           # write it
python docs/site/troubleshooting.py --check   # exit with 1 if it is not what the sources say
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("edgedec", "export", "runtimes", "models", "kernels")
HEAD = """# Troubleshooting

Every message that edgedec raises on purpose, by kind; `…` stands for what differs. Made from the sources by
`docs/site/troubleshooting.py`. In Python all are `edgedec.EdgedecError`; on the command line each is one line on stderr, and the
exit code is 1 (2 for flags that are misused, 130 after Ctrl-C).

**Where to look first:** `edgedec doctor` says what this machine has and what is missing; `edgedec verify BUNDLE` whether a bundle is whole;
`edgedec run --verbose` where the time goes; `edgedec cache` what is kept on disk.

| symptom | |
| --- | --- |
| slow, and `doctor` says that `auto` is ort | the CPU engine was not compiled: [installing](install.md) |
| the first text of a model begins after a pause | the weights are read from disk for the first time; `--verbose` shows it |
| a chat ends in the middle of a sentence | the context is full: `/compact`, `/reset`, or `--on-full slide` |
| text is noise | a base model without its chat template, or formats that are too small: [choosing formats](choosing-formats.md) |
| JSON that is cut off | `--max-tokens` ended it; give more |
"""
# What the errors of a kind have in common.
KINDS = {
    "BundleNotFound": "There is no bundle at that place. `edgedec export CHECKPOINT -o BUNDLE` makes one; `nano` is always there.",
    "BundleVersion": "The bundle was made by another version of edgedec: export it again, or update edgedec.",
    "BundleCorrupt": "A file is missing, cut short or changed. `edgedec verify` names it; export or download the bundle again.",
    "BundleUnsafe": "The bundle names files outside its folder. Do not use it.",
    "CheckpointError": "The checkpoint cannot be exported as it is.",
    "UnknownArchitecture": "No file in `models/` knows this `model_type`: [adding one](add-an-architecture.md).",
    "BadTensor": "A tensor of the checkpoint is missing, too many, of another shape, or not finite: download it again, or it was "
    "saved wrongly.",
    "RuntimeUnavailable": "A package or an engine is missing here, or the engine cannot run what was asked.",
    "ContextFull": "The text has no room: a shorter prompt, fewer tokens, a larger `-c`, or `--on-full slide`.",
    "SessionError": "A saved session is of another bundle, cache format or engine, or damaged: start a new one.",
    "TextError": "The tokenizer or the chat template cannot do what was asked.",
    "UsageError": "An argument is out of range, or contradicts another.",
    "BadParameter": "A flag is misused: `edgedec COMMAND --help`.",
    "EdgedecError": "Something failed while measuring.",
}


def messages() -> dict[str, dict[str, str]]:
    """{kind: {message: file}}; the text of an f-string with … for its values."""
    found: dict[str, dict[str, str]] = {}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "testing" not in path.parts:
                for kind, text in raised(path.read_text("utf-8")):
                    found.setdefault(kind, {}).setdefault(text, path.relative_to(ROOT).as_posix())
    return found


def raised(source: str) -> Iterator[tuple[str, str]]:
    """(kind, message) of every `raise Kind("…")`.

    >>> list(raised('raise UsageError(f"seed {x}: must be 0")'))
    [('UsageError', 'seed …: must be 0')]
    """
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and call.args:
            name = ast.unparse(call.func).rpartition(".")[2]
            text = _text(call.args[0])
            if name in KINDS and re.search(r"[A-Za-z]{3}", text):
                yield name, " ".join(text.split())


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def page() -> str:
    """The whole page."""
    found = messages()
    parts = [HEAD]
    for kind, advice in KINDS.items():
        if kind in found:
            rows = sorted((text, file) for text, file in found[kind].items())
            lines = [f"| {_cell(text)} | `{file}` |" for text, file in rows]
            parts.append(f"## {kind}\n\n{advice}\n\n| message | from |\n| --- | --- |\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


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
