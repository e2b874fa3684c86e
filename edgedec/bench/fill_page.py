"""The page of a text that a diffusion model filled: how its canvas looked after each pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from edgedec.bench.trace import DATA, embed
from edgedec.diffusion import FillTrace


def fill_page(
    passes: Sequence[FillTrace],
    about: Mapping[str, Any],
    prompt: str,
    first: int,
    generated: int,
    spell: Callable[[int], str],
) -> str:
    """One HTML file without any outside resource, with a slider over the passes. first: the position after the prompt;
    generated: the tokens of the text, behind which nothing was delivered."""
    template = files("edgedec.bench").joinpath("fill.html").read_text("utf-8")
    before, _, after = template.partition(DATA)
    found = [_row(each, first, spell) for each in passes]
    return before + embed({"about": dict(about), "prompt": prompt, "end": generated, "passes": found}) + after


def _row(each: FillTrace, first: int, spell: Callable[[int], str]) -> dict[str, Any]:
    """A pass with positions counted from the end of the prompt."""
    return {
        "start": each.start - first,
        "end": each.end - first,
        "step": each.step,
        "rows": each.rows,
        "us": round(each.seconds * 1e6),
        "fills": [[at - first, spell(token), None if p is None else round(p, 4)] for at, token, p in each.fills],
        "moves": [[begin - first, end - first, list(map(spell, tokens))] for begin, end, tokens in each.moves],
    }
