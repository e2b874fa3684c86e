"""Small checkpoints as Hugging Face writes them, made with numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Words of more than one byte, and a two-byte character whose bytes stay apart.
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("o", "n"), ("a", "n"), ("an", "d")]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|bot|>"]
VOCAB = 256 + len(MERGES) + len(SPECIAL)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|bot|>' }}{{ m.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": VOCAB - 4,
    "eos_token_id": VOCAB - 3,
}

# Llama 3's rope.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def write_llama(folder: Path, *, seed: int = 0, tokenizer: bool = True, **config: Any) -> Path:
    """A random Llama with the given config entries changed, and a byte-level tokenizer of `VOCAB` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = LLAMA | config
    (folder / "config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(seed)
    write_safetensors(folder / "model.safetensors", {n: _random(rng, s) for n, s in llama_shapes(settings).items()})
    if tokenizer:
        write_tokenizer(folder)
    return folder


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every weight of a Llama by its checkpoint name."""
    h, m, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], h)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        found |= {
            f"{p}.input_layernorm.weight": (h,),
            f"{p}.self_attn.q_proj.weight": (q, h),
            f"{p}.self_attn.k_proj.weight": (kv, h),
            f"{p}.self_attn.v_proj.weight": (kv, h),
            f"{p}.self_attn.o_proj.weight": (h, q),
            f"{p}.post_attention_layernorm.weight": (h,),
            f"{p}.mlp.gate_proj.weight": (m, h),
            f"{p}.mlp.up_proj.weight": (m, h),
            f"{p}.mlp.down_proj.weight": (h, m),
        }
    found["model.norm.weight"] = (h,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], h)
    return found


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.writelines([len(raw).to_bytes(8, "little"), raw, *(t.tobytes() for t in tensors.values())])


def write_tokenizer(folder: Path) -> None:
    """256 bytes, a few merges and four special tokens; BOS goes before every text; a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    bos = raw.token_to_id("<s>")
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    raw.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Norms near one; matrices wide enough that the text is not one token for ever."""
    values = rng.standard_normal(shape, np.float32)
    return 1 + np.float32(0.2) * values if len(shape) == 1 else values * np.float32(2 / shape[-1] ** 0.5)
