"""The prompts that speculation is measured with: a small set of its own, or a file like Spec-Bench's.

A line of JSON a prompt: {"category": …, "prompt": …}, or {"category": …, "turns": […]} for a conversation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.errors import UsageError

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
LIMIT = 64 << 20


@dataclass(frozen=True)
class Prompt:
    """A user's turns, and the category."""

    category: str
    turns: tuple[str, ...]


def read_prompts(path: Path | None = None) -> list[Prompt]:
    """The prompts of a file; without one, the set that ships along."""
    where = path or BUILT_IN
    try:
        if where.stat().st_size > LIMIT:
            raise UsageError(f"{where}: larger than any set of prompts")
        lines = where.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from None
    found = [_prompt(line, f"{where}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{where}: no prompts in it; one line of JSON each")
    return found


def choose_prompts(prompts: Sequence[Prompt], categories: Sequence[str] = (), limit: int = 0) -> list[Prompt]:
    """Those of `categories` (all if empty), the first `limit` of each (0: all)."""
    there = list(dict.fromkeys(prompt.category for prompt in prompts))
    for category in categories:
        if category not in there:
            raise UsageError(f"no prompts of the category {category!r}; there are: {', '.join(there)}")
    taken: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        taken[prompt.category] += 1
        if (not categories or prompt.category in categories) and (not limit or taken[prompt.category] <= limit):
            chosen.append(prompt)
    return chosen


def _prompt(line: str, where: str) -> Prompt:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise UsageError(f'{where}: must be an object with "category" and "prompt" or "turns"')
    turns = data.get("turns", [data.get("prompt")])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UsageError(f'{where}: needs "prompt": TEXT or "turns": [TEXT, …]')
    category = data.get("category")
    if not isinstance(category, str) or not category:
        raise UsageError(f'{where}: needs "category": TEXT')
    return Prompt(category, tuple(turns))
