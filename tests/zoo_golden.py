"""The zoo's checkpoints and what transformers makes of them, without torch.

`golden/zoo.json.xz` has each model's config and the names and shapes of its tensors, whose values numpy draws;
`golden/zoo.npz` has the logits of TOKENS, and the text that follows PROMPT. Models that came later have such a pair of
their own, `zoo_<part>`. All are made again, with torch, by the first line; the second makes a pair, or these of it:

    python tests/zoo_golden.py
    python tests/zoo_golden.py PART MODEL...
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).with_name("golden")
PROMPT = [1, 7, 3, 99]
STEPS = 64
TOKENS = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77, 6, 12, 40, 100, 8, 21, 34, 55]
# Names of weights of norms and of factors, and of embeddings, in all families.
NORM = re.compile(r"([nN]orm(_1|_2|_f|s\.\d+)?|ln_\w+|subln)\.weight$|(layer_scalar|router\.(scale|per_expert_scale))$")
EMBEDDING = re.compile(r"embed_tokens|embed_in|word_embeddings\.|wte|wpe")
# transformers has no class of its own for it.
_NOT_THERE = {"mimo"}


class Golden(NamedTuple):
    """Of one model. logits: of TOKENS; text: the likeliest tokens, one after another, from PROMPT on."""

    config: dict[str, Any]
    tensors: dict[str, list[int]]
    logits: NDArray[np.float32]
    text: list[int]


@cache
def _recipes() -> dict[str, tuple[str, Any]]:
    """By model: its part, and its config with its tensors."""
    found: dict[str, tuple[str, Any]] = {}
    for path in sorted(GOLDEN.glob("zoo*.json.xz")):
        recipes = json.loads(lzma.decompress(path.read_bytes()))
        found |= {name: (path.name.removesuffix(".json.xz"), recipe) for name, recipe in recipes.items()}
    return found


def names() -> list[str]:
    return sorted(_recipes())


# Of the models that came later, one for each fact and kind.
_FEW = {
    *("apertus", "bitnet", "bloom", "cohere2", "diffllama", "gpt_neox", "mpt", "stablelm_beside"),
    *("blockffn", "ernie4_5_moe", "falcon_h1", "gemma3n_text", "gemma4", "gemma4_experts", "gpt_oss", "lfm2"),
    *("nemotron_h", "nemotron_h_experts", "olmo_hybrid", "phimoe", "phi4flash", "qwen3_next", "rwkv7", "youtu"),
    *("modernbert_decoder", "unixcoder", "zamba2"),
}


def few() -> list[str]:
    """The models of the first pair, and those of `_FEW`: what runs where torch is absent."""
    return sorted(name for name, (part, _) in _recipes().items() if part == "zoo" or name in _FEW)


def golden(name: str) -> Golden:
    part, recipe = _recipes()[name]
    with np.load(GOLDEN / f"{part}.npz") as arrays:
        return Golden(recipe["config"], recipe["tensors"], arrays[f"{name}.logits"], arrays[f"{name}.text"].tolist())


def fitted(config: dict[str, Any]) -> dict[str, Any]:
    """The zoo's odd sizes as ONNX Runtime's attention takes them: a multiple of 8 rotated pairs a head."""
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "longrope" and "partial_rotary_factor" in rope:
        rope = rope | {"partial_rotary_factor": 0.5}
        rope |= {key: [*rope[key], 3.0, 12.0] for key in ("short_factor", "long_factor")}
        return config | {"hidden_size": 128, "rope_parameters": rope}
    if "num_attention_heads" not in config and "text_config" not in config:
        return config
    if config.get("rope_parameters", {}).get("partial_rotary_factor") == 0.25 and "linear_key_head_dim" in config:
        return config | {"head_dim": 64}
    if "text_config" in config and "linear_key_head_dim" in config["text_config"]:
        return config | {"text_config": fitted(config["text_config"])}
    if "rotary_dim" in config:
        return config | {"rotary_dim": 16, "hidden_size": 32 * config["num_attention_heads"]}
    partial = config.get("rope_parameters", {}).get("partial_rotary_factor", 1.0) < 1
    if config.get("head_dim", 16) % 16 or (partial and "head_dim" in config):
        return config | {"head_dim": 32}
    if "head_dim" in config or "hidden_size" not in config:
        return config
    heads = config.get("num_attention_heads", 4)
    wide = (32 if partial else 16) * heads
    return config | {"hidden_size": 64 if wide <= 64 and 64 % heads == 0 else wide}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, list[int]], wild: float = 1.0) -> Path:
    """A checkpoint whose every tensor is drawn, norms around their neutral value too. wild: what their spread is
    multiplied by; the golden logits are of 1."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    drawn = {}
    for name, shape in tensors.items():
        rng = np.random.default_rng(crc32(name.encode()))
        wide = wild * spread(name, shape) * (0.5 if EMBEDDING.search(name) else 1.0)
        drawn[name] = np.asarray(neutral(name, config["model_type"]) + wide * rng.standard_normal(shape), np.float32)
    save_file(drawn, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def spread(name: str, shape: Sequence[int]) -> float:
    """How far the values of a tensor spread."""
    if name.endswith(("gate_up_proj_bias", "sinks")):
        return 3.0  # enough to be cut, and to be seen
    if name.endswith("attn.x_proj.weight"):  # so that scans leave something to be seen of the attention beside them
        return 0.2 / float(shape[-1]) ** 0.5
    if re.search(r"\.(shared_transformer|mamba_decoder)\.", name) and len(shape) == 2:
        # Zamba2: adapters are added, and what feeds a block passes through norms alone.
        return (0.5 if "_adapter_list." in name else 1.0) / float(shape[-1]) ** 0.5
    if name.endswith("position_embeddings.weight"):  # UniXcoder: its texts would repeat one token
        return 1.0
    if name.endswith("modality_router.weight"):  # what it reads is divided by the width
        return float(shape[-1]) ** 0.5
    if name.endswith(("prediction_coefs.weight", "correction_coefs.weight")):  # so that streams stay in size
        return 0.2
    # Decays of Kimi Linear have the axes of a state; transformers' sums of 64 rows' are exact only where they are mild.
    return 0.3 if len(shape) < 2 or (len(shape) == 4 and name.endswith("A_log")) else 2.0 / shape[-1] ** 0.5


def neutral(name: str, family: str) -> float:
    """What weights are drawn around. Gemma 3n and 4 do not divide scores: their queries are small."""
    if not NORM.search(name) or less_one(name, family):
        return 0.0
    return 0.3 if name.endswith("q_norm.weight") and family.lower().startswith(("gemma3n", "gemma4")) else 1.0


def less_one(name: str, family: str) -> bool:
    """Whether a norm's weight is stored less 1. family: a model type, or what the name of its class begins with."""
    family = family.lower().replace("_", "")
    qwen = family.startswith(("qwen3next", "qwen35"))
    gemma = "gemma" in family and not family.startswith(("gemma3n", "gemma4"))
    return gemma or family == "nemotron" or (qwen and "linear_attn" not in name and "visual" not in name)


def logits_of_transformers(folder: Path, ids: list[int]) -> NDArray[np.float32]:
    """[n, vocab], by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        found: NDArray[np.float32] = model(torch.tensor([ids])).logits[0].numpy()
    return found


def text_of_transformers(folder: Path) -> list[int]:
    """PROMPT and the likeliest tokens after it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    ids, most = list(PROMPT), getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    with torch.no_grad():
        while len(ids) < min(len(PROMPT) + STEPS, most):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def _parts(arguments: list[str]) -> dict[str, list[str]]:
    """The models of each part to make: of the one that the arguments name, or of all."""
    import zoo

    if arguments:
        return {f"zoo_{arguments[0]}": sorted(arguments[1:])}
    of = {name: part for name, (part, _) in _recipes().items()}
    parts: dict[str, list[str]] = {}
    for name in sorted(set(zoo.ZOO) - _NOT_THERE):
        parts.setdefault(of.get(name, "zoo"), []).append(name)
    return parts


def _make(part: str, models: list[str]) -> None:
    from tempfile import TemporaryDirectory
    from unittest import mock

    import zoo
    from safetensors import safe_open

    recipes, arrays, random = dict[str, Any](), dict[str, Any](), zoo._random
    if (GOLDEN / f"{part}.npz").is_file():
        recipes = {name: recipe for name, (of, recipe) in _recipes().items() if of == part and name in zoo.ZOO}
        with np.load(GOLDEN / f"{part}.npz") as old:
            arrays = {key: old[key] for key in old if key.rsplit(".", 1)[0] in recipes}
    for name in models:
        with TemporaryDirectory() as place:
            folder = Path(place)
            with mock.patch.object(zoo, "_random", lambda a, b, config, seed: random(a, b, fitted(config), seed)):
                zoo.save(name, folder / "torch")
            config = json.loads((folder / "torch" / "config.json").read_text())
            with safe_open(folder / "torch" / "model.safetensors", "np") as file:
                tensors = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            drawn = write(folder / "drawn", config, tensors)
            arrays[f"{name}.logits"] = logits_of_transformers(drawn, TOKENS)
            arrays[f"{name}.text"] = np.array(text_of_transformers(drawn), np.int16)
        recipes[name] = {"config": config, "tensors": tensors}
        print(name, f"{arrays[f'{name}.logits'].std():.2f}", arrays[f"{name}.text"][-8:])
    recipes = dict(sorted(recipes.items()))
    (GOLDEN / f"{part}.json.xz").write_bytes(lzma.compress(json.dumps(recipes).encode()))
    np.savez_compressed(GOLDEN / f"{part}.npz", **arrays)


if __name__ == "__main__":
    for made, models in _parts(sys.argv[1:]).items():
        _make(made, models)
