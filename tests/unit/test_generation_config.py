"""The options of a generation: what is out of range, what overrides what, and which tokens end a text."""

from __future__ import annotations

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
