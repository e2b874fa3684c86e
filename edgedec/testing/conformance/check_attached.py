"""Slots of no token: attached, seen, forgotten with their token, saved and forked; beside the reference."""

from __future__ import annotations

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Rows, Runtime
from edgedec.testing.conformance.compare import close, logits, run, same, text, tokens
from edgedec.testing.conformance.suite import Subject, check, refused_without

_TEXT = 20


@refused_without("attach")
def _attaching(runtime: Runtime) -> object:
    cache, _ = text(runtime, tokens(runtime.spec, 5))
    run(runtime, Rows.chain([1], 5), cache)
    cache.attach(1)
    return None


@check("attach: slots of no token, beside the reference", needs="attach")
def attached(subject: Subject, model: str) -> None:
    spec, found = subject.runtime(model).spec, []
    if spec.recurrent or not spec.attention:
        _refused(subject.runtime(model))
        return
    ids = tokens(spec, _TEXT)
    for runtime in subject.both(model):
        cache, _ = text(runtime, ids)
        run(runtime, Rows.chain([1, 2, 3], _TEXT), cache)
        cache.attach(2)
        assert cache.length == _TEXT, "attached rows are counted as tokens"
        assert all(cache.slots(block) == _TEXT + 2 for block in spec.attention), "two slots more"
        loaded = runtime.new_cache(cache.capacity)
        loaded.load(cache.save())
        rows = Rows.chain([4, 5], _TEXT)
        seen = [logits(run(runtime, rows, one, ALL_LOGITS)) for one in (cache, cache.fork(), loaded)]
        if runtime is subject.runtime(model):
            for other in seen[1:]:
                same(subject, other, seen[0], "a fork and a loaded cache")
        found.append(seen[0])
        cache.truncate(_TEXT - 1)
        assert all(cache.slots(block) == _TEXT - 1 for block in spec.attention), "slots stay without their token"
        found.append(logits(run(runtime, Rows.chain(ids[-1:], _TEXT - 1), cache, ALL_LOGITS)))
    close(found[0], found[2], "logits after attached slots")
    close(found[1], found[3], "logits after they are gone")
    whole, _ = text(subject.runtime(model), ids)
    plain = logits(run(subject.runtime(model), Rows.chain([4, 5], _TEXT), whole, ALL_LOGITS))
    assert not np.array_equal(plain, found[0]), "attached slots are not seen"


def _refused(runtime: Runtime) -> None:
    cache, _ = text(runtime, tokens(runtime.spec, 5))
    run(runtime, Rows.chain([1], 5), cache)
    try:
        cache.attach(1)
    except UsageError:
        return
    raise AssertionError("rows are attached beside a recurrent block")
