"""The options of a generation as flags; those of llama.cpp and Hugging Face."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._flags.completing import plugins_of
from edgedec.cli._flags.option import option
from edgedec.decoding.config import OPTIONS, GenerationConfig

if TYPE_CHECKING:
    import edgedec


# Options that a flag gives as JSON.
_JSON = ("sequence_bias", "exponential_decay_length_penalty")


def _generation(name: str, *flags: str, note: str = "", **more: Any) -> Any:
    """The flag of an option of `GenerationConfig`; the help is the option's own."""
    return option(*flags, help=OPTIONS[name].help + note, **more)


@dataclass(frozen=True)
class GenerationFlags:
    """The options of `GenerationConfig`, by name; None keeps what holds otherwise."""

    max_tokens: Annotated[
        int, _generation("max_tokens", "--max-tokens", "-n", "--n-predict", min=-1, note=" -1 (default): no limit.")
    ] = -1
    min_tokens: Annotated[int | None, _generation("min_tokens", "--min-tokens", min=0)] = None
    temperature: Annotated[float | None, _generation("temperature", "--temp", "--temperature")] = None
    top_k: Annotated[int | None, _generation("top_k", "--top-k")] = None
    top_p: Annotated[float | None, _generation("top_p", "--top-p")] = None
    min_p: Annotated[float | None, _generation("min_p", "--min-p")] = None
    typical_p: Annotated[float | None, _generation("typical_p", "--typical", "--typical-p")] = None
    repetition_penalty: Annotated[
        float | None, _generation("repetition_penalty", "--repeat-penalty", "--repetition-penalty")
    ] = None
    presence_penalty: Annotated[float | None, _generation("presence_penalty", "--presence-penalty")] = None
    frequency_penalty: Annotated[float | None, _generation("frequency_penalty", "--frequency-penalty")] = None
    repeat_last_n: Annotated[int | None, _generation("repeat_last_n", "--repeat-last-n")] = None
    no_repeat_ngram_size: Annotated[int | None, _generation("no_repeat_ngram_size", "--no-repeat-ngram-size")] = None
    dry_multiplier: Annotated[float | None, _generation("dry_multiplier", "--dry-multiplier")] = None
    dry_base: Annotated[float | None, _generation("dry_base", "--dry-base")] = None
    dry_allowed_length: Annotated[int | None, _generation("dry_allowed_length", "--dry-allowed-length")] = None
    dry_penalty_last_n: Annotated[int | None, _generation("dry_penalty_last_n", "--dry-penalty-last-n")] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        _generation("dry_sequence_breakers", "--dry-sequence-breaker", metavar="TEXT", note=" (repeatable)"),
    ] = None
    top_n_sigma: Annotated[float | None, _generation("top_n_sigma", "--top-n-sigma", "--top-nsigma")] = None
    top_h: Annotated[float | None, _generation("top_h", "--top-h")] = None
    epsilon_cutoff: Annotated[float | None, _generation("epsilon_cutoff", "--epsilon-cutoff")] = None
    eta_cutoff: Annotated[float | None, _generation("eta_cutoff", "--eta-cutoff")] = None
    xtc_probability: Annotated[float | None, _generation("xtc_probability", "--xtc-probability")] = None
    xtc_threshold: Annotated[float | None, _generation("xtc_threshold", "--xtc-threshold")] = None
    dynatemp_range: Annotated[float | None, _generation("dynatemp_range", "--dynatemp-range")] = None
    dynatemp_exponent: Annotated[float | None, _generation("dynatemp_exponent", "--dynatemp-exp")] = None
    mirostat: Annotated[int | None, _generation("mirostat", "--mirostat")] = None
    mirostat_tau: Annotated[float | None, _generation("mirostat_tau", "--mirostat-ent", "--mirostat-tau")] = None
    mirostat_eta: Annotated[float | None, _generation("mirostat_eta", "--mirostat-lr", "--mirostat-eta")] = None
    adaptive_target: Annotated[float | None, _generation("adaptive_target", "--adaptive-target")] = None
    adaptive_decay: Annotated[float | None, _generation("adaptive_decay", "--adaptive-decay")] = None
    samplers: Annotated[str | None, _generation("samplers", "--samplers", metavar="NAME;…")] = None
    logit_bias: Annotated[
        list[str] | None, _generation("logit_bias", "--logit-bias", metavar="TOKEN=BIAS", note=" (repeatable)")
    ] = None
    sequence_bias: Annotated[str | None, _generation("sequence_bias", "--sequence-bias", metavar="JSON")] = None
    bad_words: Annotated[
        list[str] | None, _generation("bad_words", "--bad-word", metavar="TEXT", note=" (repeatable)")
    ] = None
    forced_tokens: Annotated[
        list[int] | None, _generation("forced_tokens", "--forced-token", metavar="ID", note=" (repeatable)")
    ] = None
    forced_eos_token_id: Annotated[int | None, _generation("forced_eos_token_id", "--forced-eos-token-id")] = None
    begin_suppress_tokens: Annotated[
        list[int] | None,
        _generation("begin_suppress_tokens", "--begin-suppress-token", metavar="ID", note=" (repeatable)"),
    ] = None
    exponential_decay_length_penalty: Annotated[
        str | None,
        _generation("exponential_decay_length_penalty", "--exponential-decay-length-penalty", metavar="[START,FACTOR]"),
    ] = None
    stop: Annotated[list[str] | None, _generation("stop", "--stop", metavar="TEXT", note=" (repeatable)")] = None
    stop_tokens: Annotated[
        list[int] | None, _generation("stop_tokens", "--stop-token", metavar="ID", note=" (repeatable)")
    ] = None
    ignore_eos: Annotated[bool, _generation("ignore_eos", "--ignore-eos")] = False
    search: Annotated[
        str | None,
        _generation(
            "search",
            "--search",
            metavar="NAME:OPTION=VALUE,…",
            autocompletion=plugins_of("searches"),
            note=" `edgedec plugins searches` lists them.",
        ),
    ] = None
    awrs: Annotated[bool, _generation("awrs", "--awrs")] = False

    def config(self, model: edgedec.Model) -> GenerationConfig:
        """The bundle's default settings, replaced by every given flag."""
        return GenerationConfig(sampling=model.sampling).override(dict(self._given()))

    def _given(self) -> Iterator[tuple[str, Any]]:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name == "logit_bias" and value:
                yield name, tuple(parse_bias(item) for item in value)
            elif name in _JSON and value is not None:
                yield name, OPTIONS[name].parse(value)
            elif value not in (None, []) and (name, value) != ("max_tokens", -1):
                yield name, value


@dataclass(frozen=True)
class SeededGeneration(GenerationFlags):
    """The options of a single text, with a seed."""

    seed: Annotated[int | None, _generation("seed", "--seed")] = None


def with_seed(config: GenerationConfig) -> GenerationConfig:
    """The config with a new seed if one is needed and missing, so that a run can report it for repetition."""
    if config.sampling.temperature == 0 or config.sampling.seed is not None:
        return config
    return config.override({"seed": secrets.randbits(32)})


def parse_bias(item: str) -> tuple[int, float]:
    """ "15043=-1.5" -> (15043, -1.5)."""
    token, _, bias = item.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"--logit-bias {item!r}: must be TOKEN=BIAS, as in 15043=-1.5") from None
