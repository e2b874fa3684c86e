"""Sampling settings, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from edgedec.errors import UsageError
from edgedec.options import option


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token; the defaults are greedy and change nothing.

    `repetition_penalty` counts prompt and output (Hugging Face); `presence_penalty` and
    `frequency_penalty` count generated tokens only (OpenAI). `logit_bias` may be given as a
    mapping token -> bias; -inf forbids a token. `seed` None means fresh entropy.
    """

    temperature: float = option(
        0.0, "number", "How varied: 0 takes the likeliest token each time, 1 draws as the model says.", minimum=0
    )
    top_k: int = option(0, "integer", "Draw among the K likeliest tokens; 0: among all.")
    top_p: float = option(
        1.0, "number", "Keep the likeliest tokens that hold this mass.", exclusiveMinimum=0, maximum=1
    )
    min_p: float = option(
        0.0, "number", "Drop tokens that are less likely than this part of the likeliest.", minimum=0, maximum=1
    )
    typical_p: float = option(
        1.0, "number", "Locally typical sampling: keep this much probability; 1 is off.", exclusiveMinimum=0, maximum=1
    )
    repetition_penalty: float = option(
        1.0, "number", "Weakens tokens of prompt and output; 1 is off.", exclusiveMinimum=0
    )
    presence_penalty: float = option(
        0.0, "number", "Subtract this from tokens generated before.", minimum=-2, maximum=2
    )
    frequency_penalty: float = option(
        0.0, "number", "Subtract this for every time a token was generated.", minimum=-2, maximum=2
    )
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = option(
        (), "bias", "Add to a token id's logit; -inf forbids it."
    )
    seed: int | None = option(
        None, "integer", "Makes sampling repeatable; drawn afresh if left out.", maximum=2**63 - 1
    )

    @property
    def adjusts(self) -> bool:
        """Whether bias or penalties change the logits."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or penalties != (1, 0, 0)

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs, by token."""
        return tuple(dict(self.logit_bias).items())

    @property
    def takes_largest(self) -> bool:
        """Whether the next token is always that of the largest logit."""
        return self.temperature == 0 and not self.adjusts

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, "[0, inf)")
        check_whole("top_k", self.top_k)
        _real("top_p", self.top_p, "(0, 1]")
        _real("min_p", self.min_p, "[0, 1]")
        _real("typical_p", self.typical_p, "(0, 1]")
        _real("repetition_penalty", self.repetition_penalty, "(0, inf)")
        _real("presence_penalty", self.presence_penalty, "[-2, 2]")
        _real("frequency_penalty", self.frequency_penalty, "[-2, 2]")
        if self.seed is not None:
            check_whole("seed", self.seed)
        # Sorted pairs, so that equal settings compare and hash equal however they were written.
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))


def _real(name: str, value: object, allowed: str) -> None:
    """UsageError unless the value is a number within `allowed`, an interval such as "(0, 1]"."""
    low, high = map(float, allowed[1:-1].split(","))
    if type(value) is not bool and isinstance(value, Real):
        x = float(value)
        if low < x < high or (x == low and allowed[0] == "[") or (x == high and allowed[-1] == "]"):
            return
    raise UsageError(f"{name}: {value!r} is out of range; allowed: {allowed}")


def check_whole(name: str, value: object) -> None:
    """UsageError unless the value is a whole number from 0 on."""
    if type(value) is bool or not isinstance(value, Integral) or value < 0:
        raise UsageError(f"{name}: {value!r} is out of range; allowed: whole numbers from 0 on")


def _bias_pairs(bias: Mapping[int, float] | Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Pairs sorted by token, checked."""
    try:
        pairs = [(token, value) for token, value in (bias.items() if isinstance(bias, Mapping) else bias)]
    except (TypeError, ValueError) as e:
        raise UsageError(f"logit_bias: {bias!r} is out of range; allowed: a mapping token -> bias") from e
    for token, value in pairs:
        check_whole("logit_bias token", token)
        _real(f"logit_bias[{token}]", value, "[-inf, inf)")
    if len({token for token, _ in pairs}) < len(pairs):
        raise UsageError(f"logit_bias: {bias!r} is out of range; allowed: one bias for a token")
    return tuple(sorted((int(token), float(value)) for token, value in pairs))
