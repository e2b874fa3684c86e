"""Configs of transformers 5 in the words of transformers 4."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.errors import CheckpointError
from edgedec.export.older_config import older


def said(**config: Any) -> dict[str, Any]:
    return older(config, "config.json")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_theta": 5e5, "rope_scaling": None}),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_theta": 5e5}),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"model_type": "gpt_neox", "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
            {"model_type": "gpt_neox", "rotary_emb_base": 5e5, "rotary_pct": 0.5},
        ),
        ({"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}),
        ({"model_type": "qwen3_moe", "num_local_experts": 4}, {"model_type": "qwen3_moe", "num_experts": 4}),
    ],
)
def test_words(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert said(**given) == wanted


def test_layer_types_and_configs_inside() -> None:
    full, sliding = (
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        {"rope_type": "default", "rope_theta": 1e4},
    )
    text = {"model_type": "gemma3_text", "rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    wanted = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert said(model_type="gemma3", text_config=text)["text_config"] == {"model_type": "gemma3_text"} | wanted


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "'proportional' is newer than what optimum reads",
        ),
        ({"rope_parameters": [1]}, "rope_parameters: expected an object"),
        (
            {"model_type": "olmo3", "rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
            r"by layer type \(full_attention, sliding_attention\): optimum reads no such",
        ),
    ],
)
def test_what_there_are_no_words_for_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        said(**config)
