"""Whether another level of a draft is worth its time: a call of the head, and Python's, for each token further ahead.

The gain of a level is the probability of the paths that it extends, times the acceptance rate below an accepted token;
a token is worth its current mean time, which is less than a call.
"""

from __future__ import annotations

from edgedec.decoding.messages import StepResult

# The rate of means; Python's seconds for a level; the acceptance rate below an accepted token.
_SMOOTH, _PYTHON, _DEEPER = 0.1, 1e-4, 0.7


class LevelPace:
    """Mean seconds of a level and of the target's calls, and the mean tokens of a call."""

    def __init__(self) -> None:
        self.level_s = self.call_s = self.tokens = 0.0

    def add_level(self, seconds: float) -> None:
        """Add the time of a forward of the head."""
        seconds += _PYTHON
        self.level_s += (seconds - self.level_s) * (_SMOOTH if self.level_s else 1.0)

    def add_call(self, step: StepResult) -> None:
        """Add a call of the target, unless it read a prompt."""
        if not step.root:
            seconds = step.seconds * step.rows.count / max(step.total, 1)
            self.call_s += (seconds - self.call_s) * (_SMOOTH if self.call_s else 1.0)
            self.tokens += (len(step.picked) - self.tokens) * (_SMOOTH if self.tokens else 1.0)

    def pays(self, paths: float) -> bool:
        """Whether another level pays below paths of this total probability; True while nothing is measured.

        Calls of 1.0 with 2 tokens, a level of 0.05; paths of 0.2 -> 0.14 tokens at 0.5 each: yes; of 0.1: no.
        """
        return not self.level_s or not self.call_s or _DEEPER * paths * self.call_s >= self.level_s * self.tokens
