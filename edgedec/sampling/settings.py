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
    repeat_last_n: int = option(
        -1, "integer", "The penalties count so many of the last tokens; -1: all, 0: none.", minimum=-1
    )
    no_repeat_ngram_size: int = option(0, "integer", "Forbid tokens that repeat an n-gram of this size; 0: none.")
    dry_multiplier: float = option(
        0.0, "number", "DRY: subtract this for a token that extends a repeated sequence; 0 is off.", minimum=0
    )
    dry_base: float = option(
        1.75, "number", "DRY: the penalty grows by this factor with each repeated token.", minimum=1
    )
    dry_allowed_length: int = option(2, "integer", "DRY: sequences of so many tokens may be repeated.")
    dry_penalty_last_n: int = option(
        -1, "integer", "DRY: look at so many of the last tokens; -1: all, 0: none.", minimum=-1
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "strings", "DRY: no sequence goes on across these texts."
    )
    top_n_sigma: float = option(
        0.0, "number", "Keep logits within so many standard deviations of the largest; 0 is off.", minimum=-1
    )
    top_h: float = option(
        0.0, "number", "Keep the likeliest tokens with this share of the entropy; 0 is off.", minimum=0, maximum=1
    )
    epsilon_cutoff: float = option(
        0.0, "number", "Drop tokens below this probability; 0 is off.", minimum=0, exclusiveMaximum=1
    )
    eta_cutoff: float = option(
        0.0, "number", "Drop tokens below a bound that falls with the entropy; 0 is off.", minimum=0, exclusiveMaximum=1
    )
    xtc_probability: float = option(
        0.0, "number", "XTC: how often the likeliest tokens are excluded; 0 is off.", minimum=0, maximum=1
    )
    xtc_threshold: float = option(
        0.1, "number", "XTC: of the tokens above this probability only the least likely stays.", minimum=0, maximum=1
    )
    dynatemp_range: float = option(
        0.0, "number", "Temperature by entropy, up to this far from --temp; 0 is off.", minimum=0
    )
    dynatemp_exponent: float = option(1.0, "number", "The exponent of the entropy in that temperature.", minimum=0)
    mirostat: int = option(
        0, "integer", "Mirostat 1 or 2 in place of the cuts: keep the surprise of tokens steady; 0 is off.", maximum=2
    )
    mirostat_tau: float = option(5.0, "number", "Mirostat: the surprise to keep, in bits.", minimum=0)
    mirostat_eta: float = option(0.1, "number", "Mirostat: the learning rate.", minimum=0)
    adaptive_target: float = option(
        -1.0, "number", "Prefer tokens near this probability, on average; below 0 is off.", minimum=-1, maximum=1
    )
    adaptive_decay: float = option(0.9, "number", "How slowly that average forgets tokens.", minimum=0, maximum=0.99)
    samplers: tuple[str, ...] = option(
        (), "strings", "The cuts in this order, others are off, as in top_k;top_p;temperature."
    )
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = option(
        (), "bias", "Add to a token id's logit; -inf forbids it."
    )
    seed: int | None = option(
        None, "integer", "Makes sampling repeatable; drawn afresh if left out.", maximum=2**63 - 1
    )

    @property
    def repeats(self) -> bool:
        """Whether tokens that would repeat a sequence of the text are penalised or forbidden."""
        return self.no_repeat_ngram_size > 0 or self.dry

    @property
    def dry(self) -> bool:
        """Whether DRY may penalise a token."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def breaks(self) -> bool:
        """Whether DRY's sequence breakers are needed as tokens."""
        return self.dry and bool(self.dry_sequence_breakers)

    @property
    def steers(self) -> bool:
        """Whether the distribution depends on what was drawn before (`edgedec.sampling.steering`)."""
        return self.mirostat > 0 or self.adaptive_target >= 0

    @property
    def extended(self) -> bool:
        """Whether the distribution needs more than temperature, top-k, top-p, min-p and typical, in this order."""
        cuts = (self.top_n_sigma, self.top_h, self.epsilon_cutoff, self.eta_cutoff, self.xtc_probability)
        return bool(self.samplers) or self.steers or self.dynatemp_range > 0 or any(cut > 0 for cut in cuts)

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
        return self.temperature == 0 and not self.adjusts and not self.repeats

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, "[0, inf)")
        check_whole("top_k", self.top_k)
        _real("top_p", self.top_p, "(0, 1]")
        _real("min_p", self.min_p, "[0, 1]")
        _real("typical_p", self.typical_p, "(0, 1]")
        _real("repetition_penalty", self.repetition_penalty, "(0, inf)")
        _real("presence_penalty", self.presence_penalty, "[-2, 2]")
        _real("frequency_penalty", self.frequency_penalty, "[-2, 2]")
        for name in ("no_repeat_ngram_size", "dry_allowed_length", "mirostat"):
            check_whole(name, getattr(self, name))
        for name, allowed in _RANGES.items():
            _real(name, getattr(self, name), allowed)
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if (value := getattr(self, name)) != -1:
                check_whole(name, value)
        if self.mirostat > 2:
            raise UsageError(f"mirostat: {self.mirostat} is out of range; allowed: 0, 1, 2")
        object.__setattr__(self, "samplers", check_order(self.samplers))
        object.__setattr__(self, "dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        if self.seed is not None:
            check_whole("seed", self.seed)
        # Sorted pairs, so that equal settings compare and hash equal however they were written.
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))


_RANGES = {
    **dict.fromkeys(
        ("dry_multiplier", "dynatemp_range", "dynatemp_exponent", "mirostat_tau", "mirostat_eta"), "[0, inf)"
    ),
    **dict.fromkeys(("top_h", "xtc_probability", "xtc_threshold"), "[0, 1]"),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), "[0, 1)"),
    "dry_base": "[1, inf)",
    "top_n_sigma": "[-1, inf)",
    "adaptive_target": "[-1, 1]",
    "adaptive_decay": "[0, 0.99]",
}
# The cuts by the names of their settings, in the order without `samplers`; llama.cpp's names of some.
CUTS = (
    *("top_n_sigma", "temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    "xtc",
)
_NAMES = {"typ_p": "typical_p", "typical": "typical_p", "temp": "temperature"}
# Before all cuts, wherever llama.cpp's users write them.
_FIRST = ("penalties", "dry")


def check_order(samplers: Sequence[str] | str) -> tuple[str, ...]:
    """The names of cuts; several may be in one text, separated by semicolons."""
    texts = [samplers] if isinstance(samplers, str) else list(samplers)
    names = [name.strip().replace("-", "_").lower() for text in texts for name in text.split(";") if name.strip()]
    found = [_NAMES.get(name, name) for name in names]
    cuts = [name for name in found if name not in _FIRST]
    for name in cuts:
        if name not in CUTS:
            raise UsageError(f"samplers: no cut {name!r}; there are: {', '.join((*_FIRST, *CUTS))}")
    if len(set(found)) < len(found):
        raise UsageError(f"samplers: {', '.join(found)}: each may be named once")
    if cuts and found[: len(found) - len(cuts)] != [name for name in found if name in _FIRST]:
        raise UsageError("samplers: penalties and dry come first; write them before the others")
    return tuple(cuts)


def _breakers(texts: Sequence[str] | str) -> tuple[str, ...]:
    found = (texts,) if isinstance(texts, str) else tuple(texts)
    if not all(isinstance(text, str) and text for text in found):
        raise UsageError(f"dry_sequence_breakers: {texts!r} is out of range; allowed: a list of non-empty strings")
    return found


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
