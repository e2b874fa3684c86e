"""Tiny checkpoints of every decoder type that optimum-onnx 0.1 exports, written by transformers 5, with ropes that are
not the default ones: what does not read `rope_parameters` computes something else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

VOCAB = 300
ENDS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FLAT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    **ENDS,
}
GROUPED = FLAT | {"num_key_value_heads": 2}
PLAIN = {key: value for key, value in FLAT.items() if key != "num_key_value_heads"}
ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
PART: dict[str, Any] = {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}
TWO: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
}
YARN: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, **ENDS}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
BART = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 256,
    "decoder_start_token_id": 1,
    **ENDS,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 8}
GEMMA = {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16}
NEO = {"hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4}
FALCON = {"multi_query": True, "alibi": False, "bias": False, "parallel_attn": True}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 8},
    "codegen": GPT | {"n_head": 16, "n_embd": 128, "rotary_dim": 8},
    "gpt_neo": NEO | {"max_position_embeddings": 256, "window_size": 16, **ENDS},
    "gpt_neox": PLAIN | PART,
    "opt": PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "llama": GROUPED | ROPE,
    "arcee": GROUPED | ROPE,
    "deepseek_v3": FLAT
    | {**EXPERTS, **LATENT, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, **ROPE},
    "cohere": GROUPED | ROPE,
    "glm": GROUPED | {"head_dim": 16, **PART},
    "helium": GROUPED | {"head_dim": 16, **ROPE},
    "smollm3": GROUPED | ROPE,
    "stablelm": GROUPED | PART,
    "olmo": GROUPED | ROPE,
    "olmo2": GROUPED | ROPE,
    "qwen2": GROUPED | ROPE,
    "qwen3": FLAT | {"head_dim": 16, **ROPE},
    "qwen3_moe": FLAT | {"head_dim": 16, "num_experts": 4, **EXPERTS, **ROPE},
    "gemma": GROUPED | {"head_dim": 16, **ROPE},
    "gemma2": GROUPED | GEMMA | ROPE,
    "gemma3_text": FLAT | GEMMA | TWO,
    "gpt_oss": GROUPED
    | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, **YARN},
    "nemotron": GROUPED | PART,
    "granite": GROUPED | ROPE,
    "phi": PLAIN | PART,
    "phi3": FLAT | ROPE,
    "mistral": GROUPED | {"sliding_window": None, **ROPE},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "expansion_ratio": 2, **ENDS},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, **ENDS},
    "gpt_bigcode": GPT,
    "falcon": PLAIN | FALCON | ROPE,
    "bart": BART,
    "mbart": BART,
    "blenderbot": BART,
    "blenderbot-small": BART,
    "bigbird_pegasus": BART,
    "pegasus": BART,
    "marian": BART,
}
# gemma3 is gemma3_text inside a config of towers; internlm2 is code of its own, which is never run.
ELSEWHERE = ("gemma3", "internlm2")

SCRIPT = """
import json, sys, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
from optimum.exporters.onnx import main_export
from optimum.exporters.tasks import TasksManager
root, task, failed = Path(sys.argv[1]), "text-generation-with-past", {}
for place in sorted((root / "staged").iterdir()):
    try:
        main_export(str(place), root / "onnx" / place.name, task=task, do_validation=False)
    except Exception as error:
        failed[place.name] = str(error)
known = [kind for kind, of in TasksManager._SUPPORTED_MODEL_TYPE.items() if task in of.get("onnx", {})]
(root / "exported.json").write_text(json.dumps({"failed": failed, "known": known}))
"""


def write_checkpoints(folder: Path) -> None:
    """FOLDER/KIND of each kind, random."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    for kind, values in KINDS.items():
        torch.manual_seed(0)
        config = getattr(transformers, CONFIG_MAPPING_NAMES.get(kind, "BlenderbotSmallConfig"))(**values)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    torch.nn.init.normal_(weight, std=0.25)
        model.save_pretrained(folder / kind)


def export_all(python: Path, folder: Path) -> dict[str, Any]:
    """FOLDER/onnx/KIND of each FOLDER/staged/KIND, by one process of optimum's Python; what failed, and the kinds that
    it knows."""
    subprocess.run([str(python), "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads((folder / "exported.json").read_text())
    return found
