"""The marks around a model's thoughts, which a tokenizer may hide."""

from __future__ import annotations

import json
from pathlib import Path

THOUGHT = ("<think>", "</think>")


def with_marks(path: Path) -> str:
    """The tokenizer.json with the marks around thoughts as text that is shown, if it hides them; empty if not: only
    they say where a thought ends. Some vocabularies (Qwen3) show them, others (DeepSeek) call them special."""
    raw = path.read_bytes()
    if not any(json.dumps(mark).encode() in raw for mark in THOUGHT):
        return ""
    content = json.loads(raw)
    found = [t for t in content.get("added_tokens", []) if t.get("content") in THOUGHT and t.get("special")]
    for token in found:
        token["special"] = False
    return json.dumps(content) if found else ""
