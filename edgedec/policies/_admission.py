"""The most slots of a block under a policy: the figure that admission uses (`CachePolicy.peak`).

             every=64, decisions while the prompt is read          none before the prompt's end, none after it
slots          ╱│╱│                                                  ╱│
              ╱ ╱ │╱│╱│╱│                                           ╱ │      ╱
             ╱          every                                      ╱  │  ╱
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.policies import TextSize


def whole_peak(text: TextSize) -> int:
    """The peak if nothing is dropped: the held slots and all tokens to come."""
    return text.held + text.length - min(text.cached, text.prompt - 1)


def evicted_peak(text: TextSize, kept: Callable[[int], int], every: int, stride: int) -> int:
    """The peak under eviction. kept: the most slots that a decision leaves in a text of a given length; every: tokens
    between decisions after the prompt (0: no decisions); stride: the same while the prompt is read (0: no decisions
    before its end).

    900 tokens read of a prompt of 901, which grows to 1,000; 64 are kept, every 32, stride 512 -> 576
    """
    unread = max(text.prompt - 1 - text.cached, 0)
    read = reading = text.held + unread
    if stride:
        reading = min(read, max(text.held, kept(text.prompt)) + stride)
    left = min(read, kept(text.prompt)) if unread else text.held
    grown = left + text.length - (text.prompt - 1)
    if every:
        grown = min(grown, max(left, kept(text.length)) + every)
    return max(reading, grown)
