"""Parity: each kind of block, each cache format and each option of a call gives what the reference gives."""

from __future__ import annotations

import numpy as np

from edgedec.bundle.adapter import LoraAdapter, LowRank, adaptable
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, Runtime
from edgedec.spec import LatentAttention, ModelSpec, Moe, PreRouter
from edgedec.spec.branches import may_enter
from edgedec.testing.conformance.compare import EXACT, close, logits, near, read, run, text, tokens
from edgedec.testing.conformance.suite import Subject, check, refused_without

# How far logits of a small cache may be from those of a float32 one, and of quantized weights on rounded activations
# from those on float32 ones (another expert may then be chosen): root mean squares, of the spread.
_KV = {"f32": 1e-4, "f16": 0.01, "int8": 0.25, "int4": 0.9}
_ROUNDED, _ROUNDED_ROUTES = 0.05, 0.5
# Where another expert may be chosen, a quarter of the rows comes before the first that has one.
_BEFORE_ROUTES = 0.1


def _within(subject: Subject, model: str) -> float:
    """How close logits have to be to the reference's: activations may be rounded where weights are quantized."""
    formats = {tensor.format for tensor in subject.bundle(model).manifest.tensors.values()}
    return EXACT if formats <= {"f32", "f16"} else 0.2


@check("parity: a text in one call")
def in_one_call(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    ids = tokens(tested.spec, 24)
    close(text(tested, ids)[1], text(reference, ids)[1], "logits", _within(subject, model))


@check("parity: a text in chunks and one by one")
def in_chunks(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    ids, found = tokens(tested.spec, 30), []
    cache = tested.new_cache(40)
    for size in (11, 7, 2, *[1] * 10):
        found.append(read(tested, ids[cache.length :][:size], cache))
    close(np.concatenate(found), text(reference, ids)[1], "logits", _within(subject, model))


@check("parity: KV formats", "plain", "options", "hybrid")
def kv_formats(subject: Subject, model: str) -> None:
    ids = tokens(subject.runtime(model).spec, 24)
    expected = text(subject.reference(model, "f32"), ids)[1]
    for kv in subject.capabilities.kv_formats:
        tested = subject.runtime(model, kv)
        cache = tested.new_cache(64)
        assert cache.kv in subject.capabilities.kv_formats, f"KV {kv}: the cache says its format is {cache.kv!r}"
        near(read(tested, ids, cache), expected, f"KV {kv}", _KV[kv])


@check("parity: quantized weights", "plain", "experts", "hybrid")
def quantized(subject: Subject, model: str) -> None:
    if model == "bundle":
        return
    within = _ROUNDED_ROUTES if "moe" in subject.bundle(model).spec.kinds else _ROUNDED
    for fmt in ("int8", "int4", *(("int3", "int2") if subject.low_bits else ())):
        tested, reference = subject.runtime(model, fmt=fmt), subject.reference(model, fmt=fmt)
        ids = tokens(tested.spec, 24)
        found, expected = text(tested, ids)[1], text(reference, ids)[1]
        near(found, expected, f"{fmt} weights", within)
        if within > _ROUNDED:
            rows = np.argsort(np.square(found.astype(np.float64) - expected).sum(1))[: len(ids) // 4]
            near(found[rows], expected[rows], f"{fmt} weights: a quarter of the rows", _BEFORE_ROUTES)


@refused_without("groups")
def _grouped(runtime: Runtime) -> list[np.ndarray]:
    """Two blocks of rows that see each other, one after the other, and a row after them."""
    ids = tokens(runtime.spec, 18)
    cache, _ = text(runtime, ids[:10])
    chain = Rows.chain(ids[10:], 10)
    rows = Rows(chain.tokens, chain.positions, chain.parents, groups=np.array([0, 0, 0, -1, 1, 1, 1, 1]))
    found = [logits(run(runtime, rows, cache))]
    cache.commit(range(8))
    return [*found, read(runtime, [5], cache)]


@check("parity: rows in groups", "plain", "windows", "options", "experts", needs="groups")
def groups(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    if tested.spec.recurrent:
        return
    found = [_grouped(runtime) for runtime in (tested, reference)]
    plain = text(tested, tokens(tested.spec, 18))[1][10:18]
    assert np.abs(found[0][0] - plain).max() > 0.01, "rows of a group are what they are without it"
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs, "logits of rows in groups", _within(subject, model))


@refused_without("selections")
def _selected(runtime: Runtime) -> list[np.ndarray]:
    """A text of which all blocks from the middle on hold every third token only; then more of it, and a fork, saved
    and loaded."""
    spec, kept = runtime.spec, [0, 3, 6, 9, 12, 15, 18, 19]
    cut = max(b for b in range(spec.n_blocks // 2 + 1) if may_enter(spec, b))
    ids, lower, upper = tokens(spec, 24), range(cut), range(cut, spec.n_blocks)
    cache, rows = runtime.new_cache(64), Rows.chain(ids[:20], 0)
    below = run(runtime, rows, cache, Outputs(hidden=(cut - 1,)), blocks=lower).hidden[cut - 1]
    found = [logits(run(runtime, rows.select(kept), cache, blocks=upper, hidden=below[kept]))]
    cache.commit(range(20))
    assert cache.length == 20, f"length {cache.length} after a commit of 20 rows"
    for b in spec.attention:
        assert cache.slots(b) == (20 if b < cut else len(kept)), f"block {b} holds {cache.slots(b)} slots"
        assert b < cut or cache.positions(b).tolist() == kept, f"block {b}: positions {cache.positions(b).tolist()}"
    found.append(read(runtime, ids[20:22], cache))
    twin, loaded = cache.fork(), runtime.new_cache(64)
    loaded.load({name: array.copy() for name, array in cache.save().items()})
    found += [read(runtime, ids[22:], each) for each in (twin, loaded, cache)]
    if not spec.recurrent:
        cache.truncate(8)
        found.append(read(runtime, ids[8:10], cache))
    return found


@check("parity: blocks run on fewer rows", needs="selections")
def selections(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    if not subject.capabilities.slices or tested.spec.owners:  # which are read for the same rows
        return
    names = ("the rows that are left", "the next tokens", "a fork", "a loaded cache", "the cache itself", "truncated")
    whole = text(tested, tokens(tested.spec, 24))[1]
    for name, mine, theirs in zip(names, _selected(tested), _selected(reference), strict=False):
        close(mine, theirs, name, _within(subject, model))
        if name == "the next tokens":
            assert np.abs(mine - whole[20:22]).max() > 1e-3, "the tokens that were left out are seen all the same"


@refused_without("embeddings")
def _embedded(runtime: Runtime) -> np.ndarray:
    rows = Rows.embedded(np.full((6, runtime.spec.hidden_size), 0.1, np.float32), 0)
    return logits(run(runtime, rows, runtime.new_cache(8)))


@check("embeddings instead of tokens", needs="embeddings")
def embeddings(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    if tested.spec.lookups:  # tokens name a part of what their rows read
        return
    close(_embedded(tested), _embedded(reference), "logits", _within(subject, model))
    ids = tokens(tested.spec, 9)
    cache, expected = text(tested, ids)
    states = run(tested, Rows.chain(ids, 0), tested.new_cache(9), Outputs(hidden=(-1,))).hidden[-1]
    cache.truncate(0)
    close(logits(run(tested, Rows.embedded(states, 0), cache)), expected, "embeddings of the tokens")


@refused_without("drop")
def _dropped(runtime: Runtime) -> list[np.ndarray]:
    """Slots of one attention block are forgotten: what follows in the cache, a fork, and after truncation."""
    ids = tokens(runtime.spec, 24)
    cache, _ = text(runtime, ids[:20])
    held = list(runtime.spec.attention) or [0]
    first, last = held[0], held[-1]
    cache.drop(last, [2, 3, 4, 11, 19])
    assert cache.slots(last) == 15, f"{cache.slots(last)} slots are left of 20 - 5"
    assert cache.slots(first) == (20 if first != last else 15), "slots of another block were dropped"
    stay = [0, 1, *range(5, 11), *range(12, 19)]
    assert cache.positions(last).tolist() == stay, f"positions {cache.positions(last).tolist()}"
    found = [read(runtime, ids[20:22], cache), read(runtime, ids[22:], cache.fork())]
    cache.drop(last, [0])
    return [*found, read(runtime, ids[22:], cache)]


@check("parity: dropped slots", "plain", "windows", "options", "hybrid", needs="drop")
def drop(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    if not tested.spec.attention:
        return
    for mine, theirs in zip(_dropped(tested), _dropped(reference), strict=True):
        close(mine, theirs, "logits after slots were dropped", _within(subject, model))


def adapter(spec: ModelSpec) -> LoraAdapter:
    """Low-rank weights for what adapters may change but experts, pre-routers and latent attention."""
    rng, matrices, may = np.random.default_rng(3), dict[str, LowRank](), adaptable(spec)
    for b, block in enumerate(spec.blocks):
        for name, (out, width) in block.matrices(spec.hidden_size).items():
            if f"blocks.{b}.{name}" in may and not isinstance(block, Moe | LatentAttention | PreRouter):
                a, c = (rng.standard_normal(shape, np.float32) for shape in ((4, width), (out, 4)))
                matrices[f"blocks.{b}.{name}"] = LowRank(a * np.float32(0.3 / width**0.5), c)
    return LoraAdapter("conformance", "0" * 64, matrices)


@refused_without("adapters")
def _adapted(runtime: Runtime) -> np.ndarray:
    return text(runtime, tokens(runtime.spec, 12), adapter=adapter(runtime.spec))[1]


@check("parity: an adapter, alone and beside calls without it", needs="adapters")
def adapters(subject: Subject, model: str) -> None:
    tested, reference = subject.both(model)
    low_rank, ids = adapter(tested.spec), tokens(tested.spec, 12)
    expected, plain = _adapted(reference), text(tested, ids)[1]
    assert np.abs(expected - plain).max() > 0.01, "the adapter changes nothing"
    close(_adapted(tested), expected, "logits with an adapter", _within(subject, model))
    rows, capacity = Rows.chain(ids, 0), len(ids)
    calls = [
        Call(rows, tested.new_cache(capacity), outputs=ALL_LOGITS, adapter=each) for each in (None, low_rank, None)
    ]
    for result, wanted in zip(tested.forward(calls), (plain, expected, plain), strict=True):
        close(logits(result), wanted, "one of three calls, the second with an adapter", _within(subject, model))
