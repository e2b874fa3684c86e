"""MiniCPM and BlockFFN in torch, written from the formulas of the papers (arXiv 2404.06395, 2507.08771) and of the code
of published checkpoints, whose names the parameters have.

transformers has no such class. Here it gets one, so that the zoo treats it as any other.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
from torch import nn  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

Tensor = Any
F = torch.nn.functional
# What the config of a published BlockFFN says of its layers.
BLOCKS = {
    "attention_type": "mla",
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "ffn_type": "block",
    "ffn_gated": True,
    "router_act": "relu",
    "expert_size": 16,
    "num_experts": 10,
    "norm_after_router": "rms",
    "norm_scale": 1.0,
    "block_implementation": "torch",
}
USUAL = {
    "attention_type": "vanilla",
    "ffn_type": "vanilla",
    "block_implementation": "torch",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "scale_emb": 1,
    "scale_depth": 1,
    "dim_model_base": 1,
    "tie_word_embeddings": True,
}


class MiniCPMConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "minicpm"

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**USUAL, **given})


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Rope(nn.Module):
    """x [heads, n, dim] is turned by positions 0, 1, ... Nothing reads the buffer but those who compare frequencies."""

    def __init__(self, dim: int, theta: float) -> None:
        super().__init__()
        self.dim, self.theta = dim, theta
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> Tensor:
        return 1.0 / self.theta ** (torch.arange(0, self.dim, 2).float() / self.dim)

    def forward(self, x: Tensor) -> Tensor:
        return turned(x, self.frequencies())


def turned(x: Tensor, inv_freq: Tensor) -> Tensor:
    angles = torch.arange(x.shape[-2])[:, None] * inv_freq
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.kv = config.num_attention_heads, config.num_key_value_heads
        self.dim = width // self.heads
        self.rotary_emb = Rope(self.dim, config.rope_theta)
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv * self.dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (p(x).view(len(x), -1, self.dim).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotary_emb(q), self.rotary_emb(k)
        k, v = (y.repeat_interleave(self.heads // self.kv, 0) for y in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(0, 1).flatten(1))


class Latent(nn.Module):
    """Keys and values of all heads from one state of `kv_lora_rank` values; one turned key for all heads."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.rank, self.nope, self.turned = config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim
        self.value = width // self.heads
        self.rotary_emb = Rope(self.turned, config.rope_theta)
        self.q_a_proj = nn.Linear(width, config.q_lora_rank, bias=False)
        self.q_a_layernorm = RmsNorm(config.q_lora_rank, 1e-6)
        self.q_b_proj = nn.Linear(config.q_lora_rank, self.heads * (self.nope + self.turned), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, self.rank + self.turned, bias=False)
        self.kv_a_layernorm = RmsNorm(self.rank, 1e-6)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n = len(x)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(n, self.heads, -1).transpose(0, 1)
        state, key = self.kv_a_proj_with_mqa(x).split([self.rank, self.turned], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(state)).view(n, self.heads, -1).transpose(0, 1)
        key = self.rotary_emb(key[None]).expand(self.heads, -1, -1)
        q = torch.cat([q[..., : self.nope], self.rotary_emb(q[..., self.nope :])], -1)
        k, v = torch.cat([kv[..., : self.nope], key], -1), kv[..., self.nope :]
        scores = q @ k.transpose(1, 2) * (self.nope + self.turned) ** -0.5 + mask
        return self.o_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


class Mlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockFfn(nn.Module):
    """sum over e of norm(relu(W x))_e · W2_e silu(W1_e x), over all experts: those of score 0 add nothing."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, size, width = config.num_experts, config.expert_size, config.hidden_size
        self.linear = config.ffn_type == "block_linear"
        self.router_proj = nn.Linear(width, n, bias=False)
        self.router_norm = RmsNorm(n, config.rms_norm_eps)
        self.up_proj = nn.Parameter(torch.empty((n * size, width) if self.linear else (n, size, width)))
        self.down_proj = nn.Parameter(torch.empty((width, n * size) if self.linear else (n, width, size)))

    def scores(self, x: Tensor) -> Tensor:
        return self.router_norm(torch.relu(self.router_proj(x)))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        if self.linear:
            inner = F.silu(x @ self.up_proj.T).view(len(x), scores.shape[1], -1) * scores[..., None]
            return inner.flatten(1) @ self.down_proj.T
        inner = F.silu(torch.einsum("nw,esw->nes", x, self.up_proj)) * scores[..., None]
        return torch.einsum("nes,ews->nw", inner, self.down_proj)


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Latent(config) if config.attention_type == "mla" else Attention(config)
        self.mlp = Mlp(config) if config.ffn_type == "vanilla" else BlockFfn(config)
        self.depth = config.scale_depth / config.num_hidden_layers**0.5

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.depth * self.self_attn(self.input_layernorm(x), mask)
        return x + self.depth * self.mlp(self.post_attention_layernorm(x))


class MiniCPMForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = MiniCPMConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """attention_mask: None, or what is added to scores [1, 1, n, n]."""
        n, found = input_ids.shape[1], []
        causal = torch.full((n, n), float("-inf")).triu(1)
        mask = attention_mask[0, 0] if attention_mask is not None and attention_mask.ndim == 4 else causal
        for ids in input_ids:
            x = self.model.embed_tokens(ids) * self.config.scale_emb
            for layer in self.model.layers:
                x = layer(x, mask)
            found.append(self.lm_head(self.model.norm(x) / (self.config.hidden_size / self.config.dim_model_base)))
        return CausalLMOutput(logits=torch.stack(found))


AutoConfig.register("minicpm", MiniCPMConfig)
AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM)
