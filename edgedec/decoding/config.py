"""GenerationConfig: the options of a generation as one value, for the CLI, Python programs, the server and batch
jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

from edgedec.decoding.constraint import Constraint
from edgedec.decoding.logits import LogitsProcessor
from edgedec.errors import UsageError
from edgedec.options import option, options_of
from edgedec.sampling import Sampling
from edgedec.sampling.places import Biased


@dataclass(frozen=True)
class GenerationConfig:
    """sampling: how a token is chosen. max_tokens: None for no limit but the context; min_tokens: end tokens are masked
    before so many. stop: strings and stop_tokens: tokens that end the text; ignore_eos: the model's own end tokens do
    not end it. awrs: checks of single tokens, and weights (`edgedec.sampling.awrs`). logprobs: how many of the
    likeliest tokens are reported with each token. constraint: the form of the text (`edgedec.constraints`). processors:
    applied to the logits first, in this order. breakers: the tokens of `Sampling.dry_sequence_breakers`, bad_tokens: of
    `bad_words`; a session sets both. search: how the text is chosen among several, in words (`edgedec.search`); scorer:
    the worth of (prompt, text) for a search that takes one. made: the tokens of the text that were generated before
    (`after`): its places are counted with them."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = option(None, "integer", "Most tokens to generate; no limit if left out.")
    min_tokens: int = option(0, "integer", "Do not end before so many tokens.")
    stop: tuple[str, ...] = option((), "strings", "End before any of these texts.")
    stop_tokens: frozenset[int] = option(frozenset(), "tokens", "End at any of these token ids.")
    bad_words: tuple[str, ...] = option((), "strings", "Texts that do not come: the last token of one is forbidden.")
    sequence_bias: tuple[Biased, ...] = option(
        (), "sequences", "[[[ID, …], BIAS], …]: add to the logit of a sequence's last token after its others."
    )
    forced_tokens: tuple[int, ...] = option((), "ids", "The text begins with these token ids, in this order.")
    forced_eos_token_id: int | None = option(None, "integer", "The token at max_tokens, in place of any other.")
    begin_suppress_tokens: frozenset[int] = option(frozenset(), "tokens", "Token ids that do not come first.")
    exponential_decay_length_penalty: tuple[float, ...] | None = option(
        None, "numbers", "[START, FACTOR]: after START tokens the end grows likelier by FACTOR with each."
    )
    ignore_eos: bool = option(False, "boolean", "Go on after the model's end token.")
    search: str = option("", "words", "Search for the text, as in beam:width=8 or best:n=16: another text.")
    awrs: bool = option(False, "boolean", "Draw under a constraint by checks of single tokens, and weigh the text.")
    logprobs: int | None = None
    constraint: Constraint | None = field(default=None, compare=False)
    processors: tuple[LogitsProcessor, ...] = field(default=(), compare=False)
    breakers: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    bad_tokens: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    made: int = field(default=0, compare=False)
    scorer: Callable[[str, str], float] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given)
        if not all(map(_is_text, stop)):
            raise UsageError(f"stop strings: {stop!r} is out of range; allowed: a list of non-empty strings")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_tokens", frozenset(map(int, self.stop_tokens)))
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"max_tokens {self.max_tokens}: must be 0 or more")
        if self.min_tokens < 0:
            raise UsageError(f"min_tokens {self.min_tokens}: must be 0 or more")
        check_places(self)
        if any("\ud800" <= char <= "\udfff" for word in self.bad_words for char in word):
            raise UsageError("bad_words: half of a surrogate pair is no Unicode text; remove it")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs {self.logprobs}: must be from 0 to 100")

    def override(self, options: Mapping[str, Any]) -> GenerationConfig:
        """This config with some options replaced, those of its sampling too; UsageError for an unknown option."""
        known = [f.name for f in fields(self)]
        unknown = sorted(set(options) - {*known, *SAMPLING})
        if unknown:
            raise UsageError(f"no option {unknown[0]!r}; there are: {', '.join([*known, *SAMPLING])}")
        own = {name: value for name, value in options.items() if name in known}
        drawn = {name: value for name, value in options.items() if name in SAMPLING}
        if drawn:
            own["sampling"] = replace(own.get("sampling", self.sampling), **drawn)
        return replace(self, **own) if own else self

    def after(self, n: int, most: int | None = None) -> GenerationConfig:
        """The config of a loop that goes on after n tokens of this text, by at most so many (None: as many as are
        left)."""
        left = None if self.max_tokens is None else max(self.max_tokens - n, 0)
        last = self.forced_eos_token_id if most is None or (left is not None and most >= left) else None
        least, most = max(self.min_tokens - n, 0), left if most is None else most
        return replace(self, made=self.made + n, max_tokens=most, min_tokens=least, forced_eos_token_id=last)

    def ends(self, eos: frozenset[int]) -> frozenset[int]:
        """The tokens that end the text of a model with these end tokens."""
        return self.stop_tokens if self.ignore_eos else self.stop_tokens | eos

    @property
    def biases(self) -> bool:
        """Whether sequences have a bias (`edgedec.decoding.placed`)."""
        return bool(self.sequence_bias or self.bad_words)

    @property
    def places(self) -> bool:
        """Whether a place of the text has rules of its own (`edgedec.decoding.placed`)."""
        forced = bool(self.forced_tokens) or self.forced_eos_token_id is not None
        return forced or bool(self.begin_suppress_tokens) or self.exponential_decay_length_penalty is not None

    @property
    def takes_largest(self) -> bool:
        """Whether only the token of the largest logit is needed."""
        changed = self.constraint is not None or self.min_tokens or self.processors or self.biases or self.places
        return self.sampling.takes_largest and self.logprobs is None and not changed


