"""GGUF files of Gemma 3n: each fact counts, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf_architectures
import numpy as np
import pytest
from readings import all_logits, of_file

from edgedec.errors import BadTensor, CheckpointError

pytest.importorskip("torch", reason="the models are built with torch")

IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"altup.num_inputs": 3}, "altup.num_inputs is 3; altup_proj.weight has 3 streams beside one"),
    ({"altup.active_idx": 4}, "active"),
    ({"activation_sparsity_scale": [1.6] * 5}, "activation_sparsity_scale must give a number for each of 6 layers"),
    ({"activation_sparsity_scale": [float("nan")] * 6}, "must give a number for each of 6 layers"),
    ({"attention.shared_kv_layers": 7}, "attention.shared_kv_layers must be a whole number from 0 to 6"),
    ({"embedding_length_per_layer_input": 11}, "has shape"),
]


@pytest.mark.parametrize(("changed", "why"), WRONG)
def test_what_contradicts_itself_is_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = gguf_architectures.write("gemma3n", tmp_path / "m.gguf", **changed)[1]
    with pytest.raises((BadTensor, CheckpointError), match=re.escape(why)) as caught:
        of_file(path)
    assert "\n" not in str(caught.value)


# A fact of a file, and another value of it.
FACTS: list[tuple[str, Any]] = [
    ("altup.active_idx", 1),
    ("activation_sparsity_scale", [float("-inf")] * 6),
    ("attention.shared_kv_layers", 2),
    ("attention.sliding_window", 4),
    ("attention.sliding_window_pattern", [True, False] * 3),
    ("final_logit_softcapping", 4.0),
    ("rope.freq_base", 300.0),
    ("rope.freq_base_swa", 300.0),
    ("attention.layer_norm_rms_epsilon", 0.1),
]


def test_every_fact_of_a_file_counts(tmp_path: Path) -> None:
    whole = all_logits(of_file(gguf_architectures.write("gemma3n", tmp_path / "m.gguf")[1]), IDS)
    for key, value in FACTS:
        path = gguf_architectures.write("gemma3n", tmp_path / "o.gguf", **{key: value})[1]
        if key == "attention.shared_kv_layers":
            with pytest.raises(BadTensor, match=r"blk.3.attn_k.weight: missing"):
                of_file(path)
            continue
        found = all_logits(of_file(path), IDS)
        assert np.abs(found - whole).max() > 1e-3, key
