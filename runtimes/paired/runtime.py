"""A runtime over two engines: one for prefill, one for decode, with handover of texts between them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import Call, CallResult, Capabilities, Runtime, check_calls
from edgedec.runtimes.paired.cache import DECODE, PREFILL, PairedCache, Sides
from edgedec.runtimes.paired.costs import Rule
from edgedec.runtimes.paired.layout import Handover

# Capabilities declared if either engine has them: a call that needs one runs on that engine.
_EITHER = (
    *("trees", "groups", "slices", "selections", "embeddings", "views", "queries", "attention_sums", "adapters"),
    *("logsum", "hidden", "temperatures", "drop", "drop_by_head", "merge", "offload", "masks"),
)


class PairedRuntime:
    """`decode` runs all calls except those that the rule assigns to `prefill`. If both share layout and arithmetic,
    results equal those of one engine. `calls`: calls run by each, decode first."""

    def __init__(self, decode: Runtime, prefill: Runtime, rule: Rule) -> None:
        there, back = Handover.between(decode, prefill), Handover.between(prefill, decode)
        if there is None or back is None:
            raise RuntimeUnavailable(f"engines {prefill.name} and {decode.name} keep caches that have no common layout")
        self.name = f"{prefill.name}+{decode.name}"
        self.spec, self._rule = decode.spec, rule
        self.capabilities = _joined(decode.capabilities, prefill.capabilities, back.same)
        self._sides = Sides((decode, prefill), (back, there), self.capabilities.page_slots)
        self._strict = [_superset(self._sides.can(side), self.capabilities) for side in (DECODE, PREFILL)]
        self.calls = [0, 0]

    @property
    def engines(self) -> tuple[Runtime, Runtime]:
        """The engines for decode and for prefill."""
        return self._sides.engines

    @property
    def moved(self) -> list[tuple[int, int]]:
        """Tokens handed over to each engine, and the number of handovers."""
        return self._sides.moved

    @property
    def moved_bytes(self) -> list[int]:
        """Bytes of these tokens."""
        return self._sides.moved_bytes

    @property
    def pages(self) -> int:
        """Pages of all caches of both engines."""
        return sum(int(getattr(engine, "pages", 0)) for engine in self.engines)

    @property
    def longest(self) -> int | None:
        """The longest text, in tokens, that the engines' memory for caches holds; None: no limit is known."""
        found = [_longest(engine) for engine in self.engines]
        return None if None in found else max(most for most in found if most is not None)

    def load(self) -> None:
        for engine in self.engines:
            engine.load()

    def release(self) -> None:
        for engine in self.engines:
            engine.release()

    def new_cache(self, capacity: int) -> PairedCache:
        return PairedCache(self._sides, [engine.new_cache(capacity) for engine in self.engines])

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        sides = [self._side(call) for call in calls]
        if len(set(sides)) == 1:
            return self._run(sides[0], calls)
        own = [[call for call, at in zip(calls, sides, strict=True) if at == side] for side in (DECODE, PREFILL)]
        with ThreadPoolExecutor(1, "edgedec-prefill") as other:
            reading = other.submit(self._run, PREFILL, own[PREFILL])
            found = [self._run(DECODE, own[DECODE]), reading.result()]
        results = [iter(group) for group in found]
        return [next(results[side]) for side in sides]

    def _run(self, side: int, calls: Sequence[Call]) -> list[CallResult]:
        """Run calls on one engine. If the engine for prefill has no memory left, calls that begin a tree run on the
        other."""
        try:
            found = self.engines[side].forward([_on(call, side) for call in calls])
        except MemoryError:
            if side == DECODE or not all(_anew(call) and _own(call).bring(DECODE) for call in calls):
                raise
            return self._run(DECODE, calls)
        self.calls[side] += len(calls)
        return found

    def _side(self, call: Call) -> int:
        """Which engine runs a call; its cache then has all of the text."""
        cache, rows = call.cache, call.rows
        if not isinstance(cache, PairedCache):
            raise UsageError("the cache is of another runtime: use one of this runtime's new_cache()")
        if cache.pending >= 0 and not _anew(call):
            return cache.pending  # rows of a tree stay together
        after = rows.count + (cache.lacking()[DECODE] if cache.follows(DECODE) else cache.length)
        wanted = PREFILL if self._rule.prefills(rows.count, cache.lacking(), after) else DECODE
        for side in (wanted, 1 - wanted):
            if self._takes(side, call) and cache.bring(side):
                return side
        raise UsageError(f"neither {self.engines[DECODE].name} nor {self.engines[PREFILL].name} runs such a call")

    def _takes(self, side: int, call: Call) -> bool:
        """Whether an engine declares all that a call needs and has memory for a text of that length."""
        most = _longest(self.engines[side])
        if most is not None and call.cache.length + len(call.rows) > most:
            return False
        if self._strict[side]:
            return True
        try:
            check_calls((call,), self.spec, self._sides.can(side))
        except UsageError:
            return False
        return True


def _longest(engine: Runtime) -> int | None:
    found: int | None = getattr(engine, "longest", None)
    return found


def _anew(call: Call) -> bool:
    """Whether a call begins a tree, so that either engine may run it."""
    return call.rows.first == 0 and call.blocks is None and call.hidden is None


def _own(call: Call) -> PairedCache:
    assert isinstance(call.cache, PairedCache)
    return call.cache


def _on(call: Call, side: int) -> Call:
    """The call with the cache of one side."""
    cache = _own(call)
    cache.begin(side)
    return call._replace(cache=cache.at(side))


def _joined(decode: Capabilities, prefill: Capabilities, same: bool) -> Capabilities:
    """The capabilities of the pair. same: do they share the layout of their caches, and so their arithmetic?"""
    either = {name: getattr(decode, name) or getattr(prefill, name) for name in _EITHER}
    largest = min(decode.largest_call, prefill.largest_call)
    return Capabilities(
        kinds=tuple(kind for kind in decode.kinds if kind in prefill.kinds),
        kv_formats=tuple(kv for kv in decode.kv_formats if kv in prefill.kv_formats),
        batch_invariant=same and decode.batch_invariant and prefill.batch_invariant,
        **either,
        attach=decode.attach and prefill.attach,
        best_k=decode.best_k,
        page_slots=decode.page_slots if decode.page_slots == prefill.page_slots else 0,
        largest_call=largest,
        prefill_chunk=min(largest, prefill.prefill_chunk),
        row_buckets=decode.row_buckets,
        rounding=max(decode.rounding, prefill.rounding),
        sampler=decode.sampler or prefill.sampler,
        drafting=decode.drafting or prefill.drafting,
        device=decode.device,
        driver="; ".join(driver for driver in (decode.driver, prefill.driver) if driver),
        threads=max(decode.threads, prefill.threads),
        isa=decode.isa or prefill.isa,
    )


def _superset(own: Capabilities, joined: Capabilities) -> bool:
    """Whether an engine declares everything that the pair declares."""
    flags = [field.name for field in fields(Capabilities) if field.name in _EITHER and field.name != "masks"]
    return all(getattr(own, name) or not getattr(joined, name) for name in flags)