def check_places(config: GenerationConfig) -> None:
    """UsageError for rules of sequences and places that are none."""
    words: Any = config.bad_words
    object.__setattr__(config, "bad_words", (words,) if isinstance(words, str) else tuple(words))
    if not all(isinstance(word, str) and word.strip() for word in config.bad_words):
        raise UsageError(f"bad_words: {config.bad_words!r} is out of range; allowed: a list of words")
    object.__setattr__(config, "forced_tokens", tuple(map(int, config.forced_tokens)))
    object.__setattr__(config, "begin_suppress_tokens", frozenset(map(int, config.begin_suppress_tokens)))
    object.__setattr__(config, "sequence_bias", _sequences(config.sequence_bias))
    decay = config.exponential_decay_length_penalty
    if decay is not None and not (len(decay) == 2 and decay[0] >= 0 and decay[0] == int(decay[0]) and decay[1] > 0):
        allowed = "allowed: [START, FACTOR], a whole number from 0 on and one above 0"
        raise UsageError(f"exponential_decay_length_penalty: {list(decay)} is out of range; {allowed}")


def _sequences(given: Any) -> tuple[Biased, ...]:
    """A list of [[id, …], bias], or transformers' mapping of tuples."""
    try:
        pairs = given.items() if isinstance(given, Mapping) else given
        found = tuple((tuple(map(int, tokens)), float(bias)) for tokens, bias in pairs)
    except (TypeError, ValueError):
        raise UsageError(f"sequence_bias: {given!r:.60}: must be a list such as [[[12, 7], -2.5]]") from None
    for tokens, bias in found:
        if not tokens or min(tokens) < 0 or not bias < inf:
            raise UsageError(f"sequence_bias: {[list(tokens), bias]}: needs token ids and a bias below inf")
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


SAMPLING = options_of(Sampling)
"""The options of sampling, by name."""
OPTIONS = {**SAMPLING, **options_of(GenerationConfig)}
"""All options that a flag, a request or a row of a batch may set, by name."""


def parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those members of `given` that are options, as values of the config; UsageError for one of another type."""
    return {name: option.parse(given[name]) for name, option in OPTIONS.items() if name in given}
