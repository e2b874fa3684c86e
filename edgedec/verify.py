"""Verification: which drafted rows of a tree stand, and what comes after them. Pure functions.

`walk` is right for any draft, the others (`VERIFIERS`) for drafts whose tokens were drawn from known
distributions: they accept more of such a draft, and need to be told the truth about it. They keep the
target's distribution exactly, by the rule of rejection sampling: a token drawn from q is accepted with
probability min(1, p/q); a refused one is replaced by a draw from what p has beyond q, the residual.

In all of them row `root` is the last known token, run by this very call; rows before it are prompt, rows
behind it are drafted. They return the accepted rows, `root` first, and the token that follows each: the next
row's, and for the last row one that no row has run yet. `target(row, path)` is the distribution behind `row`,
`path` being the drafted tokens from the root to it; `drafted[i]` the one that row root + 1 + i was drawn from.
How many tokens are drawn at a node may depend on the path to it, never on what is drawn there or elsewhere.
A token to which its own q gives nothing was not drawn from q: it counts as not drafted.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence

import numpy as np

from edgedec.rows import Rows
from edgedec.sampling import Floats, Ids, Probs, draw, residual

Target = Callable[[int, list[int]], Probs]
# (rows, target(row, path), what each drafted token was drawn from, rng, root) -> (accepted rows, tokens picked)
Verifier = Callable[[Rows, Target, Sequence[Probs], np.random.Generator, int], tuple[list[int], list[int]]]
# Tokens drafted at one node, each with what it was drawn from
Drawn = list[tuple[int, Probs]]

_HALVINGS = 30


def walk(rows: Rows, pick: Callable[[int, list[int]], int], root: int = 0) -> tuple[list[int], list[int]]:
    """Follow the target's own choices through a tree -> (accepted rows, tokens picked, one a row).

    `pick(row, path)` draws the token that follows `row` from the target's distribution there, `path` being the
    drafted tokens accepted so far.

    Lossless for any draft. Every token returned was drawn from the target's own distribution given
    its path, the very draw that plain decoding makes; the draft only decides whether the logits for
    the draw after it are at hand. A drafter cannot make a token likelier by proposing it: greedy
    output is the same token for token, sampled output has the same distribution, and as `pick` is
    called once a token, in order, one seed even gives the same tokens.

    Worked example, root 7 with drafts 8 -> 5 and 9; the target says 7 -> 8 -> 4:

        7 ─┬─ 8 ── 5       rows 0, 1, 2 and 3 (the 9)
           └─ 9            pick(0, []) = 8 matches row 1; pick(1, [8]) = 4 matches nothing
                           -> ([0, 1], [8, 4])

    Of several children with one token the first wins.
    """
    accepted, picked, last = [root], [pick(root, [])], root
    if root == len(rows) - 1:
        return accepted, picked
    token, tokens = picked[0], rows.tokens.tolist()
    # A parent comes before its children, so the path lies in order.
    for row, parent in enumerate(rows.parents.tolist()):
        if parent == last and tokens[row] == token:
            last, token = row, pick(row, list(picked))
            accepted.append(row)
            picked.append(token)
    return accepted, picked


def token(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Rejection sampling token by token on a chain (Leviathan et al. 2023): of a node's children the first.

    Worked example:  p = 0.5 0.3 0.2     q = 0.2 0.6 0.2     draft 1
    accepted with 0.3 / 0.6 = 1/2; if not, the residual 1 0 0 gives 0
    """
    return _down(rows, target, drafted, rng, root, lambda p, drawn, rng: _in_turn(p, drawn[:1], rng))


