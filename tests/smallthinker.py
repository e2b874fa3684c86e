"""SmallThinker in torch, written from the formulas of the paper (arXiv 2507.20984) and of the code of published
checkpoints, whose names the parameters have.

transformers has no such class. Here it gets one, so that the zoo treats it as any other.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
from minicpm import RmsNorm, Rope  # noqa: E402
from torch import nn  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

Tensor = Any
F = torch.nn.functional
# Layers with a window turn their heads, every fourth from the first on sees all and does not.
USUAL = {
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_layout": [0, 1, 1, 1, 0],
    "sliding_window_layout": [0, 1, 1, 1, 0],
    "sliding_window_size": 5,
    "moe_num_primary_experts": 6,
    "moe_num_active_primary_experts": 2,
    "moe_ffn_hidden_size": 16,
    "moe_primary_router_apply_softmax": False,
    "tie_word_embeddings": True,
}


class SmallThinkerConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "smallthinker"

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**USUAL, **given})


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, self.dim = config.hidden_size, config.head_dim
        self.heads, kv = config.num_attention_heads, config.num_key_value_heads
        self.window = config.sliding_window_size if config.sliding_window_layout[layer] else None
        self.rotary_emb = Rope(self.dim, config.rope_theta) if config.rope_layout[layer] else nn.Identity()
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(width, kv * self.dim, bias=False)
        self.v_proj = nn.Linear(width, kv * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (p(x).view(len(x), -1, self.dim).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotary_emb(q), self.rotary_emb(k)
        k, v = (y.repeat_interleave(self.heads // len(y), 0) for y in (k, v))
        if self.window:
            before = torch.arange(len(x))[:, None] - torch.arange(len(x))
            mask = mask.masked_fill(before >= self.window, float("-inf"))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(0, 1).flatten(1))


class Expert(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.moe_ffn_hidden_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.moe_ffn_hidden_size, bias=False)
        self.down = nn.Linear(config.moe_ffn_hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The k largest logits of a router that reads `entered`, weighed by softmax, or by sigmoids over their sum."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.k, self.softmax = config.moe_num_active_primary_experts, config.moe_primary_router_apply_softmax
        self.primary_router = nn.Linear(config.hidden_size, config.moe_num_primary_experts, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.moe_num_primary_experts))

    def forward(self, entered: Tensor, x: Tensor) -> Tensor:
        logits, chosen = self.primary_router(entered).topk(self.k, -1)
        shares = logits.sigmoid()
        weights = logits.softmax(-1) if self.softmax else shares / shares.sum(-1, keepdim=True)
        each = torch.stack([expert(x) for expert in self.experts], 1)
        return (each.gather(1, chosen[..., None].expand(-1, -1, x.shape[1])) * weights[..., None]).sum(1)


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.block_sparse_moe = Experts(config)

    def forward(self, entered: Tensor, mask: Tensor) -> Tensor:
        x = entered + self.self_attn(self.input_layernorm(entered), mask)
        return x + self.block_sparse_moe(entered, self.post_attention_layernorm(x))


class SmallThinkerForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = SmallThinkerConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
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
            x = self.model.embed_tokens(ids)
            for layer in self.model.layers:
                x = layer(x, mask)
            found.append(self.lm_head(self.model.norm(x)))
        return CausalLMOutput(logits=torch.stack(found))


AutoConfig.register("smallthinker", SmallThinkerConfig)
AutoModelForCausalLM.register(SmallThinkerConfig, SmallThinkerForCausalLM)
