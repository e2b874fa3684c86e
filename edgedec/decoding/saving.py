"""Saving and loading of an unfinished text: with its cache, or without, to recompute the cache at loading."""

from __future__ import annotations

from os import PathLike

from edgedec.cache import Cache
from edgedec.cache.snapshot import Snapshot, digest_of, read_snapshot, write_snapshot
from edgedec.decoding.apply_policy import restored
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.reading import read_source
from edgedec.decoding.scoring import drive
from edgedec.errors import SessionError, UsageError
from edgedec.runtime import Call, Rows, Runtime, suit


def save_context(path: str | PathLike[str], bundle: str, context: Context, drafter: Drafter, reread: bool) -> None:
    """Write the text, its cache, the random state and the drafter's state. bundle: the bundle's digest."""
    cache = context.cache
    if reread and context.policy is not None:
        raise SessionError(f"{path}: a cache with a policy is not what reading its text gives: save both")
    if reread and any(cache.slots(b) != cache.length for b in cache.spec.attention):
        raise SessionError(f"{path}: its cache holds less than its text, and reading that gives more: save both")
    arrays = cache.save()
    snapshot = Snapshot(
        bundle=bundle,
        ids=tuple(context.ids),
        n_prompt=context.n_prompt,
        kv=cache.kind,
        rng=dict(context.rng.bit_generator.state),
        length=cache.length,
        adapter=_adapter(context),
        policy="" if context.policy is None else context.policy.words,
        reread=digest_of(arrays) if reread else "",
    )
    known = {} if context.policy is None else context.policy.state()
    write_snapshot(path, snapshot, cache.spec, {} if reread else arrays, drafter.state(), known)


def load_context(path: str | PathLike[str], bundle: str, runtime: Runtime, context: Context, drafter: Drafter) -> None:
    """Restore a saved text. SessionError for a file that does not fit; the context and the drafter are then
    unchanged."""
    words = "" if context.policy is None else context.policy.words
    snapshot, arrays, state, known = read_snapshot(path, bundle, context.cache, _adapter(context), words)
    cache = _reread(path, runtime, context, snapshot) if snapshot.reread else None
    learned = drafter.state()
    try:
        drafter.restore(state)
        if context.policy is not None:
            context.policy = restored(context, arrays, known)
        if cache is None:
            context.cache.load(arrays)
    except (SessionError, UsageError) as error:
        drafter.restore(learned)
        raise SessionError(f"{path}: {error}") from None
    context.cache = cache or context.cache
    context.ids, context.n_prompt = list(snapshot.ids), snapshot.n_prompt
    context.rng.bit_generator.state = snapshot.rng
    drafter.reset()


def _adapter(context: Context) -> str:
    return "" if context.adapter is None else context.adapter.digest


def _reread(path: str | PathLike[str], runtime: Runtime, context: Context, snapshot: Snapshot) -> Cache:
    """The cache of a saved text, computed again from its tokens and compared with the saved digest."""
    cache, can = runtime.new_cache(context.cache.capacity), runtime.capabilities
    suit(cache, snapshot.length)
    if snapshot.length:
        text = Context(list(snapshot.ids), 0, cache, adapter=context.adapter, modes=context.modes)
        drive(runtime, read_source(text))
    while cache.length < snapshot.length:
        n = min(can.chunk(cache.length), snapshot.length - cache.length)
        rows = Rows.chain(snapshot.ids[cache.length : cache.length + n], cache.length)
        runtime.forward([Call(rows, cache, adapter=context.adapter)])
        cache.commit(range(n))
    if digest_of(cache.save()) != snapshot.reread:
        raise SessionError(
            f"{path}: reading its text again gives another cache than was saved (engine {runtime.name}"
            f"{', ' + can.isa if can.isa else ''}); load it where it was saved, or begin anew with its text"
        )
    return cache
