"""THE causal loop: propose, forward, constrain, verify, keep, yield.

Plain, speculative and constrained decoding are this loop with an empty drafter, a drafter, and a
constraint. Prefill is its first call: the tokens not yet in the cache are a chain of rows, and the
draft hangs below the last of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.constraint import Constraint
from edgedec.decoding.context import Context
from edgedec.decoding.verify import VERIFIERS, walk
from edgedec.drafters import Draft, Drafter, Sampled, Seen
from edgedec.errors import UsageError
from edgedec.runtime.core import Call, Output, Runtime, Want, compute
from edgedec.runtime.rows import Rows
from edgedec.sampling import Probs, Sampling, draw, logprob, probs, top_logprobs

# Rows of a prefill call: enough to keep the arithmetic busy, few enough that activations stay small.
CHUNK = 128
_MASK_CELLS = 4 << 20
# What follows a stop token: no token at all, so that nothing drafted below it matches.
_NOTHING = -1
_ANYTHING = Probs(np.zeros(1, np.int64), np.ones(1))
_LARGEST, _ALL, _NO_MORE = Want(logits=False, top=1), Want(), Want(logits=False)


class Token(int):
    """A generated token: an int that also carries its log-probability, if asked for.

    `logprob` is the model's own, before temperature and the like; `top` the most likely tokens. `by`: the
    drafter that had guessed it, empty if none had.
    """

    logprob: float | None
    top: tuple[tuple[int, float], ...]
    by: str

    def __new__(
        cls, token: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = (), by: str = ""
    ) -> Token:
        self = super().__new__(cls, token)
        self.logprob, self.top, self.by = logprob, top, by
        return self

    @property
    def token(self) -> int:
        return int(self)


@dataclass(frozen=True)
class Turn:
    """One call of a generation, for who wants to look: the draft, what the call showed, and how many tokens
    stood before. `seconds`: all of it, drafting and verification included."""

    length: int
    draft: Draft
    seen: Seen
    seconds: float


@dataclass
class Stats:
    """What a generation cost. `calls`: forward calls that gave tokens, one each when plain.
    Times are of the loop alone: up to the first token, and all others, `forward_s` of which the calls took."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    calls: int = 0
    proposed: int = 0
    accepted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    forward_s: float = 0.0
    finish: str = ""

    def took(self, seconds: float, forward: float) -> None:
        """One more call; the first is the one that read the prompt."""
        if self.calls:
            self.decode_s += seconds
            self.forward_s += forward
        else:
            self.prefill_s = seconds
        self.calls += 1


