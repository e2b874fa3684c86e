"""Branches written by the decode loop, several at a time: with drafters, constraints and stops as one text has them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.merging import all_may, merged, never, unnoted, without_steps
from edgedec.decoding.messages import Stats, Token
from edgedec.search.branch import Branch
from edgedec.search.room import Room

Until = Callable[[Branch, Token], bool]


def nowhere(branch: Branch, token: Token) -> bool:
    return False


def roll(
    room: Room,
    branches: Sequence[Branch],
    most: int | None = None,
    until: Until = nowhere,
    change: Callable[[GenerationConfig], GenerationConfig] = lambda config: config,
    may: Callable[[int], bool] = all_may,
    over: Callable[[], bool] = never,
    ended: Callable[[int], None] = unnoted,
    spare: bool = False,
) -> Generator[Any, Any, None]:
    """Let branches grow until each has ended, has `most` more tokens, or until(branch, token) is true of a token.
    change: the config of these loops. may, over, ended: of the merger, by number in `branches`. spare: the search
    has other texts, so that it is no error if all of these come to a dead end. The model's log-probabilities of the
    tokens are added to `logp`."""
    rolling = [_Rolled(room, branch, most, change) for branch in branches if not branch.finish]
    numbers = [i for i, branch in enumerate(branches) if not branch.finish]

    def take(i: int, token: Token) -> bool:
        branch = rolling[i].branch
        room.counts.tokens += 1
        branch.logp += token.logprob or 0.0
        return not branch.note(token) and not until(branch, token)

    def end(i: int) -> None:
        rolling[i].end(room)
        ended(numbers[i])

    loops = [one.loop for one in rolling]
    failed = yield from merged(loops, take, room.host.capabilities, lambda i: may(numbers[i]), over, end)
    for i in failed:
        rolling[i].branch.finish = "dead"
    if failed and not spare and all(branch.finish == "dead" for branch in branches):
        raise next(iter(failed.values()))


class _Rolled:
    """A branch and the loop that writes it."""

    def __init__(
        self, room: Room, branch: Branch, most: int | None, change: Callable[[GenerationConfig], GenerationConfig]
    ) -> None:
        self.branch, self._stats = branch, Stats()
        self._left = room.most - len(branch.tokens)
        left = self._left if most is None else min(self._left, most)
        config = change(branch.rest(left))
        config = replace(config, logprobs=config.logprobs or 0)
        branch.context.hooks = ConstraintHooks(parks=room.context.hooks.parks)
        drafter, can = room.host.drafter(), without_steps(room.host.capabilities)
        self._before = len(branch.tokens)
        self.loop = decode_loop(branch.context, config, drafter, self._stats, None, room.host.eos, can)

    def end(self, room: Room) -> None:
        """Note why the branch ended, if it has."""
        branch, reason = self.branch, self._stats.finish
        branch.renew()
        if not branch.finish and reason in ("eos", "context"):
            branch.finish = reason
        elif not branch.finish and len(branch.tokens) - self._before >= self._left:
            branch.finish = room.limit
