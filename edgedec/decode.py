"""THE causal loop: propose, forward, constrain, verify, keep, yield.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is its first call: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.constraints import Constraint
from edgedec.drafters import Draft, Drafter
from edgedec.errors import ContextFull, UsageError
from edgedec.rows import Rows
from edgedec.runtime import Logits, Runtime, forward
from edgedec.sampling import Sampling, draw, logprob, probs, top_logprobs
from edgedec.verify import walk

# Rows of a prefill call: enough to keep the arithmetic busy, few enough that activations stay small.
CHUNK = 128
_MASK_CELLS = 4 << 20
# What follows a stop token: no token at all, so that nothing drafted below it matches.
_NOTHING = -1


class Token(int):
    """A generated token: an int that also carries its log-probability, if asked for.

    `logprob` is the model's own, before temperature and the like; `top` the most likely tokens.
    """

    logprob: float | None
    top: tuple[tuple[int, float], ...]

    def __new__(cls, token: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = ()) -> Token:
        self = super().__new__(cls, token)
        self.logprob, self.top = logprob, top
        return self

    @property
    def token(self) -> int:
        return int(self)


@dataclass
class Stats:
    """What a generation cost. `calls`: forward calls that gave tokens, one each when plain.
    Times are of the loop alone: up to the first token, and all others."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    calls: int = 0
    proposed: int = 0
    accepted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish: str = ""

    def took(self, seconds: float) -> None:
        """One more call; the first is the one that read the prompt."""
        if self.calls:
            self.decode_s += seconds
        else:
            self.prefill_s = seconds
        self.calls += 1


