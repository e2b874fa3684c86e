"""The page of a search: the tree of the texts that it wrote, what each was worth, and when it was dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from edgedec.bench.trace import DATA, embed
from edgedec.search.record import BranchTrace


def search_page(
    branches: Sequence[BranchTrace], about: Mapping[str, Any], prompt: str, text: str, spell: Callable[[int], str]
) -> str:
    """One HTML file without any outside resource. text: the answer."""
    template = files("edgedec.bench").joinpath("search.html").read_text("utf-8")
    before, _, after = template.partition(DATA)
    chosen = next((branch.tokens for branch in branches if branch.chosen), ())
    data = {
        "about": dict(about),
        "prompt": prompt,
        "text": text,
        "branches": [_row(branch) for branch in branches],
        "tree": [
            [part.parent, "".join(map(spell, part.tokens)), list(part.branches), int(part.leads_to(chosen))]
            for part in tree_of(branches)
        ],
    }
    return before + embed(data) + after


def _row(branch: BranchTrace) -> list[Any]:
    return [
        len(branch.tokens),
        round(branch.logp, 4),
        round(branch.value, 4),
        branch.finish,
        branch.first,
        branch.last,
        branch.rank,
        int(branch.chosen),
    ]


class TreePart(NamedTuple):
    """Tokens that follow each other without a fork. parent: the part before it, -1: the prompt; path: all tokens up to
    and with its own; branches: those that end here, by number."""

    parent: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    branches: tuple[int, ...]

    def leads_to(self, tokens: tuple[int, ...]) -> bool:
        """Whether a text goes along it."""
        return tokens[: len(self.path)] == self.path


def tree_of(branches: Sequence[BranchTrace]) -> list[TreePart]:
    """The parts of all texts, each part once; parents before children, in the order of token numbers.

    Texts "a b c", "a b d", "a b" by their letters: parts "a b" (text 2 ends), then "c" and "d" below it.
    """
    found = list[TreePart]()
    texts = sorted(range(len(branches)), key=lambda i: (branches[i].tokens, i))
    open_groups = [(-1, 0, texts)]
    while open_groups:
        parent, start, group = open_groups.pop()
        end = _shared([branches[i].tokens for i in group], start)
        path, here = branches[group[0]].tokens[:end], len(found)
        below = [i for i in group if len(branches[i].tokens) > end]
        ended = tuple(i for i in group if len(branches[i].tokens) == end)
        found.append(TreePart(parent, path, path[start:], ended))
        by_token = dict[int, list[int]]()
        for i in below:
            by_token.setdefault(branches[i].tokens[end], []).append(i)
        open_groups += [(here, end, each) for _, each in sorted(by_token.items(), reverse=True)]
    return found


def _shared(texts: Sequence[tuple[int, ...]], start: int) -> int:
    """How many tokens all of them begin with, `start` at least."""
    first, last = texts[0], texts[-1]  # sorted: what these share, all share
    end = start
    while end < min(len(first), len(last)) and first[end] == last[end]:
        end += 1
    return end
