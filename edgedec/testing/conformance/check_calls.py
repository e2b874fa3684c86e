"""Calls: slices of the stack, ragged mixes, outputs, limits, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, CallResult, Outputs, Rows, Runtime, entropy_of
from edgedec.testing.conformance.compare import Array, close, ends, logits, may_run, run, same, text, tokens, tree
from edgedec.testing.conformance.suite import Subject, check, refused_without

_BEFORE = 9


@refused_without("slices")
def _slice(runtime: Runtime) -> CallResult:
    return run(runtime, Rows.chain([1, 2], 0), runtime.new_cache(4), Outputs(), blocks=range(1))


@check("slices: the stack may be cut anywhere", needs="slices")
def cut_anywhere(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids, starts = tokens(runtime.spec, 20), [end + 1 for end in ends(runtime.spec)[:-1]]
    n, expected = runtime.spec.n_blocks, text(runtime, ids)[1]
    for cuts in ([0, 0, *starts, n, n], *([0, cut, n] for cut in starts)):
        cache, _ = text(runtime, ids[:_BEFORE])
        rows, hidden = Rows.chain(ids[_BEFORE:], _BEFORE), None
        for start, stop in itertools.pairwise(cuts):
            last = stop - 1 if stop > start else -1
            wanted = Outputs(hidden=(last,)) if hidden is None or stop > start else Outputs()
            states = run(runtime, rows, cache, wanted, blocks=range(start, stop), hidden=hidden).hidden
            hidden = states.get(last, hidden)
        assert hidden is not None
        found = logits(run(runtime, rows, cache, blocks=(), hidden=hidden))
        same(subject, found, expected[_BEFORE:], f"the stack cut at {cuts[1:-1]}")
        cache.commit(range(len(rows)))
        assert cache.length == len(ids), f"length {cache.length} after rows that were run in slices"


@check("slices: rows begun one by one are resumed together", needs="slices")
def resumed(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    if not subject.capabilities.trees:
        return
    n, rows = runtime.spec.n_blocks, tree(runtime.spec, _BEFORE)
    ids = tokens(runtime.spec, _BEFORE)
    expected = logits(run(runtime, rows, text(runtime, ids)[0]))
    for cut in {ends(runtime.spec)[at] + 1 for at in (0, -2)}:
        cache, states = text(runtime, ids)[0], []
        for i in range(len(rows)):
            part = Rows(rows.tokens[: i + 1], rows.positions[: i + 1], rows.parents[: i + 1], first=i)
            wanted = Outputs(hidden=(cut - 1,))
            states.append(run(runtime, part, cache, wanted, blocks=range(cut)).hidden[cut - 1])
        hidden = np.concatenate(states)
        before = hidden.copy()
        found = logits(run(runtime, rows, cache, blocks=range(cut, n), hidden=hidden))
        same(subject, found, expected, f"rows resumed at block {cut}")
        assert np.array_equal(hidden, before), "the hidden states that were given have been changed"


@check("slices: blocks left out", needs="slices")
def left_out(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    n, ids = tested.spec.n_blocks, tokens(tested.spec, 16)
    some = ({0}, {n - 1}, {0, n - 1}, {*range(1, n)}, {*range(0, n, 2)})
    for chosen in [sorted(blocks) for blocks in some if may_run(tested.spec, sorted(blocks))]:
        found = [
            logits(run(runtime, Rows.chain(ids, 0), runtime.new_cache(16), blocks=chosen))
            for runtime in (tested, reference)
        ]
        close(found[0], found[1], f"blocks {chosen}")


def _mix(subject: Subject, runtime: Runtime) -> list[Callable[[], Call]]:
    """Calls of all sorts, each to be made on a cache of its own: prefill, decoding, a tree, a slice, a resumed row."""
    spec, can = runtime.spec, subject.capabilities
    ids, kept = tokens(spec, 60), (ends(spec)[0], spec.n_blocks - 1)

    def call(n: int, rows: Rows, **facts: object) -> Callable[[], Call]:
        return lambda: Call(rows, text(runtime, ids[:n])[0] if n else runtime.new_cache(80), **facts)  # type: ignore[arg-type]

    chain = Rows.chain
    found = [
        call(0, chain(ids[:18], 0), outputs=ALL_LOGITS),
        call(40, chain(ids[40:41], 40), outputs=ALL_LOGITS),
        call(7, chain(ids[7:9], 7), outputs=Outputs(logits=True, logits_from=1)),
        call(3, chain(ids[3:9], 3)),
        call(50, chain(ids[50:51], 50), outputs=Outputs(True, 3, hidden=kept if can.hidden else ())),
    ]
    if can.trees:
        found.append(call(21, tree(spec, 21), outputs=ALL_LOGITS))
    if can.slices:
        found.append(call(5, chain(ids[5:8], 5), blocks=range(kept[0] + 1), outputs=Outputs(hidden=(-1, kept[0]))))
        rest = range(1 if may_run(spec, range(1, spec.n_blocks)) else 0, spec.n_blocks)
        states = np.linspace(-1, 1, 2 * spec.width(rest[0] - 1), dtype=np.float32).reshape(2, -1)
        found.append(call(11, chain(ids[11:13], 11), blocks=rest, hidden=states, outputs=ALL_LOGITS))
    return found


@check("ragged: calls of all sorts in one forward are what they are alone")
def ragged(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    makers = _mix(subject, runtime)
    alone = [runtime.forward([make()])[0] for make in makers]
    every = list(range(len(makers)))
    for order in (every, every[::-1], [1, 4], [0, 1]):
        order = _fitting(order, [makers[i]().rows.count for i in order], subject.capabilities.largest_call)
        calls = [makers[i]() for i in order]
        results = runtime.forward(calls)
        assert len(results) == len(calls), f"{len(results)} results of {len(calls)} calls"
        for i, result in zip(order, results, strict=True):
            _same_result(subject, result, alone[i], f"call {i} of a ragged forward")
    assert runtime.forward([]) == [], "no calls have results"


def _fitting(order: list[int], rows: list[int], most: int) -> list[int]:
    """As many of the first as one forward takes."""
    return [i for i, total in zip(order, np.cumsum(rows).tolist(), strict=True) if total <= most]


def _same_result(subject: Subject, found: CallResult, expected: CallResult, what: str) -> None:
    for name in ("logits", "scores"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (theirs is None), f"{what}: {name} are there only alone or only together"
        if mine is not None:
            same(subject, mine, theirs, f"{what}, {name}")
    assert found.hidden.keys() == expected.hidden.keys(), f"{what}: hidden states after {sorted(found.hidden)}"
    for block, states in expected.hidden.items():
        same(subject, found.hidden[block], states, f"{what}, hidden states after block {block}")


@refused_without("hidden")
def _states(runtime: Runtime) -> CallResult:
    wanted = Outputs(hidden=(-1, ends(runtime.spec)[0], runtime.spec.n_blocks - 1))
    return run(runtime, Rows.chain(tokens(runtime.spec, 20), 0), runtime.new_cache(20), wanted)


@check("outputs: hidden states are the reference's", needs="hidden")
def hidden_states(subject: Subject, model: str) -> None:
    found, theirs = (_states(runtime).hidden for runtime in subject.both(model))
    assert sorted(found) == sorted(theirs), f"hidden states after {sorted(found)}"
    for block, states in theirs.items():
        close(found[block], states, f"hidden states after block {block}")


@check("outputs: each is what the logits say")
def outputs(subject: Subject, model: str) -> None:
    tested = subject.runtime(model)
    ids, last = tokens(tested.spec, 20), tested.spec.n_blocks - 1
    expected = text(tested, ids)[1]
    rows = Rows.chain(ids, 0)
    blocks = (-1, ends(tested.spec)[0], last) if subject.capabilities.hidden else ()
    for start in (0, 13, 19):
        wanted = Outputs(True, 5, subject.capabilities.logsum, hidden=blocks, logits_from=start)
        found = run(tested, rows, tested.new_cache(20), wanted)
        same(subject, logits(found), expected[start:], f"logits from row {start} on")
        _check_top(found, logits(found))
        assert sorted(found.hidden) == sorted(set(blocks)), f"hidden states after {sorted(found.hidden)}"
    nothing = run(tested, rows, tested.new_cache(20), Outputs())
    unwanted = (nothing.logits, nothing.ids, nothing.scores, nothing.logsum, nothing.entropy)
    assert not nothing.hidden, "hidden states that the call does not want"
    assert all(part is None for part in unwanted), "outputs that the call does not want"
    best = run(tested, rows, tested.new_cache(20), Outputs(top=1))
    assert best.logits is None, "logits, although only the best token is wanted"
    _check_top(best, expected)


@refused_without("temperatures")
def _heated(runtime: Runtime) -> CallResult:
    wanted = Outputs(True, logsum=True, temperature=0.7)
    return run(runtime, Rows.chain([1, 2, 3], 0), runtime.new_cache(4), wanted)


@check("outputs: the log-sum at another temperature", needs="temperatures")
def temperatures(subject: Subject, model: str) -> None:
    found = _heated(subject.runtime(model))
    assert found.logsum is not None, "no logsum, although it is wanted"
    expected = np.logaddexp.reduce(logits(found).astype(np.float64) / 0.7, axis=1)
    close(found.logsum, expected, "logsum at temperature 0.7", 1e-5)


def _entropies(runtime: Runtime, all_logits: bool) -> CallResult:
    wanted = Outputs(all_logits, 3, entropy=True, logits_from=1)
    return run(runtime, Rows.chain([1, 2, 3, 4], 0), runtime.new_cache(4), wanted)


_uncertain = refused_without("entropy")(partial(_entropies, all_logits=False))


@check("outputs: entropy", needs="entropy")
def entropy(subject: Subject, model: str) -> None:
    tested = subject.runtime(model)
    whole = _entropies(tested, True)
    for found in (_uncertain(tested), whole):
        assert found.entropy is not None
        close(found.entropy, entropy_of(logits(whole)), "entropy", 1e-5)


def _check_top(found: CallResult, all_logits: Array) -> None:
    """The best tokens are in order, the lowest id of equals first; logsum is that of all logits."""
    assert found.ids is not None, "no ids, although the best tokens are wanted"
    k = found.ids.shape[1]
    order = np.argsort(-all_logits, axis=1, kind="stable")[:, :k]
    assert found.ids.dtype == np.int32, f"ids are {found.ids.dtype}"
    best = np.take_along_axis(all_logits, found.ids.astype(np.int64), axis=1)
    close(best, np.take_along_axis(all_logits, order, axis=1), "logits of the best tokens", 1e-5)
    if found.scores is not None:
        close(found.scores, best, "scores", 1e-5)
    if found.logsum is not None:
        assert found.logsum.dtype == np.float64, f"logsum is {found.logsum.dtype}"
        close(found.logsum, np.logaddexp.reduce(all_logits.astype(np.float64), axis=1), "logsum", 1e-5)


@refused_without("attention_sums")
def _attention(runtime: Runtime) -> dict[int, Array]:
    ids = tokens(runtime.spec, 18)
    cache, _ = text(runtime, ids[:11])
    return dict(run(runtime, Rows.chain(ids[11:], 11), cache, Outputs(attention=True)).attention)


@check("outputs: attention sums", needs="attention_sums")
def attention(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    found, expected = _attention(tested), _attention(reference)
    assert found.keys() == expected.keys(), f"attention of blocks {sorted(found)}, wanted: {sorted(expected)}"
    for block, paid in expected.items():
        close(found[block], paid, f"attention paid in block {block}")
        facts, sum_of = tested.spec.attention[block], float(found[block].sum())
        total = 7 * facts.n_heads  # less what goes to a score of no token
        fits = sum_of < total - 1e-2 if facts.sink_logit else abs(sum_of - total) < 1e-2
        assert fits, f"attention of {total} queries sums to {sum_of}"


@check("limits: the largest call, and one row more")
def limits(subject: Subject, model: str) -> None:
    runtime, can = subject.runtime(model), subject.capabilities
    assert 1 <= can.prefill_chunk <= can.largest_call, f"prefill_chunk {can.prefill_chunk} of {can.largest_call} rows"
    n = can.largest_call
    if n + 1 > runtime.spec.context_length:
        return
    ids = tokens(runtime.spec, n + 1)
    found = logits(run(runtime, Rows.chain(ids[:n], 0), runtime.new_cache(n + 1), Outputs(True, logits_from=n - 1)))
    assert np.isfinite(found).all(), "logits of the largest call are not finite"
    _refused(lambda: run(runtime, Rows.chain(ids, 0), runtime.new_cache(n + 1)), f"a call of {n + 1} rows")


@check("refused: calls that contradict themselves")
def wrong_calls(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    spec, rows = runtime.spec, Rows.chain([1, 2, 3], 0)
    cache, n = runtime.new_cache(8), runtime.spec.n_blocks
    alike = (name for name in subject.models() if name != model and subject.kinds(name) == spec.kinds)
    other = next((name for name in alike if set(subject.facts(name)) <= set(subject.facts(model))), "")
    states = np.zeros((3, spec.hidden_size), np.float32)
    wrong: dict[str, Callable[[], object]] = {
        "two calls for one cache": lambda: runtime.forward([Call(rows, cache), Call(rows, cache)]),
        "blocks out of order": lambda: run(runtime, rows, cache, blocks=(1, 0)),
        "a block twice": lambda: run(runtime, rows, cache, blocks=(0, 0)),
        "a block that there is none of": lambda: run(runtime, rows, cache, blocks=(n,)),
        "too few hidden states": lambda: run(runtime, rows, cache, blocks=range(n), hidden=states[:2]),
        "hidden states of another width": lambda: run(runtime, rows, cache, blocks=range(n), hidden=states[:, :-1]),
        "a token outside the vocabulary": lambda: run(runtime, Rows.chain([1, spec.vocab_size], 0), cache),
        "no rows": lambda: run(runtime, Rows.chain([], 0), cache),
        "hidden states after a block that is not run": lambda: run(runtime, rows, cache, Outputs(hidden=(n,))),
    }
    if other:
        stranger = subject.runtime(other).new_cache(8)
        wrong["a cache of another model"] = lambda: run(runtime, rows, stranger)
    for what, call in wrong.items():
        _refused(call, what)
    assert cache.length == 0, "a refused call changed the cache"
    expected = text(runtime, [1, 2, 3])[1]
    same(subject, logits(run(runtime, rows, cache)), expected, "a call after refused ones")


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except UsageError as error:
        if "\n" in str(error):
            raise AssertionError(f"{what}: the error has more than one line") from None
        return
    raise AssertionError(f"{what}: not refused (UsageError)")


@check("load and release: the same afterwards")
def released(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids = tokens(runtime.spec, 12)
    cache, before = text(runtime, ids)
    runtime.release()
    same(subject, text(runtime, ids)[1], before, "logits after release()")
    runtime.load()
    cache.truncate(0)
    same(subject, logits(run(runtime, Rows.chain(ids, 0), cache)), before, "a cache made before release()")
