"""MiniCPM and BlockFFN: what their configs leave out, what is refused, and where experts are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.moved import moved, part_shape, stored_shape
from edgedec.models import Part, architecture
from edgedec.spec import LatentAttention, Mlp, Moe

# As the authors' converter writes it: the class, and no model_type.
BLOCKFFN: dict[str, Any] = {
    "architectures": ["MiniCPMForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 768,
    "intermediate_size": 5760,
    "max_position_embeddings": 4096,
    "num_attention_heads": 6,
    "num_hidden_layers": 16,
    "num_key_value_heads": 6,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "vocab_size": 122753,
    "scale_emb": 12,
    "dim_model_base": 256,
    "scale_depth": 1.4,
    "tie_word_embeddings": False,
    "norm_after_router": "rms",
    "norm_scale": 1.0,
    "attention_type": "mla",
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "ffn_type": "block_linear",
    "ffn_gated": True,
    "router_act": "relu",
    "expert_size": 64,
    "num_experts": 48,
    "block_implementation": "torch",
}
SMALL = {"model_type": "minicpm", "vocab_size": 101, "hidden_size": 48, "intermediate_size": 72}
SMALL |= {"num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 64}


def test_the_published_config_of_a_blockffn() -> None:
    spec = architecture(BLOCKFFN).spec(BLOCKFFN)
    attention, experts = spec.layers[0]
    assert isinstance(attention, LatentAttention)
    assert (attention.rank, attention.rope_dim, attention.nope_dim, attention.v_dim) == (256, 64, 128, 128)
    assert (attention.inner_eps, attention.q_rank) == (1e-6, 768)
    assert experts == Moe(48, 48, 64, "relu", normalize=False, gated=False)
    assert (spec.tied, spec.embed_scale, spec.norm_eps, spec.architecture) == (False, 12.0, 1e-5, "minicpm")
    times = {name: {part.times for part in source} for name, source in weights_of(BLOCKFFN).items()}
    assert times["final_norm"] == {256 / 768}
    assert times["blocks.1.down"] == times["blocks.0.o"] == {1.4 / 4}
    assert times["blocks.1.up"] == times["blocks.1.score_norm"] == {1.0}


def weights_of(config: dict[str, Any]) -> Any:
    own = architecture(config)
    return own.weights(own.spec(config), config)


def test_what_a_config_leaves_out_is_what_the_authors_code_assumes() -> None:
    spec = architecture(SMALL).spec(SMALL)
    assert (spec.tied, spec.embed_scale, spec.norm_eps) == (True, 1.0, 1e-6)
    assert spec.attention[0].n_kv_heads == 4
    assert spec.blocks[1] == Mlp(72)
    times = weights_of(SMALL)
    assert times["final_norm"][0].times == 1 / 48
    assert times["blocks.1.down"][0].times == 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ffn_type": "moe"}, "ffn_type 'moe' is not supported; known: vanilla, block, block_linear"),
        ({"attention_type": "linear"}, "attention_type 'linear' is not supported"),
        ({"router_act": "sigmoid"}, "router_act is 'sigmoid'; supported is 'relu' only"),
        ({"norm_after_router": "sum"}, "norm_after_router is 'sum'; supported is 'rms' only"),
        ({"block_implementation": "megablocks"}, "block_implementation 'megablocks' is not supported"),
        ({"expert_size": 24}, "24 is not a multiple of 16"),
    ],
)
def test_other_layers_are_refused(changes: dict[str, Any], said: str) -> None:
    config = BLOCKFFN | changes
    with pytest.raises(CheckpointError, match=said):
        architecture(config).spec(config)


def test_the_norm_of_a_router_must_be_named() -> None:
    """A silent config means shares that sum to one, which is another model."""
    config = {key: value for key, value in BLOCKFFN.items() if key != "norm_after_router"}
    with pytest.raises(CheckpointError, match="norm_after_router is 'sum'"):
        architecture(config).spec(config)


@pytest.mark.parametrize(
    ("changes", "up", "down"),
    [
        ({}, Part("mlp.up_proj", flat=True), Part("mlp.down_proj", beside=48, times=1.4 / 4)),
        ({"ffn_type": "block"}, Part("mlp.up_proj", flat=True), Part("mlp.down_proj", flat=True, times=1.4 / 4)),
        (
            {"ffn_type": "block", "block_implementation": "fastmoe"},
            Part("mlp.experts.up_proj.weight", flat=True),
            Part("mlp.experts.down_proj.weight", flat=True, times=1.4 / 4),
        ),
    ],
)
def test_where_experts_are_stored(changes: dict[str, Any], up: Part, down: Part) -> None:
    found = weights_of(BLOCKFFN | changes)
    for name, expected in (("up", up), ("down", down)):
        (part,) = found[f"blocks.1.{name}"]
        assert part.name == "model.layers.0." + expected.name
        assert (part.flat, part.beside) == (expected.flat, expected.beside)
        assert part.times == pytest.approx(expected.times)


def test_matrices_side_by_side_are_read_one_below_another() -> None:
    stored, part = np.arange(8.0).reshape(2, 4).astype(np.float32), Part("w", beside=2)
    assert part.moved
    assert moved(part, stored).tolist() == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert part_shape(part, (2, 4)) == (4, 2)
    assert stored_shape(part, (4, 2)) == (2, 4)
    with pytest.raises(BadTensor, match=r"w: \[2, 4\] is not 3 matrices side by side"):
        part_shape(Part("w", beside=3), (2, 4))
