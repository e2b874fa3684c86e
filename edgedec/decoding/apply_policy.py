"""Application of a cache policy: before each step of the loop, and wherever else a text is read."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from edgedec.cache.base import Arrays
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.errors import UsageError
from edgedec.policies import CachePolicy, PolicyState, TextSize, WorkingPolicy
from edgedec.runtime import Call, Capabilities, Outputs, Rows
from edgedec.runtime.devices import CPU

if TYPE_CHECKING:
    from edgedec.decoding.draft import Drafter

_NONE = Outputs()


def settle(context: Context, most: int, drafter: Drafter | None = None) -> Generator[Request, Completed, None]:
    """Read all pending tokens but the last under the context's policy, and make the decisions that are due. `most`:
    rows of a call; drafter: receives the result of each chunk if its `reads` name any outputs."""
    policy, cache = context.policy, context.cache
    if policy is None:
        return
    if context.together:
        raise UsageError(f"--cache {policy.words}: a source whose tokens see each other is kept as it is; go without")
    policy.follow(context.ids)
    if cache.length >= len(context.ids):
        cache.truncate(len(context.ids) - 1)
        policy.trim(cache)
    if len(context.ids) - cache.length > 1:
        yield from policy.prefill(cache, context.pending()[:-1], most, context.adapter)
        yield from _read(context, policy, most, drafter)
        policy.end(cache)
    policy.settle(cache)
    if isinstance(policy, WorkingPolicy):
        yield from policy.work(cache, context.adapter)


def _read(
    context: Context, policy: CachePolicy, most: int, drafter: Drafter | None
) -> Generator[Request, Completed, None]:
    """Read the pending tokens in chunks of the policy's size."""
    cache = context.cache
    while (left := len(context.ids) - cache.length - 1) > 0:
        size, outputs = policy.chunk(cache, left, most)
        rows = Rows.chain(context.ids[cache.length : cache.length + size], cache.length)
        reads = _NONE if drafter is None else drafter.reads
        done = yield Call(rows, cache, outputs=reads | outputs, adapter=context.adapter)
        cache.commit(range(len(rows)))
        policy.read(cache, done.result)
        if reads != _NONE and drafter is not None and (reading := drafter.read(context, rows, done.result)) is not None:
            yield from reading


def most_held(context: Context, length: int, can: Capabilities) -> int:
    """The most cache tokens that a text needs from here on if it grows to `length` tokens. On a device a page spans all
    blocks, and the blocks keep different tokens under a policy: there the whole length counts."""
    policy, cache = context.policy, context.cache
    if policy is None or can.device != CPU:
        return length
    held = max(cache.slots(b) for b in cache.spec.attention)
    most = policy.peak(TextSize(held, cache.length, min(len(context.ids), length), length, can.prefill_chunk))
    if context.sinks is None or length < cache.capacity:
        return most
    again = max(cache.capacity // 2, context.sinks + 1)  # what `Context.make_room` leaves is read anew
    return max(most, policy.peak(TextSize(0, 0, again, length, can.prefill_chunk)))


def most_of_any(policy: CachePolicy | None, length: int, can: Capabilities) -> int:
    """The most cache tokens that any text of `length` tokens needs, however much of it is prompt."""
    if policy is None or can.device != CPU:
        return length
    return max(policy.peak(TextSize(0, 0, prompt, length, can.prefill_chunk)) for prompt in (1, length))


def restored(context: Context, arrays: Arrays, known: PolicyState) -> CachePolicy:
    """The context's policy as it was when these arrays were saved; SessionError if they do not belong together."""
    assert context.policy is not None
    cache = context.cache.fork(0)
    cache.load(arrays)
    policy = context.policy.fork()
    policy.reset()
    policy.restore(known, cache)
    return policy
