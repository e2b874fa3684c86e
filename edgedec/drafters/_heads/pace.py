"""Whether another level of a draft is worth its time: a call of the head, and Python's, for each token further ahead.

A level brings what the paths that it goes on from are likely to be right, times how often a guess below a right one is
right as well; and a token is worth the time that it takes now, which is less than a call.
"""

from __future__ import annotations

from edgedec.decoding.messages import StepResult

# How fast means follow; what Python takes for a level; how often a guess below a right one is right.
_SMOOTH, _PYTHON, _DEEPER = 0.1, 1e-4, 0.7


class LevelPace:
    """What a level takes, a call of the target with the drafted rows, and the tokens that it gives."""

    def __init__(self) -> None:
        self.level_s = self.call_s = self.tokens = 0.0

    def add_level(self, seconds: float) -> None:
        """A forward of the head took so long."""
        seconds += _PYTHON
        self.level_s += (seconds - self.level_s) * (_SMOOTH if self.level_s else 1.0)

    def add_call(self, step: StepResult) -> None:
        """The target made a call; one that reads a prompt says nothing of others."""
        if not step.root:
            seconds = step.seconds * step.rows.count / max(step.total, 1)
            self.call_s += (seconds - self.call_s) * (_SMOOTH if self.call_s else 1.0)
            self.tokens += (len(step.picked) - self.tokens) * (_SMOOTH if self.tokens else 1.0)

    def pays(self, paths: float) -> bool:
        """Is another level worth its time below paths that are together so likely? True while nothing is known.

        Calls of 1.0 with 2 tokens, a level of 0.05; paths of 0.2 -> 0.14 tokens at 0.5 each: yes; of 0.1: no.
        """
        return not self.level_s or not self.call_s or _DEEPER * paths * self.call_s >= self.level_s * self.tokens
