"""Drafts with the target itself on a part of its cache, for long contexts; the whole cache verifies.

Where a text is long, the time of a call is that of its keys and values, and most of them matter little for the next
token (MagicDec, TriForce). Two ways to look at fewer:

    view      the draft's rows see the first slots, the latest ones and the pages that their queries score highest in
              (Quest, LServe), in a fork that shares the text's pages: nothing is copied, nothing is missing
    a policy  of `--cache`: a fork of the text's cache, pruned by what the text's last rows look at. Only what stays is
              copied. It grows with the text, and is made anew after `refresh` tokens

The text is what it is without drafts. `auto` takes it for models of long contexts, and then nothing is drafted before a
step that reads everything takes `_GAIN` times as long as one that reads what the view shows, by the costs that are
measured while the text is made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.apply_policy import settle
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._models.reader import DraftReader, Reading
from edgedec.drafters._options import Length, Trim, unused
from edgedec.drafters._usage import usage_of
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import FULL, CachePolicy, PolicyHost, make_policy
from edgedec.runtime import Call, Outputs, Rows
from edgedec.runtime.view import PAGE, View

# The first slots, on which attention rests: a page.
_SINKS = 64
# By rank among those of `auto`: the others cost less. For contexts from _LONG on, from a step so many times as long.
_LONG, _GAIN = 8192, 2.0
# The last rows of the text, which show a policy what matters.
_WINDOW = 32
# Defaults: of a cache policy, and of a view.
_BUDGET, _REFRESH = 0.05, 256
_PAGES, _RECENT = 12, 128


def fits(host: DrafterContext) -> bool:
    """Whether `auto` may use it."""
    spec = host.runtime.spec
    return host.runtime.capabilities.views and bool(spec.attention) and spec.context_length >= _LONG


FACTS = DrafterFacts(auto=90, fits=fits, paper="Draft with a part of one's own cache (TriForce; MagicDec)")


def make(
    host: DrafterContext,
    policy: Annotated[
        str,
        Opt(
            "What the draft sees of the cache: view, or a cache policy; by default view where the engine can, snapkv "
            "where a budget or refresh is given."
        ),
    ] = "",
    budget: Annotated[float, Opt("Budget of a cache policy.", above=0)] = _BUDGET,
    least: Annotated[int, Opt("Nothing is drafted before the text has so many tokens.", 1)] = 2048,
    refresh: Annotated[int, Opt("Tokens after which a policy's cache is made anew.", 1)] = _REFRESH,
    pages: Annotated[int, Opt("Pages of a view that are chosen by score.", 0)] = _PAGES,
    recent: Annotated[int, Opt("Latest tokens of a view.", 1)] = _RECENT,
    length: Length = 8,
    trim: Trim = 0.25,
) -> SparseDrafter:
    can, spec = host.runtime.capabilities, host.runtime.spec
    pruned = (budget, refresh) != (_BUDGET, _REFRESH)
    policy = policy or ("view" if can.views and not pruned else "snapkv")
    if policy == FULL:
        raise UsageError("drafter sparse: policy=full: drafts like the target itself; name a policy, or view")
    reader: ViewReader | ForkReader
    if policy == "view":
        unused("sparse", "policy=view", budget=(budget, _BUDGET), refresh=(refresh, _REFRESH))
        reader = ViewReader(host, View(sinks=_SINKS, recent=recent, pages=pages))
    else:
        unused("sparse", f"policy={policy}", pages=(pages, _PAGES), recent=(recent, _RECENT))
        pruner = make_policy(f"{policy}:budget={budget:g}", PolicyHost(spec, can))
        assert pruner is not None
        reader = ForkReader(host, pruner, refresh)
    drafter = SparseDrafter(reader, spec.vocab_size, least, length)
    drafter.usage = usage_of(host, trim)
    return drafter


class SparseDrafter(ModelDrafter):
    """A `model` drafter whose model is the target. reader: of its pruned cache."""

    def __init__(self, reader: ViewReader | ForkReader, vocab: int, least: int, gamma: int) -> None:
        super().__init__(reader.runtime, vocab, gamma)
        self._sparse, self._reader, self._least = reader, reader, least
        # The seconds of a step by cached tokens, if they decide when drafting begins.
        self.step_seconds: Callable[[int], float] | None = None

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if not self.pays(context.cache.length) or len(context.ids) != context.cache.length + 1:
            return Draft()
        return self._after(context, nodes, min_path_prob)

    def pays(self, length: int) -> bool:
        """Whether a text is long enough that attending to a part of it saves time."""
        if length < self._least or self.step_seconds is None:
            return length >= self._least
        whole, part = (self.step_seconds(n) for n in (length, min(length, self._sparse.seen)))
        return whole >= _GAIN * part > 0

    def _after(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request | Offer, Any, Draft]:
        yield from self._sparse.follow(context)
        proposal = super().propose(context, nodes, min_path_prob)
        return proposal if isinstance(proposal, Draft) else (yield from proposal)

    def report(self) -> dict[str, Any]:
        return {**super().report(), **self._sparse.report()}


class ViewReader(DraftReader):
    """Reads with the target's runtime, in a fork of the target's cache: other drafters' rows may be pending there."""

    def __init__(self, host: DrafterContext, view: View) -> None:
        if not host.runtime.capabilities.views:
            raise UsageError(f"drafter sparse: policy=view: the engine {host.runtime.name} has no views; use snapkv")
        super().__init__(host.runtime)
        self.runtime, self._view = host.runtime, view
        self._views = {b: view for b, block in host.runtime.spec.attention.items() if block.window is None}

    @property
    def seen(self) -> int:
        """Tokens that a draft's row sees at most."""
        return _SINKS + int(self._view.numbers("recent", 1)[0]) + PAGE * (self._view.numbers("pages", 1)[0] + 1)

    def follow(self, context: Context) -> Generator[Request, Completed, None]:
        """The text's cache is the draft's: a fork shares its pages, and copies the last one of each block."""
        self._cache, self._adapter, self._rows = context.cache.fork(), context.adapter, None
        yield from ()

    def read(self, ids: Sequence[int], outputs: Outputs, room: int, settled: int | None = None) -> Reading:
        self._root = 0
        return (yield from self._run(Rows.chain(ids[-1:], self._cache.length), outputs))

    def _call(self, rows: Rows, outputs: Outputs) -> Call:
        return super()._call(rows, outputs)._replace(views=self._views)

    def reset(self) -> None:
        self._rows = None

    def report(self) -> dict[str, Any]:
        return {"policy": "view", "pages": self._view.pages, "recent": self._view.recent}


