"""Groups: rows that see each other, as diffusion decoding and encoders run them."""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.runtime import Rows, Runtime
from edgedec.spec import ModelSpec
from edgedec.testing.conformance.compare import Array, close, logits, read, run, same, text, tokens
from edgedec.testing.conformance.suite import Subject, check

_BEFORE = 11
# The last committed tokens, a block, another that sees both, and rows of none.
_GROUPS = [-1, 4, 4, 4, 9, 9, -1]


def _blocks(spec: ModelSpec, start: int, groups: list[int] = _GROUPS) -> Rows:
    chain = Rows.chain(tokens(spec, len(groups), seed=6), start)
    return Rows(chain.tokens, chain.positions, chain.parents, groups=np.array(groups))


def _grouped(runtime: Runtime) -> Array:
    return logits(run(runtime, _blocks(runtime.spec, 0), runtime.new_cache(16)))


def _refuses(runtime: Runtime) -> bool:
    """Whether the model has no such rows; they are refused then."""
    if not runtime.spec.recurrent:
        return False
    try:
        _grouped(runtime)
    except UsageError:
        return True
    raise AssertionError("rows in groups were run through a recurrent block")


def _both(subject: Subject, model: str) -> list[tuple[Runtime, Cache]]:
    found = [(runtime, tokens(runtime.spec, _BEFORE, seed=4)) for runtime in subject.both(model)]
    return [(runtime, text(runtime, before)[0]) for runtime, before in found]


@check("groups: a block is committed, and the next one sees it", needs="groups")
def committed(subject: Subject, model: str) -> None:
    if _refuses(subject.runtime(model)):
        return
    found = list[Array]()
    for runtime, cache in _both(subject, model):
        run(runtime, _blocks(runtime.spec, _BEFORE), cache)
        cache.commit(range(4))
        again = logits(run(runtime, _blocks(runtime.spec, _BEFORE + 4, [0] * 4), cache))
        cache.rollback()
        later = read(runtime, tokens(runtime.spec, 3, seed=8), cache)
        assert cache.length == _BEFORE + 4 + 3, f"length {cache.length} after a block of which 4 rows were kept"
        found.append(np.concatenate([again, later]))
    close(found[0], found[1], "rows after a committed block")


@check("groups: the last row of a block is the same alone, after the others", needs="groups")
def last_alone(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    if _refuses(runtime):
        return
    cache, rows = runtime.new_cache(16), Rows.text(np.array(tokens(runtime.spec, 9, seed=6)))
    expected = logits(run(runtime, rows, cache))[-1:]
    cache.commit(range(8))
    found = logits(run(runtime, Rows.chain(rows.tokens[8:], 8), cache))
    same(subject, found, expected, "the last row of a block")


@check("groups: blocks one after another are blocks in one call", needs="groups")
def one_by_one(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    if _refuses(runtime):
        return
    whole, groups = _blocks(runtime.spec, 0, [0, 0, 0, 1, 1, 1]), [0, 0, 0]
    expected, cache, found = logits(run(runtime, whole, runtime.new_cache(16))), runtime.new_cache(16), list[Array]()
    for at in (0, 3):
        part = slice(at, at + 3)
        rows = Rows(whole.tokens[part], whole.positions[part], np.arange(-1, 2), groups=np.array(groups))
        found.append(logits(run(runtime, rows, cache)))
        cache.commit(range(3))
    same(subject, np.concatenate(found), expected, "blocks one after another")