def recursive(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Recursive rejection (S51, RSD): the children of a node were drawn from q without replacement.

    They are tried in the order of their rows, which must be the order they were drawn in (one after another,
    or the largest first of log q + Gumbel noise). Once x is refused, p becomes the residual, and q what x leaves
    of it, renormalised: the next child was drawn from just that. `drafted` gives every sibling the whole q.
    A twin is passed over, so independent draws will do as well, if fewer of them count.

    Worked example:  p = 0.4 0.2 0.4     q = 0.2 0.6 0.2     drafts 1, 2
    1 is accepted with 0.2 / 0.6 = 1/3; if not, p = 0.5 0 0.5 and q = 0.5 0 0.5: 2 is accepted for sure
    """
    return _down(rows, target, drafted, rng, root, _in_turn)


def spectr(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """K-sequential selection (S50, SpecTr): the children of a node are independent draws from q, twins included.

    With k of them each may be accepted a little more rarely, min(1, p / (rho q)), so that together they
    are never accepted more often than p allows. beta = sum min(q, p / rho) of the draws are accepted, so some draw
    is with 1 - (1 - beta)^k, and rho is the smallest for which that is at most rho beta.

    Worked example:  p = 0.7 0.3     q = 0.3 0.7     k = 2
    rho = 1.5, beta = 0.5: a 0 is always accepted, a 1 with 0.3 / (1.5 * 0.7) = 2/7; one of two is with 3/4
    (one draft alone: 0.6). If none is: 0.7 - 0.3 * 1.5 = 0.25 and 0.3 - 0.2 * 1.5 = 0, so 0.
    """
    return _down(rows, target, drafted, rng, root, _k_sequential)


def block(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Block verification (S52; Sun et al. 2024) of a chain, of a node's children the first: the whole path at once.

    A token that p likes better than q does makes up for one before it that p liked less. `_block` has the rule.

    Worked example:  p = 1/3 2/3     q = 2/3 1/3, whatever came before; two tokens are drafted
    0 1 is always accepted (weights 1/2, 1), where token by token the 0 falls every other time; in the mean
    11/9 tokens are accepted instead of 10/9
    """
    children, chain = _children(rows, root), [root]
    targets, drawn = [target(root, [])], Drawn()
    while below := _drawn(rows, children.get(chain[-1], [])[:1], drafted, root):
        ((row, token, q),) = below
        chain.append(row)
        drawn.append((token, q))
        if targets[-1].of(token) == 0:
            break  # nothing can be accepted from here on
        targets.append(target(row, [t for t, _ in drawn]))
    kept, new = _block(targets, drawn, rng)
    return chain[: kept + 1], [*[t for t, _ in drawn[:kept]], new]


def multipath(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Greedy multi-path block verification (S52): of several independent paths the one most welcome, as a block.

    A path is a leaf's, so as many paths run through a row as leaves lie below it. Paths may share rows as long
    as they agree, but each ends in a row of its own: two that agree to the end have twin leaves. How long
    a path is may depend on its own tokens only.

    At every node the token with the largest p/q is chosen (of equals the largest) among those of the m paths
    that agree so far; those that have it go on. As they are independent, the chosen token is x with
    q~(x) = F(x)^m - F(below x)^m, F adding up q in the order of p/q. So the chosen path is one draw
    from q~, which `_block` verifies; that m follows from tokens not chosen changes nothing, for p/q~ is
    the same whatever becomes of m, and the paths that go on are again independent.

    Worked example:  p = 0.7 0.3     q = 0.3 0.7     two paths of one token
    order 1, 0; F = 0.7, 1; q~ = 0.51 0.49: 0 is always accepted, 1 with 0.3 / 0.49, together 0.81
    """
    children, agree = _children(rows, root), [[root]]
    leaves = _leaves(rows, root)
    targets, drawn = [target(root, [])], Drawn()
    while below := _drawn(rows, [c for row in agree[-1] for c in children.get(row, [])], drafted, root):
        q = below[0][2]
        token, law = _greedy(targets[-1], q, [t for _, t, _ in below], sum(leaves[row] for row, _, _ in below))
        agree.append([row for row, t, _ in below if t == token])
        drawn.append((token, law))
        if targets[-1].of(token) == 0:
            break
        targets.append(target(agree[-1][0], [t for t, _ in drawn]))
    kept, new = _block(targets, drawn, rng)
    path = [agree[kept][0]]
    while path[0] != root:
        path.insert(0, int(rows.parents[path[0]]))
    return path, [*[t for t, _ in drawn[:kept]], new]


def _down(
    rows: Rows,
    target: Target,
    drafted: Sequence[Probs],
    rng: np.random.Generator,
    root: int,
    choose: Callable[[Probs, Drawn, np.random.Generator], tuple[int | None, int]],
) -> tuple[list[int], list[int]]:
    """Node by node: `choose` says which of the drawn tokens stands (None: none does), and the token."""
    children, accepted, picked = _children(rows, root), [root], list[int]()
    while True:
        below = _drawn(rows, children.get(accepted[-1], []), drafted, root)
        p = target(accepted[-1], list(picked))
        at, token = choose(p, [(token, q) for _, token, q in below], rng)
        picked.append(token)
        if at is None:
            return accepted, picked
        accepted.append(below[at][0])


def _in_turn(p: Probs, drawn: Drawn, rng: np.random.Generator) -> tuple[int | None, int]:
    """One drawn token after another, each from what those before it left of q."""
    gone: list[int] = []
    for at, (token, whole) in enumerate(drawn):
        if token in gone:
            continue  # without replacement nothing comes twice
        q = _without(whole, gone)
        if rng.random() * q.of(token) < p.of(token):
            return at, token
        p = residual(p, q)
        gone.append(token)
    return None, draw(p, rng)


def _k_sequential(p: Probs, drawn: Drawn, rng: np.random.Generator) -> tuple[int | None, int]:
    if not drawn:
        return None, draw(p, rng)
    q, k = drawn[0][1], len(drawn)
    rho, beta = _rho(p, q, k)
    for at, (token, _) in enumerate(drawn):
        if rng.random() * rho * q.of(token) < p.of(token):
            return at, token
    often = (1 - (1 - beta) ** k) / beta if beta > 0 else 0.0
    taken = np.minimum(_on(q, p.ids), p.p / rho) * often
    return None, draw(residual(p, Probs(p.ids, taken)), rng)


def _rho(p: Probs, q: Probs, k: int) -> tuple[float, float]:
    """SpecTr's rho, and beta(rho): by halving, from above, where nothing is accepted too often."""
    mine, other = _on(p, q.ids), q.p
    # Whatever rho in [1, k] is, of some tokens q is always accepted, of others p / rho; between them lie few.
    always, never = mine >= k * other, mine <= other
    sure, spare = float(other[always].sum()), float(mine[never & ~always].sum())
    between = ~(always | never)
    ratio = mine[between] / other[between]
    order = np.argsort(ratio)
    steps = ratio[order].tolist()
    below = np.cumsum(np.append(spare, mine[between][order])).tolist()
    above = np.cumsum(np.append(sure, other[between][order][::-1]))[::-1].tolist()

    def beta(rho: float) -> float:
        at = bisect(steps, rho)
        total: float = below[at] / rho + above[at]
        return min(total, 1.0)

    low, high = 1.0, float(k)
    for _ in range(_HALVINGS if k > 1 else 0):
        rho = (low + high) / 2
        b = beta(rho)
        low, high = (rho, high) if 1 - (1 - b) ** k > rho * b else (low, rho)
    return high, beta(high)


def _block(targets: Sequence[Probs], drawn: Drawn, rng: np.random.Generator) -> tuple[int, int]:
    """How many drawn tokens of a path stand, and the token after them.

    targets: behind none, one, two … of them. After i tokens the path is worth weight_i = min(1, weight_i-1 p/q).
    Ending there with what weight_i p has beyond q makes up for gap_i = sum max(weight_i p - q, 0) of it, so
    that i tokens stand with gap / (gap + 1 - weight), all of them with their weight; the longest such i counts.
    """
    kept, left, weight = 0, 1.0, 1.0
    for i, (token, q) in enumerate(drawn):
        p, drew = targets[i].of(token), q.of(token)
        if p == 0 or drew == 0:  # the latter by rounding only
            break
        weight = min(1.0, weight * p / drew)
        stands = weight
        if i + 1 < len(drawn):
            gap = float(np.maximum(weight * targets[i + 1].p - _on(drawn[i + 1][1], targets[i + 1].ids), 0).sum())
            # At weight 1 without a gap p is q: the next token's weight is 1 as well, and decides.
            stands = gap / (gap + 1 - weight) if weight < 1 else 1.0
        if rng.random() < stands:
            kept, left = i + 1, weight
    last = targets[kept]
    if kept < len(drawn):
        last = residual(Probs(last.ids, left * last.p), drawn[kept][1])
    return kept, draw(last, rng)


def _greedy(p: Probs, q: Probs, tokens: Sequence[int], m: int) -> tuple[int, Probs]:
    """Of tokens that m draws from q gave, the one with the largest p/q; and what such a choice is drawn from."""
    ratio = _on(p, q.ids) / q.p
    order = np.argsort(ratio, kind="stable")
    upto = np.cumsum(q.p[order])
    upto = (upto / upto[-1]) ** m
    law = np.empty(len(order))
    law[order] = np.diff(upto, prepend=0.0)
    at = max(np.searchsorted(q.ids, tokens).tolist(), key=lambda i: (ratio[i], i))
    kept: Ids = q.ids[law > 0]
    return int(q.ids[at]), Probs(kept, law[law > 0])


def _children(rows: Rows, root: int) -> dict[int, list[int]]:
    """The drafted rows by their parents."""
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(rows.parents[root + 1 :].tolist(), root + 1):
        below.setdefault(parent, []).append(row)
    return below


def _leaves(rows: Rows, root: int) -> list[int]:
    """How many leaves lie at or below each row."""
    leaves, parents = [0] * len(rows), rows.parents.tolist()
    for row in range(len(rows) - 1, root, -1):
        leaves[row] = leaves[row] or 1
        leaves[parents[row]] += leaves[row]
    return leaves


def _drawn(rows: Rows, some: Sequence[int], drafted: Sequence[Probs], root: int) -> list[tuple[int, int, Probs]]:
    """(row, token, what it was drawn from) of those of these siblings that were drawn. Siblings share one law."""
    if not some:
        return []
    q = drafted[some[0] - root - 1]
    found = [(row, int(rows.tokens[row]), q) for row in some]
    return [entry for entry in found if q.of(entry[1]) > 0]


def _without(q: Probs, gone: Sequence[int]) -> Probs:
    """q given that none of these is drawn."""
    if not gone:
        return q
    keep = ~np.isin(q.ids, gone)
    return Probs(q.ids[keep], q.p[keep] / q.p[keep].sum())


def _on(q: Probs, ids: Ids) -> Floats:
    """The probabilities of `ids` [n] under q -> [n]."""
    at = np.minimum(np.searchsorted(q.ids, ids), len(q.ids) - 1)
    found: Floats = np.where(q.ids[at] == ids, q.p[at], 0.0)
    return found


# How a tree is verified whose tokens were drawn, by name.
VERIFIERS: dict[str, Verifier] = {
    "token": token,
    "spectr": spectr,
    "recursive": recursive,
    "block": block,
    "multipath": multipath,
}
