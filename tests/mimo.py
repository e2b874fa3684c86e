"""MiMo as it is published: Qwen2, and a layer beside it that says what comes one token further.

The class is remote code of the checkpoints, not part of transformers; the layer is written anew from what it computes.
A head reads the model's states as the authors' engine gives them: before the last norm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
from torch import nn  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm  # noqa: E402

Tensor = Any
F = torch.nn.functional
# What the published config.json says beside the sizes.
PUBLISHED = {
    "architectures": ["MiMoForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_mimo.MiMoConfig",
        "AutoModel": "modeling_mimo.MiMoModel",
        "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM",
    },
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_window_layers": 32,
    "model_type": "mimo",
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 640000,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
}
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
SIZES = SMALL | {"head_dim": 16}


class MtpAttention(nn.Module):
    """Causal attention with biases on q, k and v, of rows at positions 0, 1, ..."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim)
        self.k_proj = nn.Linear(config.hidden_size, self.kv * self.dim)
        self.v_proj = nn.Linear(config.hidden_size, self.kv * self.dim)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        q, k, v = (
            project(x).view(n, -1, self.dim).transpose(0, 1) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        angles = torch.arange(n)[:, None] * PUBLISHED["rope_theta"] ** (-torch.arange(0, self.dim, 2) / self.dim)
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

        def turned(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        k, v = (y.repeat_interleave(self.heads // self.kv, 0) for y in (turned(k), v))
        found = F.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        return self.o_proj(found.transpose(0, 1).reshape(n, -1))


class MtpMlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MiMoMTPLayers(nn.Module):
    """One layer; its parameters have the published names."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        for name in ("input", "post_attention", "token", "hidden", "final"):
            self.add_module(f"{name}_layernorm", Qwen2RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.input_proj = nn.Linear(config.hidden_size * 2, config.hidden_size, bias=False)
        self.self_attn, self.mlp = MtpAttention(config), MtpMlp(config)

    def state(self, embedded: Tensor, states: Tensor) -> Tensor:
        """What a row hands on: row i has the state at token i and the embedding of token i + 1 [n, hidden_size]."""
        x = self.input_proj(torch.cat([self.hidden_layernorm(states), self.token_layernorm(embedded)], -1))
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        """What the model's readout reads."""
        return self.final_layernorm(self.state(embedded, states))


class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    config_class = MiMoConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        layers = [MiMoMTPLayers(config) for _ in range(config.num_nextn_predict_layers)]
        self.model.mtp_layers = nn.ModuleList(layers)


def random(seed: int = 0, **changes: Any) -> Any:
    """A model whose every parameter is drawn."""
    torch.manual_seed(seed)
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": PUBLISHED["rope_theta"]}}
    kept = {key: value for key, value in PUBLISHED.items() if key not in ("auto_map", "model_type", "rope_theta")}
    model = MiMoForCausalLM(MiMoConfig(**{**kept, **theta, **SIZES, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim == 1 else 2.0 / weight.shape[-1] ** 0.5
            weight.copy_((1.0 if name.endswith("norm.weight") else 0.0) + spread * torch.randn_like(weight))
        model.get_input_embeddings().weight.mul_(0.5)
    model.config._attn_implementation = "eager"
    return model.eval()


def save(model: Any, folder: Path) -> Path:
    """The folder as it is published: shards with an index, and the config in its old form."""
    model.save_pretrained(folder, max_shard_size="60KB")
    sizes = {key: getattr(model.config, key) for key in SIZES}
    (folder / "config.json").write_text(json.dumps(PUBLISHED | sizes, indent=1))
    return folder
