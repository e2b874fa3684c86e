"""Phi-4-mini-flash in torch, whole texts at once, written from the formulas of its paper (arXiv 2507.06607), of the
differential transformer's (arXiv 2410.05258) and of published code; parameters have the names of published checkpoints.

transformers has no such class. Here it gets one, so that the zoo treats it as any other.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
from torch import nn  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

Tensor = Any
F = torch.nn.functional


class Phi4FlashConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "phi4flash"

    def __init__(
        self,
        vocab_size: int = 101,
        hidden_size: int = 48,
        intermediate_size: int = 72,
        num_hidden_layers: int = 8,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 4,
        sliding_window: int | list[int | None] = 5,
        mamba_d_state: int = 10,
        mamba_d_conv: int = 3,
        mamba_expand: int = 2,
        mamba_dt_rank: int | str = 7,
        mamba_proj_bias: bool = True,
        mlp_bias: bool = True,
        lm_head_bias: bool = True,
        layer_norm_eps: float = 1e-5,
        max_position_embeddings: int = 96,
        **others: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.mb_per_layer = num_key_value_heads, 2
        self.sliding_window = sliding_window
        self.mamba_d_state, self.mamba_d_conv, self.mamba_expand = mamba_d_state, mamba_d_conv, mamba_expand
        self.mamba_dt_rank, self.mamba_conv_bias, self.mamba_proj_bias = mamba_dt_rank, True, mamba_proj_bias
        self.mlp_bias, self.lm_head_bias, self.layer_norm_eps = mlp_bias, lm_head_bias, layer_norm_eps
        self.hidden_act, self.rope_theta, self.max_position_embeddings = "silu", 1e4, max_position_embeddings
        super().__init__(**{"tie_word_embeddings": True, **others})

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class Pairs(nn.Module):
    """The learned numbers of differential attention."""

    def __init__(self, dim: int, layer: int) -> None:
        super().__init__()
        for name in ("q1", "k1", "q2", "k2"):
            setattr(self, f"lambda_{name}", nn.Parameter(torch.zeros(dim)))
        self.subln = nn.RMSNorm(2 * dim, eps=1e-5)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        share = (self.lambda_q1 * self.lambda_k1).sum().exp() - (self.lambda_q2 * self.lambda_k2).sum().exp()
        return self.subln(first - (share + self.start) * second) * (1 - self.start)


class DiffAttention(nn.Module):
    def __init__(self, config: Phi4FlashConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        half = config.num_hidden_layers // 2
        self.cross = layer >= half + 2
        self.window = config.sliding_window if layer < half else None
        if isinstance(self.window, list):
            self.window = self.window[layer]
        rows = self.heads + (0 if self.cross else 2 * self.kv_heads)
        self.Wqkv = nn.Linear(config.hidden_size, rows * self.dim)
        self.out_proj = nn.Linear(self.heads * self.dim, config.hidden_size)
        self.inner_cross_attn = Pairs(self.dim, layer)

    def forward(self, x: Tensor, shared: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        n = len(x)
        parts = self.Wqkv(x).view(n, -1, self.dim)
        q = parts[:, : self.heads]
        k, v = shared if self.cross else parts[:, self.heads :].split(self.kv_heads, dim=1)
        apart = torch.arange(n)[:, None] - torch.arange(n)[None]
        seen = (apart >= 0) & (apart < (self.window or n))
        out = []
        for pair in range(self.heads // 2):
            at = pair // (self.heads // self.kv_heads)  # the pair of keys and values
            value = torch.cat([v[:, 2 * at], v[:, 2 * at + 1]], dim=-1)
            both = []
            for part in range(2):
                scores = q[:, 2 * pair + part] @ k[:, 2 * at + part].T / self.dim**0.5
                both.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value)
            out.append(self.inner_cross_attn(*both))
        return self.out_proj(torch.cat(out, dim=-1)), (k, v)


class Mamba(nn.Module):
    """Or, in the second half, a gated memory unit."""

    def __init__(self, config: Phi4FlashConfig, layer: int) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.mamba_proj_bias
        inner, self.size = config.mamba_expand * hidden, config.mamba_d_state
        self.cross = layer >= config.num_hidden_layers // 2 + 2
        self.out_proj = nn.Linear(inner, hidden, bias=bias)
        self.in_proj = nn.Linear(hidden, inner if self.cross else 2 * inner, bias=bias)
        if self.cross:
            return
        self.rank = -(-hidden // 16) if config.mamba_dt_rank == "auto" else int(config.mamba_dt_rank)
        self.conv1d = nn.Conv1d(inner, inner, config.mamba_d_conv, groups=inner, padding=config.mamba_d_conv - 1)
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.size, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log, self.D = nn.Parameter(torch.zeros(inner, self.size)), nn.Parameter(torch.zeros(inner))

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.cross:
            return self.out_proj(memory * F.silu(self.in_proj(x))), memory
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.T[None])[0, :, : len(x)].T)
        low, b, c = self.x_proj(x).split([self.rank, self.size, self.size], dim=-1)
        dt, decay, state, out = F.softplus(self.dt_proj(low)), -self.A_log.exp(), torch.zeros_like(self.A_log), []
        for i in range(len(x)):
            state = (dt[i][:, None] * decay).exp() * state + (dt[i] * x[i])[:, None] * b[i]
            out.append(state @ c[i] + self.D * x[i])
        y = torch.stack(out)
        return self.out_proj(y * F.silu(z)), y


class GatedMlp(nn.Module):
    def __init__(self, config: Phi4FlashConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Phi4FlashConfig, layer: int) -> None:
        super().__init__()
        for name in ("input_layernorm", "post_attention_layernorm"):
            setattr(self, name, nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps))
        self.attends = bool(layer % 2)
        self.attn = DiffAttention(config, layer) if self.attends else Mamba(config, layer)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, kept: dict[bool, Any]) -> Tensor:
        added, kept[self.attends] = self.attn(self.input_layernorm(x), kept.get(self.attends))
        x = x + added
        return x + self.mlp(self.post_attention_layernorm(x))


class Phi4FlashForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = Phi4FlashConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Phi4FlashConfig) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.model.final_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        found = []
        for ids in input_ids:
            x, kept = self.model.embed_tokens(ids), dict[bool, Any]()
            for layer in self.model.layers:
                x = layer(x, kept)
            found.append(self.lm_head(self.model.final_layernorm(x)))
        return CausalLMOutput(logits=torch.stack(found))


AutoConfig.register("phi4flash", Phi4FlashConfig)
AutoModelForCausalLM.register(Phi4FlashConfig, Phi4FlashForCausalLM)