@dataclass
class Context:
    """One text in the making: its tokens, and the cache that holds all but the last few of them."""

    ids: list[int]
    n_prompt: int
    cache: Cache
    sinks: int | None = None
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def pending(self) -> list[int]:
        return self.ids[self.cache.length :]

    def take(self) -> None:
        """Count one more accepted row, as if its token had been run, and the next one drawn, by itself."""
        self.cache.keep([0])
        self.rng.random()

    def make_room(self) -> None:
        """For a full context with sliding on: keep the first tokens and the latest, read again.

        What is kept is half of the capacity, so that one re-reading pays for many tokens; the
        kept tokens get new positions and forget what was dropped, exactly as in a new session.
        """
        capacity = self.cache.capacity
        if self.sinks is None:
            raise ContextFull(
                f"{len(self.ids)} tokens do not fit a context of {capacity}: shorten the prompt, ask for fewer "
                "tokens, or open the session with on_full='slide'"
            )
        latest = max(capacity // 2 - self.sinks, 1)
        dropped = len(self.ids) - self.sinks - latest
        self.ids[self.sinks : -latest] = []
        self.n_prompt = max(self.n_prompt - dropped, min(self.n_prompt, self.sinks))
        self.cache.truncate(0)


@dataclass(frozen=True)
class Ask:
    """What to generate: how to sample, how much, and what ends it."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None
    budget: int = 0

    @property
    def takes_largest(self) -> bool:
        """Is nothing wanted of the logits but which is the largest?"""
        return self.sampling.takes_largest and self.logprobs is None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"max_tokens {self.max_tokens}: must be 0 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs {self.logprobs}: must be from 0 to 100")


def decode(
    runtime: Runtime,
    context: Context,
    ask: Ask,
    drafter: Drafter,
    constraint: Constraint | None = None,
    stats: Stats | None = None,
) -> Generator[Token]:
    """Generate tokens behind `context.ids`; each is in `context.ids` when it is yielded.

    At every yield `context` is what plain decoding would have made of it: cache, random state and all.
    So it may be copied or saved there, and a generator may be closed at any time.
    """
    stats = stats if stats is not None else Stats()
    if not context.ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    left = ask.max_tokens
    try:
        while left is None or left > 0:
            if len(context.ids) > context.cache.capacity:
                if stats.generated and ask.max_tokens is None and context.sinks is None:
                    stats.finish = "context"
                    return
                context.make_room()
                drafter.reset()
            began = perf_counter()
            first = prefill(runtime, context)
            draft = drafter.propose(context.ids, _budget(ask, context, left))
            path, picked, logits = _step(runtime, context, first, draft, ask, constraint)
            stats.took(perf_counter() - began)
            stats.proposed += len(draft.tokens)
            stats.accepted += len(path) - 1
            for at, token in enumerate(picked[:left]):
                if at:
                    context.take()
                if token in ask.stop_tokens:
                    stats.finish = "eos"
                    return
                context.ids.append(token)
                stats.generated += 1
                if constraint is not None:
                    constraint.accept(token)
                yield _token(token, logits, path[at], ask.logprobs)
            drafter.observe(context.ids, len(path) - 1)
            left = left if left is None else left - len(picked)
        stats.finish = "length"
    finally:
        # For an interrupt from outside: everywhere else this holds already.
        context.cache.truncate(min(context.cache.length, len(context.ids)))


def prefill(runtime: Runtime, context: Context) -> Rows:
    """Read pending tokens in chunks until one chunk is left; returns that chunk as rows."""
    cache = context.cache
    while True:
        pending = context.pending()
        if not pending:
            # Everything is cached: the last token is run again, for its logits.
            cache.truncate(cache.length - 1)
            pending = context.ids[-1:]
        chunk = max(32, min(CHUNK, _MASK_CELLS // (cache.length + CHUNK)))
        rows = Rows.chain(pending[:chunk], cache.length)
        if len(pending) <= chunk:
            return rows
        forward(runtime, rows, cache, skip=len(rows) - 1)
        cache.keep(range(len(rows)))


def _step(
    runtime: Runtime, context: Context, first: Rows, draft: Draft, ask: Ask, constraint: Constraint | None
) -> tuple[list[int], list[int], Logits | None]:
    """One forward call: accepted rows and picked tokens (from the last pending row on), and logits if wanted.

    The cache then ends with the last known token; the accepted rows lie in order behind it, for `take`.
    """
    root = len(first) - 1
    rows = first
    if draft.tokens:
        parents = [parent + root + 1 for parent in draft.parents]
        rows = Rows.tree(
            [*first.tokens.tolist(), *draft.tokens], [*first.parents.tolist(), *parents], context.cache.length
        )
    largest = runtime.greedy(rows, context.cache, root) if constraint is None and ask.takes_largest else None
    logits = forward(runtime, rows, context.cache, skip=root) if largest is None else None

    def pick(row: int, path: Sequence[int]) -> int:
        if path and path[-1] in ask.stop_tokens:
            return _NOTHING
        if logits is not None:
            return _pick(logits[row - root], path, context, ask, constraint)
        assert largest is not None
        return _largest(largest[row - root], context)

    before = context.rng.bit_generator.state if draft.tokens else None
    path, picked = walk(rows, pick, root)
    context.cache.keep([*range(root), *path])
    if before is not None and len(path) > 1:
        context.cache.truncate(len(context.ids))
        context.rng.bit_generator.state = before
        context.rng.random()
    return [row - root for row in path], picked, logits


def _largest(token: np.int32, context: Context) -> int:
    """The runtime's own choice, as `_pick` would have drawn it."""
    context.rng.random()
    if token < 0:
        raise UsageError("logits: the largest is not finite; need at least one finite value and no NaN or +inf")
    return int(token)


def _pick(
    logits: NDArray[np.float32],
    path: Sequence[int],
    context: Context,
    ask: Ask,
    constraint: Constraint | None,
) -> int:
    if constraint is not None:
        logits = np.where(constraint.mask(path), logits, -np.inf)
    ids = [*context.ids, *path] if path else context.ids
    return draw(probs(logits, ask.sampling, ids, context.n_prompt), context.rng)


def _token(token: int, logits: Logits | None, row: int, n: int | None) -> Token:
    if n is None or logits is None:
        return Token(token)
    return Token(token, logprob(logits[row], token), tuple(top_logprobs(logits[row], n)))


def _budget(ask: Ask, context: Context, left: int | None) -> int:
    """How many drafted rows may be run: no more than can be used or cached."""
    room = context.cache.capacity - len(context.ids)
    return max(0, min(ask.budget, room, room if left is None else left - 1))
