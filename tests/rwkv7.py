"""RWKV-7 in torch, one token after another, written from the formulas of the paper (arXiv 2503.14456) and of the
authors' inference code; parameters have the names of published checkpoints.

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


class Rwkv7Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "rwkv7"

    def __init__(
        self,
        vocab_size: int = 101,
        hidden_size: int = 48,
        head_dim: int = 16,
        num_hidden_layers: int = 3,
        intermediate_size: int | None = 72,
        hidden_ratio: float | None = 4.0,
        decay_low_rank_dim: int = 10,
        a_low_rank_dim: int = 6,
        gate_low_rank_dim: int = 12,
        v_low_rank_dim: int = 7,
        value_dim: list[int] | None = None,
        norm_eps: float = 1e-5,
        norm_first: bool = True,
        max_position_embeddings: int = 96,
        **others: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.head_dim = vocab_size, hidden_size, head_dim
        self.num_hidden_layers, self.num_heads = num_hidden_layers, hidden_size // head_dim
        self.intermediate_size, self.hidden_ratio = intermediate_size, hidden_ratio
        self.decay_low_rank_dim, self.a_low_rank_dim = decay_low_rank_dim, a_low_rank_dim
        self.gate_low_rank_dim, self.v_low_rank_dim = gate_low_rank_dim, v_low_rank_dim
        self.value_dim = value_dim or [hidden_size] * num_hidden_layers
        self.norm_eps, self.norm_first = norm_eps, norm_first
        self.norm_bias, self.hidden_act, self.attn, self.attn_mode, self.fuse_norm = (
            True,
            "sqrelu",
            None,
            "chunk",
            False,
        )
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**{"tie_word_embeddings": False, **others})


class LowRank(nn.Module):
    """Two matrices; the module has the names of a sequence whose second member is an activation."""

    def __init__(self, width: int, out: int, rank: int, between: Any, bias: bool = True) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(width, rank, bias=False), between, nn.Linear(rank, out, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.lora(x)


class TimeMix(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        width, values = config.hidden_size, config.value_dim[layer]
        self.heads, self.layer = config.num_heads, layer
        for name in "rwkvag":
            self.register_parameter(f"x_{name}", nn.Parameter(torch.zeros(1, 1, width)))
        self.k_k, self.k_a = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.r_k = nn.Parameter(torch.zeros(config.num_heads, config.head_dim))
        for name, size in (("r", width), ("k", width), ("v", values)):
            self.add_module(f"{name}_proj", nn.Linear(width, size, bias=False))
        self.o_proj = nn.Linear(values, width, bias=False)
        self.w_lora = LowRank(width, width, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = LowRank(width, width, config.a_low_rank_dim, nn.Identity())
        self.g_lora = LowRank(width, values, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        if layer:
            self.v_lora = LowRank(width, values, config.v_low_rank_dim, nn.Identity())
        self.g_norm = nn.GroupNorm(config.num_heads, values, eps=config.head_dim * config.norm_eps)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [n, width] -> what is added, and the value of the first layer."""
        moved = F.pad(x, (0, 0, 1, -1)) - x
        r, w, k, v, a, g = (x + moved * getattr(self, f"x_{name}")[0, 0] for name in "rwkvag")
        decay = torch.exp(-torch.exp(torch.tensor(-0.5)) * torch.sigmoid(self.w_lora(w)))
        value = self.v_proj(v)
        first = value if first is None else first
        if self.layer:
            value = value + (first - value) * torch.sigmoid(self.v_lora(v))
        rate, gate, key, query = torch.sigmoid(self.a_lora(a)), self.g_lora(g), self.k_proj(k), self.r_proj(r)
        sought = F.normalize((key * self.k_k).view(len(x), self.heads, -1), dim=-1).flatten(1)
        key = key * (1 + (rate - 1) * self.k_a)
        query, decay, key, sought, rate, split = (
            y.view(len(x), self.heads, -1) for y in (query, decay, key, sought, rate, value)
        )
        state = torch.zeros(self.heads, split.shape[-1], key.shape[-1])
        out = []
        for t in range(len(x)):
            transition = torch.diag_embed(decay[t]) - sought[t][:, :, None] * (sought[t] * rate[t])[:, None, :]
            state = state @ transition + split[t][:, :, None] * key[t][:, None, :]
            out.append((state @ query[t][:, :, None])[..., 0])
        y = self.g_norm(torch.stack(out).flatten(1))
        bonus = (query * key * self.r_k).sum(-1, keepdim=True) * split
        return self.o_proj((y + bonus.flatten(1)) * gate), first


class ChannelMix(nn.Module):
    def __init__(self, config: Rwkv7Config, inner: int) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, inner, bias=False)
        self.value = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.relu(self.key(x + (F.pad(x, (0, 0, 1, -1)) - x) * self.x_k)) ** 2)


class Layer(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        for name in ("pre_norm",) * (config.norm_first and layer == 0) + ("attn_norm", "ffn_norm"):
            self.add_module(name, nn.LayerNorm(config.hidden_size, eps=config.norm_eps))
        inner = config.intermediate_size or -(-int(config.hidden_size * config.hidden_ratio) // 32) * 32
        self.attn, self.ffn = TimeMix(config, layer), ChannelMix(config, inner)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.pre_norm(x) if hasattr(self, "pre_norm") else x
        added, first = self.attn(self.attn_norm(x), first)
        x = x + added
        return x + self.ffn(self.ffn_norm(x)), first


class Rwkv7ForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = Rwkv7Config
    base_model_prefix = "model"

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.model.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embeddings

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        found = []
        for ids in input_ids:
            x, first = self.model.embeddings(ids), None
            for layer in self.model.layers:
                x, first = layer(x, first)
            found.append(self.lm_head(self.model.norm(x)))
        return CausalLMOutput(logits=torch.stack(found))


AutoConfig.register("rwkv7", Rwkv7Config)
AutoModelForCausalLM.register(Rwkv7Config, Rwkv7ForCausalLM)