@dataclass(frozen=True)
class Ask:
    """What to generate: how to sample, how much, and what ends it."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None

    @property
    def takes_largest(self) -> bool:
        """Is nothing wanted of the logits but which is the largest?"""
        return self.sampling.takes_largest and self.logprobs is None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"max_tokens {self.max_tokens}: must be 0 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs {self.logprobs}: must be from 0 to 100")


class Answer(NamedTuple):
    """What came of a call; `rows` of all texts that shared it, and what it took."""

    output: Output
    rows: int
    seconds: float


Steps = Generator[Call | Token, Answer, None]


def decode(
    runtime: Runtime,
    context: Context,
    ask: Ask,
    drafter: Drafter,
    constraint: Constraint | None = None,
    stats: Stats | None = None,
    trace: list[Turn] | None = None,
) -> Generator[Token]:
    """The loop on a runtime of its own: one text, one call at a time."""
    return drive(runtime, steps(context, ask, drafter, constraint, stats, trace))


def drive(runtime: Runtime, loop: Steps) -> Generator[Token]:
    """Answer the calls of one loop; what is left are its tokens."""
    try:
        item = next(loop)
        while True:
            if isinstance(item, Call):
                began = perf_counter()
                output = compute(runtime, *item)
                item = loop.send(Answer(output, item.rows.count, perf_counter() - began))
            else:
                yield item
                item = next(loop)
    except StopIteration:
        return
    finally:
        loop.close()


def steps(
    context: Context,
    ask: Ask,
    drafter: Drafter,
    constraint: Constraint | None = None,
    stats: Stats | None = None,
    trace: list[Turn] | None = None,
) -> Steps:
    """Generate tokens behind `context.ids`; each is in `context.ids` when it is yielded. Yields the calls it needs
    as well, and waits for the answer of each: who drives it may answer many loops by one call.

    At every token `context` is what plain decoding would have made of it: cache, random state and all.
    So it may be copied or saved there, and a generator may be closed at any time.
    """
    stats = stats if stats is not None else Stats()
    stats.prompt, stats.cached = len(context.ids), context.cache.length
    if not context.ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    context.sampling, left = ask.sampling, ask.max_tokens
    context.forced = tuple if constraint is None else constraint.forced
    try:
        if constraint is not None and constraint.done:
            stats.finish = "eos"
            return
        while left is None or left > 0:
            if len(context.ids) > context.cache.capacity:
                if stats.generated and ask.max_tokens is None and context.sinks is None:
                    stats.finish = "context"
                    return
                context.make_room()
                drafter.reset()
            began = perf_counter()
            first = yield from _prefill(context)
            draft = drafter.propose(context, _room(context, left), 0.0)
            seen, replays = yield from _step(context, first, draft, ask, constraint, drafter.wants)
            drafter.observe(seen)
            seconds = perf_counter() - began
            stats.took(seconds, seen.seconds)
            if trace is not None:
                trace.append(Turn(len(context.ids), draft, seen, seconds))
            stats.proposed += len(draft.tokens)
            stats.accepted += len(seen.path) - 1
            for at, token in enumerate(seen.picked[:left]):
                if at:
                    # One more accepted row counts, and so does its draw, as if its token had been run by itself.
                    context.cache.keep([0])
                    if replays:
                        context.rng.random()
                if token in ask.stop_tokens:
                    stats.finish = "eos"
                    return
                context.ids.append(token)
                stats.generated += 1
                if constraint is not None:
                    constraint.accept(token)
                yield _token(token, draft, seen, at, ask.logprobs)
                if constraint is not None and constraint.done:
                    stats.finish = "eos"
                    return
            left = left if left is None else left - len(seen.picked)
        stats.finish = "length"
    finally:
        context.forced = tuple
        # For an interrupt from outside: everywhere else this holds already.
        context.cache.truncate(min(context.cache.length, len(context.ids)))


def _prefill(context: Context) -> Generator[Call, Answer, Rows]:
    """Read pending tokens in chunks until one chunk is left; returns that chunk as rows."""
    cache = context.cache
    if len(context.ids) == cache.length + 1:
        return Rows.chain(context.ids[-1:], cache.length)
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
        yield Call(rows, cache, len(rows) - 1, _NO_MORE)
        cache.keep(range(len(rows)))


def _step(
    context: Context,
    first: Rows,
    draft: Draft,
    ask: Ask,
    constraint: Constraint | None,
    wants: Want,
) -> Generator[Call, Answer, tuple[Seen, bool]]:
    """One forward call, verified; and whether its draws are those of plain decoding, one a token (greedy: none).

    The cache then ends with the last known token; the accepted rows lie in order behind it.
    """
    root, length = len(first) - 1, context.cache.length
    rows = first
    if len(draft.tokens):
        parents = [parent + root + 1 for parent in draft.parents]
        rows = Rows.tree([*first.tokens.tolist(), *draft.tokens], [*first.parents.tolist(), *parents], length)
    if constraint is None and ask.takes_largest:
        wants |= _LARGEST
    else:
        wants |= _ALL
    output, total, seconds = yield Call(rows, context.cache, root, wants, draft.begun)
    draws = ask.sampling.temperature > 0
    sampled = draft.sampled if draws and len(draft.tokens) else None
    replays = draws and sampled is None
    before = context.rng.bit_generator.state if replays and len(draft.tokens) else None
    path, picked = _verify(rows, root, output, sampled, context, ask, constraint)
    context.cache.keep([*range(root), *path] if root else path)
    if len(path) > 1:
        context.cache.truncate(length + root + 1)
        if before is not None:
            context.rng.bit_generator.state = before
            context.rng.random()
    path = [row - root for row in path] if root else path
    return Seen(rows, root, path, picked, output, seconds, total), replays


def _verify(
    rows: Rows,
    root: int,
    output: Output,
    sampled: Sampled | None,
    context: Context,
    ask: Ask,
    constraint: Constraint | None,
) -> tuple[list[int], list[int]]:
    """The accepted rows and the tokens picked. Behind a stop token comes nothing that anyone will see."""
    logits = output.logits
    largest = output.ids[:, 0].tolist() if logits is None and output.ids is not None else []
    stops, greedy = ask.stop_tokens, ask.sampling.temperature == 0

    def target(row: int, path: Sequence[int]) -> Probs:
        assert logits is not None
        if path and path[-1] in stops:
            return _ANYTHING
        return _target(logits[row - root], path, context, ask, constraint)

    def pick(row: int, path: Sequence[int]) -> int:
        if path and path[-1] in stops:
            return _NOTHING
        if logits is None:
            return _finite(largest[row - root])
        found = target(row, path)
        return int(found.ids[0]) if greedy else draw(found, context.rng)

    if sampled is None:
        return walk(rows, pick, root)
    return VERIFIERS[sampled.verifier](rows, target, sampled.probs, context.rng, root)


def _finite(token: int) -> int:
    """The runtime's own choice, unless there was none."""
    if token < 0:
        raise UsageError("logits: the largest is not finite; need at least one finite value and no NaN or +inf")
    return token


def _target(
    logits: NDArray[np.float32],
    path: Sequence[int],
    context: Context,
    ask: Ask,
    constraint: Constraint | None,
) -> Probs:
    if constraint is not None:
        logits = np.where(constraint.mask(path), logits, -np.inf)
    ids = [*context.ids, *path] if path else context.ids
    return probs(logits, ask.sampling, ids, context.n_prompt)


def _token(token: int, draft: Draft, seen: Seen, at: int, n: int | None) -> Token:
    # The token behind row `at` of the path was drafted if the path goes on.
    by = draft.by[seen.path[at + 1] - 1] if draft.by and at + 1 < len(seen.path) else ""
    if n is None or seen.output.logits is None:
        return Token(token, by=by)
    logits = seen.output.logits[seen.path[at]]
    return Token(token, logprob(logits, token), tuple(top_logprobs(logits, n)), by)


def _room(context: Context, left: int | None) -> int:
    """How many drafted rows may be run: no more than can be used or cached."""
    room = context.cache.capacity - len(context.ids)
    return max(0, room if left is None else min(room, left - 1))
