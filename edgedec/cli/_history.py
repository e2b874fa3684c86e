"""Turns of a conversation, and which to drop when the context is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Message = dict[str, str]


def turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The system messages, and the turns: a user's message with all that follows it up to the next.

    >>> question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    >>> turns([question, answer, question]) == ([], [[question, answer], [question]])
    True
    """
    system = [m for m in messages if m["role"] == "system"]
    found: list[list[Message]] = []
    for message in (m for m in messages if m["role"] != "system"):
        if message["role"] == "user" or not found:
            found.append([])
        found[-1].append(message)
    return system, found


def keep_latest(messages: Sequence[Message], n: int) -> list[Message]:
    """The system messages and the last `n` turns."""
    system, every = turns(messages)
    return system + [message for turn in every[max(0, len(every) - n) :] for message in turn]


def latest_that_fit(messages: Sequence[Message], length: Callable[[Sequence[Message]], int], room: int) -> int:
    """How many of the last turns have at most `room` tokens together with the system messages."""
    count = len(turns(messages)[1])
    while count > 0 and length(keep_latest(messages, count)) > room:
        count -= 1
    return count
