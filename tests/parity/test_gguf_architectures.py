"""Further architectures of GGUF files, written by the rules of llama.cpp's converter, are what transformers made."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import gguf_architectures as architectures
import gguf_gemma4 as gemma4
import gguf_mixtures as mixtures
import gguf_rwkv7 as rwkv7
import numpy as np
import pytest
from gguf_architectures import MODELS, write
from readings import all_logits, of_file

from edgedec.errors import CheckpointError
from edgedec.export.gguf.config import ARCHITECTURES
from edgedec.export.gguf.dense import DENSE
from edgedec.export.gguf.hybrids import HYBRIDS
from edgedec.export.gguf.latent import LATENT
from edgedec.export.gguf.mixtures import MIXTURES
from edgedec.spec import Moe

torch = pytest.importorskip("torch", reason="the models are built with torch")

IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_file_is_the_one_that_wrote_it(name: str, tmp_path: Path) -> None:
    model, path = write(name, tmp_path / "m.gguf")
    torch.set_num_threads(1)
    with torch.no_grad():
        expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
    found = all_logits(of_file(path), IDS)
    assert expected.std() > 0.05
    assert np.abs(found - expected).max() < 1e-3 * max(1.0, np.abs(expected).max())


def test_every_architecture_is_tried() -> None:
    assert {arch for arch, _ in MODELS.values()} == {
        *(*DENSE, *MIXTURES, *HYBRIDS, *LATENT),
        *("lfm2moe", "olmo2", "gemma4", "gemma3n"),
    }
    assert {*DENSE, *MIXTURES, *HYBRIDS, *LATENT} < set(ARCHITECTURES)


# What of a file is changed, and what is said of it.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_next", {"ssm.inner_size": 61}, "61 is not whole times 6 heads"),
    ("jamba", {"attention.head_count_kv": [2, 2, 0, 0]}, "layers [0, 1]: they are not one of every so many"),
    ("jamba", {"ssm.inner_size": 100}, "100 is not whole times 64"),
    ("falcon_h1", {"ssm.inner_size": 81}, "81 is not whole times 8 heads"),
    ("nemotron_h", {"ssm.time_step_rank": 0}, "ssm.inner_size 144 is not whole times 0 heads"),
    ("nemotron_h_experts", {"moe_latent_size": 8}, "experts of another width than the state are not supported"),
    ("deepseek_v2", {"expert_group_count": 3}, "not supported with a softmax"),
    ("deepseek_v2", {"expert_weights_norm": True}, "not supported with a softmax"),
    ("deepseek_v3", {"attention.key_length_mla": 16}, "is 16: of these 16 turn, and some must not"),
    ("ernie4_5_moe", {"expert_feed_forward_length": 15}, "is 15; shared experts have 48 rows"),
    ("minimax_m2", {"expert_gating_func": 1}, "expert_gating_func is not 2, a sigmoid"),
    ("minicpm", {"expert_count": 2}, "expert_count is set: MiniCPM with experts is not supported"),
    ("minicpm", {"logit_scale": 1.9}, "logit_scale is 1.9, which is not 48 by a whole number"),
    ("apertus", {"xielu.beta": [0.5, 0.5]}, "xielu.beta must give a number for each of 3 layers"),
    ("apertus", {"xielu.beta": [0.5, float("nan"), 0.5]}, "xielu.beta must give a number for each of 3 layers"),
    ("apertus", {"xielu.beta": 1}, "xielu.beta must give a number for each of 3 layers, found 1"),
    ("afmoe", {"expert_weights_norm": False}, "route_norm"),
    ("afmoe", {"expert_gating_func": 1}, "expert_gating_func is not 2, a sigmoid"),
    ("afmoe", {"attention.sliding_window_pattern": 3}, "must be three layers of four"),
    ("afmoe", {"expert_group_count": 5}, "n_group"),
    ("smallthinker", {"expert_gating_func": 3}, "expert_gating_func is neither 1, a softmax, nor 2, a sigmoid"),
    ("smallthinker", {"attention.sliding_window_pattern": 5}, "is not 4: every fourth layer has no positions"),
    ("phimoe", {"expert_used_count": 3}, "num_experts_per_tok is 3; its router chooses 2"),
    ("kimi_linear", {"expert_gating_func": 1}, "expert_gating_func is not 2, a sigmoid"),
    ("gemma4", {"rope.dimension_count_swa": 8}, "is 8; supported is 16, the whole of a head"),
    ("gemma4", {"feed_forward_length": [72, 72, 72, 144, 144, 72]}, "supported is one, doubled where slots are shared"),
    ("gemma4", {"attention.head_count_kv": [2, 2, 1, 2, 2, 1]}, "differs between layers that have values apart"),
]


def _learned_in_turn(model: Any, found: Any = mixtures.learned) -> dict[str, Any]:
    """The values of xIELU of the layers, the last first."""
    return {key: values[::-1] for key, values in found(model).items()}


OWN_OF_GEMMA4 = gemma4.own
# Rules of the converter, by what is without them: the model, where the rule is, and what there is in its place.
RULES: list[tuple[str, Any, str, Any]] = [
    ("minicpm", architectures, "ORDERED", ()),
    ("minicpm", mixtures.OWN, "minicpm", lambda c: {}),
    ("apertus", mixtures, "learned", _learned_in_turn),
    ("apertus", architectures, "_divisors", lambda c: {}),
    ("afmoe", mixtures.OWN, "afmoe", lambda c: mixtures._afmoe(c) | {"expert_weights_scale": 1.0}),
    ("afmoe", mixtures.OWN, "afmoe", lambda c: mixtures._afmoe(c) | {"attention.sliding_window": 6}),
    (
        "smallthinker",
        mixtures.OWN,
        "smallthinker",
        lambda c: mixtures._smallthinker(c) | {"attention.sliding_window": 6},
    ),
    ("smallthinker", mixtures.OWN, "smallthinker", lambda c: mixtures._smallthinker(c) | {"expert_gating_func": 1}),
    ("phimoe", mixtures, "STRETCHED", 1.0),
    ("kimi_linear", mixtures, "_of_kimi", partial(mixtures._of_kimi, order="qvk")),
    ("kimi_linear", mixtures.OWN, "kimi_linear", lambda c: mixtures._kimi(c) | {"expert_group_used_count": 3}),
    ("ministral3", architectures, "ORDERED", ()),
    ("rwkv7", rwkv7, "LERPS", "rwkvga"),
    ("gemma4", gemma4, "divisors", lambda c: {}),
    ("gemma4", gemma4, "own", lambda c: OWN_OF_GEMMA4(c) | {"attention.sliding_window": 4}),
]


@pytest.mark.parametrize(("name", "place", "rule", "other"), RULES)
def test_each_rule_of_the_converter_counts(
    name: str, place: Any, rule: str, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name][1]()
    with torch.no_grad():
        expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
    (monkeypatch.setitem if isinstance(place, dict) else monkeypatch.setattr)(place, rule, other)
    _, path = write(name, tmp_path / "m.gguf")
    assert np.abs(all_logits(of_file(path), IDS) - expected).max() > 1e-2


@pytest.mark.parametrize(("name", "changed", "why"), WRONG)
def test_what_no_config_says_is_refused(name: str, changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    _, path = write(name, tmp_path / "m.gguf", **changed)
    with pytest.raises(CheckpointError, match=re.escape(why)) as caught:
        of_file(path)
    assert "\n" not in str(caught.value)


def test_experts_without_groups_are_one_group(tmp_path: Path) -> None:
    groups = {"expert_group_count": 3, "expert_group_used_count": 2}
    for changed, expected in ({}, (3, 2)), (dict.fromkeys(groups, 0), (1, 1)):
        _, path = write("kimi_linear", tmp_path / "m.gguf", **groups | changed)
        found = [block for block in of_file(path).spec.blocks if isinstance(block, Moe)]
        assert found
        assert {(block.groups, block.top_groups) for block in found} == {expected}


def test_older_files_of_deepseek_have_keys_and_values_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And say the sizes of heads alone."""
    plain = mixtures.changed
    whole = lambda name, *rest: None if name.endswith("kv_b_proj.weight") else plain(name, *rest)  # noqa: E731
    monkeypatch.setattr(mixtures, "changed", whole)
    for kind in ("deepseek_v2", "deepseek_v3"):
        monkeypatch.setitem(mixtures.OWN, kind, lambda c: mixtures._latent(c) | mixtures._experts_of(c))
    for name in ("deepseek_v2", "deepseek_v3"):
        model, path = write(name, tmp_path / f"{name}.gguf")
        with torch.no_grad():
            expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
        assert np.abs(all_logits(of_file(path), IDS) - expected).max() < 1e-3 * max(1.0, np.abs(expected).max())
