"""The prompts that speculation is measured with: a small set of our own, a public one by its name, or any file.

A line of JSON a prompt: {"category": …, "prompt": …}, or {"category": …, "turns": […]} for a conversation. The files of
public sets are the user's: Spec-Bench (Xia et al. 2024) and MT-bench (Zheng et al. 2023) have turns, HumanEval (Chen et
al. 2021) a prompt, GSM8K (Cobbe et al. 2021) a question.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from edgedec.errors import UsageError

OWN = "own"
BUILT_IN = Path(__file__).with_name("prompts.jsonl")
LIMIT = 64 << 20


@dataclass(frozen=True)
class Prompt:
    """A user's turns, and the category."""

    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class PublicSet:
    """The key that holds a prompt, and usual names of the file; `categories`: only these of the file; a prompt without
    a category has the set's name."""

    key: str
    files: tuple[str, ...]
    categories: tuple[str, ...] = ()


_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
PUBLIC = {
    "mtbench": PublicSet("turns", ("question.jsonl", "spec_bench_question.jsonl"), _MT_BENCH),
    "specbench": PublicSet("turns", ("question.jsonl", "spec_bench_question.jsonl")),
    "humaneval": PublicSet("prompt", ("HumanEval.jsonl.gz", "HumanEval.jsonl")),
    "gsm8k": PublicSet("question", ("test.jsonl", "gsm8k_test.jsonl")),
}


def prompts_named(words: str) -> list[Prompt]:
    """The set that `--prompts` names: `own`, NAME=PATH of a public set, or a file."""
    name, is_public, path = words.partition("=")
    if words == OWN:
        return read_prompts()
    if words in PUBLIC:
        raise UsageError(f"--prompts {words}: needs its file, as in --prompts {words}={PUBLIC[words].files[0]}")
    if not is_public or name not in PUBLIC:
        return read_prompts(Path(words))
    public = PUBLIC[name]
    return choose_prompts(read_prompts(_file_of(Path(path), public), name), public.categories)


def read_prompts(path: Path | None = None, public: str = "") -> list[Prompt]:
    """The prompts of a file, in the format of a public set if one is named; without a file, our own."""
    where = path or BUILT_IN
    lines = _text(where).split("\n")
    found = [_prompt(line, f"{where}, line {n}", public) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{where}: no prompts in it; one line of JSON each")
    return found


def choose_prompts(
    prompts: Sequence[Prompt], categories: Sequence[str] = (), limit: int = 0, sample: int = 0, seed: int = 0
) -> list[Prompt]:
    """Those of `categories` (all if empty), the first `limit` of each; of these `sample` drawn by the seed (0: all)."""
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
    if not sample or sample >= len(chosen):
        return chosen
    return [chosen[i] for i in sorted(Random(seed).sample(range(len(chosen)), sample))]


def _file_of(path: Path, public: PublicSet) -> Path:
    """The set's file; in a folder the one of a usual name."""
    if not path.is_dir():
        return path
    for name in public.files:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"{path}: has no {' or '.join(public.files)}; name the file itself")


def _text(where: Path) -> str:
    """The text of a file, unpacked if it is gzip."""
    try:
        with where.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(where) if packed else where.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise UsageError(f"{where}: larger than any set of prompts")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(f"{where}: cannot be unpacked ({error}); download it again") from None
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from None


def _prompt(line: str, where: str, public: str) -> Prompt:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise UsageError(f'{where}: must be an object with "category" and "prompt" or "turns"')
    if public and PUBLIC[public].key not in data:
        raise UsageError(f'{where}: no "{PUBLIC[public].key}" in it, so no file of {public}; name its set, or none')
    turns = data.get("turns", [data.get("prompt", data.get("question"))])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UsageError(f'{where}: needs "prompt": TEXT or "turns": [TEXT, …]')
    category = data.get("category", public)
    if not isinstance(category, str) or not category:
        raise UsageError(f'{where}: needs "category": TEXT, or the name of its set: --prompts {"|".join(PUBLIC)}=FILE')
    return Prompt(category, tuple(turns))
