"""Verification: which drafted rows of a tree are accepted, and the token after each.

`walk` is exact for any draft. The plug-ins of this family are for drafts whose tokens were drawn from known
distributions: they accept more tokens of such a draft. They keep the target's distribution exactly, by rejection
sampling: a token drawn from q is accepted with probability min(1, p/q); a rejected token is replaced by a draw from the
residual max(p - q, 0), normalised.

In all of them row `root` is the last known token, run by this very call; rows before it are prompt, rows
after it are drafted. They return the accepted rows, `root` first, and the token that follows each: the next row's
token, and after the last row a new one. `target(row, path)` is the distribution after `row`, `path` being the drafted
tokens from the root to it; `drafted[i]` the one that row root + 1 + i was drawn from. How many tokens are drawn at a
node may depend on the path to it, never on what is drawn there or elsewhere. A token with probability 0 under its own q
was not drawn from q: it counts as not drafted.
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._drawn import Verifier, VerifierFacts
from edgedec.plugins import Family

__all__ = ["FAMILY", "Verifier", "VerifierFacts", "follow", "verifier", "walk"]

FAMILY = Family("edgedec.decoding.verify", "verifier", facts=VerifierFacts)


def verifier(name: str) -> Verifier:
    """The function that verifies a tree of drawn tokens, by its file's name."""
    found: Verifier = FAMILY.file(name).verify
    return found


def walk(rows: Rows, pick: Callable[[int, list[int]], int], root: int = 0) -> tuple[list[int], list[int]]:
    """Follow the target's own choices through a tree -> (accepted rows, tokens picked, one a row).

    `pick(row, path)` draws the token that follows `row` from the target's distribution there, `path` being the
    drafted tokens accepted so far.

    Lossless for any draft. Every returned token is drawn from the target's own distribution given its path, exactly the
    draw of plain decoding; the draft only decides whether the logits for the next draw are available. A drafter cannot
    make a token likelier by proposing it: greedy output is the same token for token, sampled output has the same
    distribution, and as `pick` is called once a token, in order, one seed even gives the same tokens.

    Worked example, root 7 with drafts 8 -> 5 and 9; the target says 7 -> 8 -> 4:

        7 ─┬─ 8 ── 5       rows 0, 1, 2 and 3 (the 9)
           └─ 9            pick(0, []) = 8 matches row 1; pick(1, [8]) = 4 matches nothing
                           -> ([0, 1], [8, 4])

    Of several children with one token the first wins.
    """
    return follow(rows, pick, [root], [pick(root, [])])


def follow(
    rows: Rows, pick: Callable[[int, list[int]], int], accepted: list[int], picked: list[int]
) -> tuple[list[int], list[int]]:
    """Continue `walk` from a path: `accepted` rows and the token picked after each.

    After a verifier of drawn tokens it continues through rows that were not drawn, or that the verifier left: each
    further token is the target's own draw."""
    last = accepted[-1]
    if last == len(rows) - 1:
        return accepted, picked
    token, tokens = picked[-1], rows.tokens.tolist()
    # A parent comes before its children, so the path lies in order.
    for row, parent in enumerate(rows.parents.tolist()):
        if parent == last and tokens[row] == token:
            last, token = row, pick(row, list(picked))
            accepted.append(row)
            picked.append(token)
    return accepted, picked
