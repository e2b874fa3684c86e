"""The options of a generation: what is out of range, what overrides what, and which tokens end a text."""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

import pytest

from edgedec.decoding.config import OPTIONS, SAMPLING, GenerationConfig, parse_options
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.testing.fakes import SetConstraint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": -1}, "max_tokens -1: must be 0 or more"),
        ({"min_tokens": -1}, "min_tokens -1: must be 0 or more"),
        ({"logprobs": -1}, "logprobs -1: must be from 0 to 100"),
        ({"logprobs": 101}, "logprobs 101: must be from 0 to 100"),
        ({"stop": ("a", "")}, "stop strings: .* is out of range"),
        ({"stop": [3]}, "stop strings: .* is out of range"),
    ],
)
def test_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GenerationConfig(**options)


def test_the_ends_of_ranges() -> None:
    config = GenerationConfig(max_tokens=0, min_tokens=0, logprobs=100, stop="end", stop_tokens=[3, 3])  # type: ignore[arg-type]
    assert (config.stop, config.stop_tokens) == (("end",), frozenset({3}))
    assert GenerationConfig(stop=["a", "b"], logprobs=0).stop == ("a", "b")  # type: ignore[arg-type]
    assert (GenerationConfig().max_tokens, GenerationConfig().logprobs, GenerationConfig().stop) == (None, None, ())


def test_options_override_those_of_the_sampling_too() -> None:
    config = GenerationConfig(Sampling(temperature=0.5, top_k=3), max_tokens=9)
    found = config.override({"top_k": 7, "min_tokens": 2})
    assert found == GenerationConfig(Sampling(temperature=0.5, top_k=7), max_tokens=9, min_tokens=2)
    assert config.override({"sampling": Sampling(top_p=0.5), "top_k": 7}).sampling == Sampling(top_p=0.5, top_k=7)
    assert config.override({"max_tokens": None}).max_tokens is None
    assert config.override({}) is config
    with pytest.raises(UsageError, match=r"no option 'a'; there are: sampling, max_tokens, .*temperature"):
        config.override({"b": 1, "top_k": 1, "a": 2})
    assert set(SAMPLING) < set(OPTIONS)
    assert parse_options({"top_k": 3, "max_tokens": 4, "else": 5}) == {"top_k": 3, "max_tokens": 4}


def test_which_tokens_end_a_text() -> None:
    eos = frozenset({1, 2})
    assert GenerationConfig(stop_tokens=frozenset({3})).ends(eos) == {1, 2, 3}
    assert GenerationConfig(stop_tokens=frozenset({3}), ignore_eos=True).ends(eos) == {3}


def test_where_the_largest_logit_is_enough() -> None:
    assert GenerationConfig(max_tokens=3, stop_tokens=frozenset({3})).takes_largest
    for options in (
        {"sampling": Sampling(temperature=0.5)},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"constraint": SetConstraint({})},
        {"processors": (object(),)},
    ):
        assert not GenerationConfig(**options).takes_largest, options  # type: ignore[arg-type]


def test_a_loop_that_goes_on_has_what_is_left() -> None:
    config = GenerationConfig(max_tokens=10, min_tokens=4, forced_eos_token_id=2)

    def after(n: int, most: int | None = None) -> tuple[int, int | None, int, int | None]:
        found = config.after(n, most)
        return found.made, found.max_tokens, found.min_tokens, found.forced_eos_token_id

    assert after(3) == (3, 7, 1, 2)
    assert after(3, 2) == (3, 2, 1, None), "the last token of all is not among the next two"
    assert after(3, 7) == (3, 7, 1, 2)
    assert after(12) == (12, 0, 0, 2)
    assert config.after(3).after(4).made == 7
    endless = GenerationConfig(forced_eos_token_id=2)
    assert (endless.after(3).max_tokens, endless.after(3).forced_eos_token_id) == (None, 2)
    assert (endless.after(3, 5).max_tokens, endless.after(3, 5).forced_eos_token_id) == (5, None)


NUMBERS = [name for name, option in SAMPLING.items() if option.kind in ("integer", "number")]
LARGE = {"integer": 10**6, "number": 1e6}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_schema_of_a_setting_has_the_bounds_that_are_enforced(name: str) -> None:
    """A value at a bound is accepted, the next one beyond it is refused; without a bound large values are accepted."""
    schema, whole = SAMPLING[name].schema, SAMPLING[name].kind == "integer"

    def accepted(value: float) -> bool:
        try:
            return getattr(Sampling(**{name: value}), name) == value  # type: ignore[arg-type]
        except UsageError:
            return False

    for side, away in (("inimum", -inf), ("aximum", inf)):
        first = "m" + side
        if (open_end := schema.get("exclusiveM" + side)) is not None:
            assert not accepted(open_end)
            assert accepted(nextafter(open_end, -away))
        elif (end := schema.get(first)) is not None and end not in (2**31 - 1, 2**63 - 1):  # those are JSON's
            assert accepted(end)
            assert not accepted(end + (1 if away > 0 else -1) if whole else nextafter(end, away))
        elif away > 0:
            assert accepted(LARGE[SAMPLING[name].kind])
    assert SAMPLING["seed"].schema["maximum"] == 2**63 - 1


def test_the_defaults_of_samplers_are_those_of_llama_cpp() -> None:
    """By its manual of the sampling parameters; each sampler by itself is off."""
    found, defaults = Sampling(), {
        "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "xtc_threshold": 0.1,
        "dynatemp_exponent": 1.0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0,
        "adaptive_decay": 0.9, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in defaults} == defaults
    assert [found.extended, found.repeats, found.steers, found.adjusts] == [False] * 4
