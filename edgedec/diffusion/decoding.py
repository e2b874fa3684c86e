"""How a session decodes a diffusion model: its methods, what it refuses, and what the passes did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import DecodeLoop, Stats
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.picking import WithoutMask
from edgedec.diffusion.words import FLAG, OFF, Chosen, parse_diffusion
from edgedec.errors import ContextFull, RuntimeUnavailable, TextError, UsageError
from edgedec.opened import OpenedModel
from edgedec.policies import CachePolicy
from edgedec.text.token_bytes import token_bytes

# Texts whose last token is the one of a line break.
_BREAKS = "\n", "\n\n"


@dataclass
class DiffusionDecoding:
    """The decoding of one session; `counts`: of its current or last generation."""

    facts: DiffusionFacts
    chosen: Chosen
    host: DiffusionHost
    counts: PassCounts = field(default_factory=PassCounts)

    @classmethod
    def of(
        cls, model: OpenedModel, words: str, speculate: str = "auto", policy: CachePolicy | None = None
    ) -> DiffusionDecoding | None:
        """The decoding that words choose ("": the defaults); None for autoregressive decoding. UsageError for what the
        model, and RuntimeUnavailable for what the engine cannot be used for."""
        facts = model.bundle.manifest.diffusion
        if facts is None:
            if words:
                name = model.bundle.manifest.name
                raise UsageError(f"{FLAG} {words}: {name} is no diffusion model (no section diffusion in its manifest)")
            return None
        if words == OFF:
            if facts.context != "causal" or not facts.shift:
                raise UsageError(f"{FLAG} {OFF}: the model was trained to fill blocks only; leave it out")
            return None
        _check_uses(speculate, policy)
        _check_engine(model, facts)
        host = DiffusionHost(
            facts,
            model.runtime.capabilities,
            lambda: newlines(model),
            model.eos,
            partial(special, model),
            partial(_encoded, model),
            lambda: token_bytes(model.tokenizer, model.spec.vocab_size),
            model.spec.vocab_size,
        )
        found = cls(facts, parse_diffusion(words, facts.context, facts.shift), host)
        found.chosen.make(host)  # an invalid choice fails here, not at the first text
        return found

    def loop(
        self, context: Context, config: GenerationConfig, stats: Stats, trace: list[Any] | None = None
    ) -> DecodeLoop:
        """The generation of a text; trace: collects a `FillTrace` a pass."""
        self.counts = PassCounts()
        methods, can = self.chosen.make(self.host), self.host.capabilities
        most = len(methods.fits.form) or config.max_tokens
        check_canvas(self.facts, len(context.ids), most, context.cache.capacity, self.host)
        return diffusion_loop(context, config, methods, self.facts, stats, self.counts, self.host.ends, can, trace)

    def fork(self) -> DiffusionDecoding:
        return replace(self, counts=PassCounts())

    def report(self, generated: int) -> dict[str, object]:
        """Figures for display, as JSON values."""
        counts = self.counts
        return {
            "methods": self.chosen.words,
            "passes": counts.passes,
            "rows": counts.rows,
            "blocks": counts.blocks,
            "filled": counts.filled,
            "edited": counts.edited,
            "tokens_per_pass": round(generated / max(counts.passes, 1), 3),
        }


def shares(decoding: DiffusionDecoding | None) -> bool:
    """Whether other texts may continue from a prefix of a cache: if its rows depend on earlier tokens only."""
    return decoding is None or decoding.facts.context == "causal"


def check_scores(decoding: DiffusionDecoding | None) -> None:
    """UsageError if a given text is to be scored with diffusion decoding."""
    if decoding is not None:
        raise UsageError(f"log-probabilities of a given text: diffusion decoding has none ({FLAG} {OFF}, if it can)")


def check_form(decoding: DiffusionDecoding, config: GenerationConfig) -> int:
    """The tokens of the form that the text must have, 0 without one; UsageError for methods that the settings of a
    generation do not go with."""
    methods = decoding.chosen.make(decoding.host)
    methods.fits.begin(config, config.ends(decoding.host.ends))
    return len(methods.fits.form)


def check_ids(facts: DiffusionFacts | None, ids: Sequence[int], what: str = "prompt") -> None:
    """UsageError for the mask in a text."""
    if facts is not None and facts.mask in ids:
        raise UsageError(f"{what}: token {facts.mask} is the mask of this diffusion model, which no text contains")


def check_canvas(facts: DiffusionFacts, n_prompt: int, most: int | None, capacity: int, host: DiffusionHost) -> None:
    """ContextFull for a canvas beyond the context or beyond what the engine runs in a call."""
    if facts.context != "full":
        return
    largest = min(capacity, host.capabilities.largest_call)
    if most is None or n_prompt + most > largest:
        raise ContextFull(
            f"diffusion: prompt and text are one canvas of {'?' if most is None else n_prompt + most} tokens, and "
            f"{largest} fit; ask for {max(largest - n_prompt, 0)} tokens at most"
        )


def without_mask(facts: DiffusionFacts | None, config: GenerationConfig) -> GenerationConfig:
    """The config for autoregressive decoding of a diffusion model."""
    if facts is None:
        return config
    return replace(config, processors=(*config.processors, WithoutMask(facts.mask)))


def special(model: OpenedModel, text: str) -> int | None:
    """The special token of a text; None without one, or without a tokenizer."""
    try:
        return model.tokenizer.id(text)
    except TextError:
        return None


def _encoded(model: OpenedModel, text: str) -> list[int]:
    """The tokens of a part of a text."""
    return model.tokenizer.encode(text, special=False, around=False)


def newlines(model: OpenedModel) -> frozenset[int]:
    """The tokens that end a line; none without a tokenizer."""
    try:
        tokenizer = model.tokenizer
    except TextError:
        return frozenset()
    last = [ids[-1] for text in _BREAKS if (ids := tokenizer.encode(text, special=False, around=False))]
    return frozenset(token for token in last if "\n" in tokenizer.decode([token]))


def _check_uses(speculate: str, policy: CachePolicy | None) -> None:
    if speculate not in ("auto", "off"):
        raise UsageError(f"--spec {speculate}: diffusion decoding drafts nothing; leave it out, or give {FLAG} {OFF}")
    if policy is not None:
        raise UsageError(f"--cache {policy.name}: a diffusion model's cache is that of its blocks; see {FLAG} keep=…")


def _check_engine(model: OpenedModel, facts: DiffusionFacts) -> None:
    can = model.runtime.capabilities
    if not can.groups:
        raise RuntimeUnavailable(
            f"engine {model.runtime.name} runs no rows that see each other, which diffusion needs; use --engine native"
        )
    rows = facts.block + (facts.block if facts.context == "block" else 1)
    if facts.context != "full" and rows > can.largest_call:
        raise RuntimeUnavailable(
            f"engine {model.runtime.name}: a block of {facts.block} needs a call of {rows} rows; it takes "
            f"{can.largest_call}"
        )