class ForkReader(DraftReader):
    """Reads with the target's runtime, on a pruned fork of the target's cache."""

    def __init__(self, host: DrafterContext, policy: CachePolicy, refresh: int) -> None:
        super().__init__(host.runtime)
        self.runtime, self._policy, self._refresh = host.runtime, policy, refresh
        self._made, self.forks = -1, 0

    @property
    def seen(self) -> int:
        """Tokens that a draft's row sees at most; before there is a cache, none."""
        return 0 if self._made < 0 else max(map(self._cache.slots, self._cache.spec.attention))

    def follow(self, context: Context) -> Generator[Request, Completed, None]:
        """Ensure a pruned cache of this text; a new one if there is none, or if it is old."""
        length = context.cache.length
        if 0 <= self._made <= length < self._made + self._refresh:
            return
        window = min(_WINDOW, length - 1)
        policy = self._policy.fork()
        policy.reset()
        twin = Context(
            list(context.ids),
            0,
            context.cache.fork(length - window, context.cache.capacity),
            adapter=context.adapter,
            policy=policy,
        )
        yield from settle(twin, self._chunk)
        self._cache, self._ids, self._rows = twin.cache, list(context.ids[:length]), None
        self._sure, self._base, self._made = length, 0, length
        self._adapter = context.adapter
        self.forks += 1

    def reset(self) -> None:
        """Another text: its cache is another one."""
        self._made, self._sure, self._rows, self._ids = -1, 0, None, []
        self._cache = self.runtime.new_cache(1)

    def report(self) -> dict[str, Any]:
        return {"policy": self._policy.words, "caches": self.forks}
