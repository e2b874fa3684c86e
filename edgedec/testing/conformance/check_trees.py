"""Trees of rows: each row's outputs equal those of the chain down to it, and only committed rows are seen later."""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.runtime import Outputs, Rows, Runtime
from edgedec.spec.branches import early
from edgedec.testing.conformance.compare import Array, logits, path, read, run, same, text, tokens, tree
from edgedec.testing.conformance.suite import Subject, check, refused_without

# Tokens before the tree; a path of it whose rows are no neighbours.
_BEFORE, _PATH = 13, [0, 2, 6]


@refused_without("trees")
def _tree(runtime: Runtime) -> Array:
    return logits(run(runtime, tree(runtime.spec, 0), runtime.new_cache(16)))


def _started(runtime: Runtime) -> tuple[Cache, Rows, list[int]]:
    """A cache with a text, a tree after it, and the text."""
    before = tokens(runtime.spec, _BEFORE, seed=4)
    return text(runtime, before)[0], tree(runtime.spec, _BEFORE), before


def _chains(runtime: Runtime, rows: Rows, before: list[int]) -> Array:
    """Logits of the last row of each chain down to a row of the tree."""
    ends = [[*before, *rows.tokens[path(rows, row)].tolist()] for row in range(len(rows))]
    return np.stack([text(runtime, ids)[1][-1] for ids in ends])


@check("trees: a row is the end of its chain", needs="trees")
def is_chain(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    cache, rows, before = _started(runtime)
    same(subject, logits(run(runtime, rows, cache)), _chains(runtime, rows, before), "rows of a tree")
    first = tree(runtime.spec, 0)
    same(subject, _tree(runtime), _chains(runtime, first, []), "rows of a tree without a text before it")


@check("trees: rows added to a tree", needs="trees")
def grown(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    cache, rows, before = _started(runtime)
    part, found = Rows.tree(rows.tokens[:2].tolist(), rows.parents[:2].tolist(), _BEFORE), []
    for stop in (2, 5, 6, 9):
        if stop > 2:
            start = len(part)
            part = part.extend(rows.tokens[start:stop].tolist(), rows.parents[start:stop].tolist())
        found.append(logits(run(runtime, part, cache)))
    same(subject, np.concatenate(found), _chains(runtime, rows, before), "rows of a tree that grew")
    cache.commit(_PATH)
    _goes_on(subject, runtime, cache, [*before, *rows.tokens[_PATH].tolist()])


@check("trees: a path is committed, at once and in pieces", needs="trees")
def committed(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    for pieces in ([_PATH], [[0], [2], [6]], [[0, 2], [6, 7]], [[8]]):
        cache, rows, before = _started(runtime)
        run(runtime, rows, cache, Outputs())
        taken = [row for piece in pieces for row in piece]
        for piece in pieces:
            cache.commit(piece)
        assert cache.length == _BEFORE + len(taken), f"length {cache.length} after {len(taken)} rows of a tree"
        _goes_on(subject, runtime, cache, [*before, *rows.tokens[taken].tolist()])


@check("commit: only rows that are pending")
def only_pending(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    cache, _before = text(runtime, tokens(runtime.spec, 6))
    ids = tokens(runtime.spec, 9)
    run(runtime, Rows.chain(ids[6:], 6), cache, Outputs())
    for wrong in ([3], [1, 0], [0, 0], [-1]):
        try:
            cache.commit(wrong)
        except UsageError:
            assert cache.length == 6, f"a refused commit changed the length to {cache.length}"
            continue
        raise AssertionError(f"commit({wrong}) of 3 pending rows is accepted")
    cache.commit([0])
    cache.rollback()
    _goes_on(subject, runtime, cache, ids[:7])


@check("rollback: pending rows are forgotten", needs="trees")
def rolled_back(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    cache, rows, before = _started(runtime)
    run(runtime, rows, cache, Outputs())
    cache.rollback()
    assert cache.length == _BEFORE, f"length {cache.length} after rollback, {_BEFORE} before"
    _goes_on(subject, runtime, cache, before)
    cache, rows, before = _started(runtime)
    for _ in range(2):
        run(runtime, rows, cache, Outputs())
    cache.commit([0])
    cache.rollback()
    _goes_on(subject, runtime, cache, [*before, int(rows.tokens[0])])


@check("commit: blocks that the call did not run keep nothing of an earlier one", needs="slices")
def stale_rows(subject: Subject, model: str) -> None:
    """A tree of three rows of which one is committed; then a call of the first blocks only, whose rows are."""
    runtime = subject.runtime(model)
    spec = runtime.spec
    ids, cut = tokens(spec, 12), spec.n_blocks // 2
    cache, _ = text(runtime, ids[:6])
    held = [b for b in spec.attention if b >= cut]
    run(runtime, Rows.chain(ids[6:9], 6), cache, Outputs())
    cache.commit([0])
    run(runtime, Rows.chain(ids[7:9], 7), cache, Outputs(), blocks=range(cut))
    cache.commit([0, 1])
    for b in spec.attention:
        expected = 7 if b in held else 9
        assert cache.slots(b) == expected, f"block {b} holds {cache.slots(b)} slots, it was run on {expected}"


@check("slices: blocks run again on a tree replace their rows, others keep theirs", needs="slices")
def run_again(subject: Subject, model: str) -> None:
    """A drafter leaves a block out and runs those after it; verification runs the left out one and these again."""
    runtime = subject.runtime(model)
    spec, ids = runtime.spec, tokens(runtime.spec, 12)
    read_by_others = set(spec.owners.values())  # and cannot be left out
    cut = next(
        b
        for b in range(spec.n_blocks // 2, spec.n_blocks)
        if b not in read_by_others and not any(map(early, spec.blocks[b : b + 2]))  # calls begin at both
    )
    cache, _ = text(runtime, ids[:6])
    rows = Rows.chain(ids[6:9], 6)
    states = run(runtime, rows, cache, Outputs(hidden=(cut - 1,)), blocks=range(cut)).hidden[cut - 1]
    run(runtime, rows, cache, Outputs(), blocks=range(cut + 1, spec.n_blocks), hidden=states)
    found = logits(run(runtime, rows, cache, blocks=range(cut, spec.n_blocks), hidden=states))
    same(subject, found, text(runtime, ids[:9])[1][6:], "rows whose last blocks were run twice")
    cache.commit([0, 1])
    _goes_on(subject, runtime, cache, ids[:8])


def _goes_on(subject: Subject, runtime: Runtime, cache: Cache, ids: list[int]) -> None:
    """Check that the next tokens after a cache equal those after the same text read again."""
    assert cache.length == len(ids), f"length {cache.length}, {len(ids)} tokens were committed"
    more = tokens(runtime.spec, 3, seed=6)
    expected = text(runtime, [*ids, *more])[1][len(ids) :]
    same(subject, read(runtime, more, cache), expected, "the tokens after it")
