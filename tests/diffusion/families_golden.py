"""What the nearest classes of transformers predict for the checkpoints of `families.py`, by a 4-D mask.

python tests/diffusion/families_golden.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from diffusion.families import FAMILIES, GOLDEN, VOCAB, State, drawn, states

from edgedec.bundle.manifest import DiffusionFacts

Floats = NDArray[np.float32]
# (model_type of transformers, entries of its config in place of the authors')
NEAREST: dict[str, tuple[str, dict[str, Any]]] = {
    "llada": ("llama", {}),
    "llada_biased": ("qwen2", {}),
    "dream": ("qwen2", {}),
    "fast_dllm": ("qwen2", {}),
    "sdar": ("qwen3", {}),
    "sdar_moe": ("qwen3_moe", {}),
    "wedlm": ("qwen3", {}),
    "wedlm_qwen2": ("qwen2", {}),
    "llada_moe": (
        "qwen3_moe",
        {"moe_intermediate_size": 16, "intermediate_size": 72, "mlp_only_layers": [0], "head_dim": 16}
        | {"norm_topk_prob": False},
    ),
    "llada2_moe": ("glm4_moe", {"attention_bias": True, "n_routed_experts": 12, "n_shared_experts": 2}),
    "a2d": ("qwen3", {}),
}
LLADA = {
    "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 3, "vocab_size": 104,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-4, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
RENAMED = [
    (r"model\.transformer\.wte", "model.embed_tokens"),
    (r"model\.transformer\.ln_f", "model.norm"),
    (r"model\.transformer\.ff_out", "lm_head"),
    (r"model\.transformer\.blocks", "model.layers"),
    (r"(layers\.\d+)\.attn_norm", r"\1.input_layernorm"),
    (r"(layers\.\d+)\.ff_norm", r"\1.post_attention_layernorm"),
    (r"(layers\.\d+)\.([qkv]_proj)", r"\1.self_attn.\2"),
    (r"(layers\.\d+)\.attn_out", r"\1.self_attn.o_proj"),
    (r"(layers\.\d+)\.ff_proj", r"\1.mlp.gate_proj"),
    (r"(layers\.\d+)\.up_proj", r"\1.mlp.up_proj"),
    (r"(layers\.\d+)\.ff_out", r"\1.mlp.down_proj"),
    (r"word_embeddings", "embed_tokens"),
    (r"attention\.query_layernorm", "self_attn.q_norm"),
    (r"attention\.key_layernorm", "self_attn.k_norm"),
    (r"attention\.dense", "self_attn.o_proj"),
    (r"gate\.expert_bias", "gate.e_score_correction_bias"),
]


def renamed(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """Under the names of transformers; q, k and v apart."""
    found = {}
    for name, values in tensors.items():
        for pattern, new in RENAMED:
            name = re.sub(pattern, new, name)
        if ".attention.query_key_value" in name:
            for part, rows in zip("qkv", np.split(values, [64, 96]), strict=True):
                found[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows
        else:
            found[name] = values
    return found


def model_of(name: str) -> Any:
    """The model of transformers with a family's weights."""
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    kind, entries = NEAREST[name]
    own = LLADA if name.startswith("llada") and "moe" not in name else dict(FAMILIES[name].config)
    own.pop("architectures", None)
    tensors = renamed(drawn(FAMILIES[name].tensors))
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(own | entries | {"model_type": kind}))
        file = Path(folder) / "model.safetensors"
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, file, {"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    loaded = dict(model.named_parameters()) | dict(model.named_buffers())
    for tensor, values in tensors.items():
        if tensor.endswith("o_proj.bias") and tensor not in loaded:  # Glm4Moe has none
            layer = model.get_submodule(tensor.removesuffix(".bias"))
            layer.bias = torch.nn.Parameter(torch.tensor(values))
        elif ".experts." not in tensor:
            np.testing.assert_array_equal(loaded[tensor].detach().numpy(), values)
    return model


def order(facts: DiffusionFacts, state: State) -> list[int]:
    """The positions of the rows: a causal model reads what is known first."""
    every = range(len(state.tokens))
    return [*(i for i in every if i not in state.masked), *state.masked] if facts.context == "causal" else list(every)


def sees(facts: DiffusionFacts, n: int) -> NDArray[np.bool_]:
    """[n, n]: what each row sees."""
    block = np.arange(n) // facts.block
    if facts.context == "full":
        return np.ones((n, n), bool)
    return np.tri(n, dtype=bool) if facts.context == "causal" else block[:, None] >= block[None]


def predicted(model: Any, facts: DiffusionFacts, state: State) -> Floats:
    """The logits of each masked position of the block [n, vocab]."""
    import torch

    places = order(facts, state)
    mask = torch.where(torch.tensor(sees(facts, len(places))), 0.0, torch.finfo(torch.float32).min)[None, None]
    ids, positions = torch.tensor([[state.tokens[i] for i in places]]), torch.tensor([places])
    with torch.no_grad():
        logits: Floats = model(input_ids=ids, position_ids=positions, attention_mask=mask).logits[0].numpy()
    return logits[[places.index(i - int(facts.shift)) for i in state.masked]]


def made(name: str) -> dict[str, Floats]:
    model, facts = model_of(name), FAMILIES[name].facts
    return {f"{name}.{i}": predicted(model, facts, state) for i, state in enumerate(states(facts))}


if __name__ == "__main__":
    arrays = {key: value for name in FAMILIES for key, value in made(name).items()}
    for key, value in arrays.items():
        print(key, value.shape, f"{value.std():.2f}")
        assert value.shape[1] in (VOCAB, 104)
    np.savez_compressed(GOLDEN, **arrays)  # type: ignore[arg-type]
