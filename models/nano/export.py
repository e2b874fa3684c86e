"""Weights -> a Hugging Face folder, and stories sampled straight from them."""

import json
import shutil

import data
import model
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 400}


def facts(path):
    with safe_open(path, "pt") as f:
        return json.loads(f.metadata()["facts"])


def config():
    return model.GEOMETRY | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def llama_name(name, i):
    block = "" if name in model.NORMS else "self_attn." if name[1] == "_" else "mlp."
    return f"model.layers.{i}.{block}{name}.weight"


def named(weights):
    """Our stacked tensors under Llama's names."""
    out = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["norm"]}
    for name in (*model.MATRICES, *model.NORMS):
        out |= {llama_name(name, i): part for i, part in enumerate(weights[name])}
    return {k: v.detach().clone() for k, v in out.items()}


def stacked(tensors):
    """The way back from `named`."""
    out = {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"]}
    return out | {
        name: torch.stack([tensors[llama_name(name, i)] for i in range(model.L)])
        for name in (*model.MATRICES, *model.NORMS)
    }


def from_bundle(path):
    """The float32 weights of a bundle that `recipe.py` exported."""
    from edgedec.bundle.folder import Bundle

    bundle = Bundle.open(path)
    out = {"embed": bundle.rows("embed"), "norm": bundle.rows("final_norm")}
    layers = [bundled(bundle, *bundle.spec.span(i, i + 1)) for i in range(model.L)]
    out |= {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    return {name: torch.from_numpy(w) for name, w in out.items()}


def bundled(bundle, attention, mlp):
    """{our name: matrix or norm} of a layer of a bundle."""
    q, kv = model.H * model.HD, model.K * model.HD
    qkv = np.split(bundle.rows(f"blocks.{attention}.qkv"), [q, q + kv])
    gate, up = np.split(bundle.rows(f"blocks.{mlp}.gate_up"), 2)
    found = dict(zip(("q_proj", "k_proj", "v_proj"), qkv)) | {"gate_proj": gate, "up_proj": up}
    found |= {"o_proj": bundle.rows(f"blocks.{attention}.o"), "down_proj": bundle.rows(f"blocks.{mlp}.down")}
    norms = zip(model.NORMS, (attention, mlp))
    return found | {name: bundle.rows(f"blocks.{block}.norm") for name, block in norms}


def folder(weights, work, name="hf"):
    """Writes work/hf; each file is replaced whole."""
    new, old = work / f"{name}.new", work / name
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(work / "tokenizer", new)
    save_file(named(weights), new / "model.safetensors", {"format": "pt"})
    generation = SAMPLING | {"bos_token_id": 0, "eos_token_id": 0}
    for name, content in (("config.json", config()), ("generation_config.json", generation)):
        (new / name).write_text(json.dumps(content, indent=2) + "\n")
    old.mkdir(exist_ok=True)
    for path in new.iterdir():
        path.replace(old / path.name)
    new.rmdir()


@torch.no_grad()
def mean_loss(weights, stories, group=8):
    """Nats a token over encoded stories, end tokens included."""
    stories, total = sorted(stories, key=len), 0.0
    for i in range(0, len(stories), group):
        total += float(model.losses(weights, data.closed(stories[i : i + group])).sum())
    return total / sum(map(len, stories))


@torch.no_grad()
def story(weights, tok, opening, temperature, seed, limit=250):
    """Samples after the opening until the end token; temperature 0 is greedy."""
    g, ids = torch.Generator().manual_seed(seed), tok.encode(opening).ids
    while len(ids) < limit:
        x = model.hidden(weights, torch.tensor([ids]))[0, -1]
        logits = model.rms(x, weights["norm"]) @ weights["embed"].T
        ids.append(pick(logits, temperature, g))
        if ids[-1] == 0:
            break
    return tok.decode(ids)


def pick(logits, temperature, g, top_p=SAMPLING["top_p"]):
    """logits [V] -> token, from the smallest set of likeliest tokens that holds top_p."""
    if temperature == 0:
        return int(logits.argmax())
    p, order = torch.softmax(logits / temperature, -1).sort(descending=True)
    p[p.cumsum(0) - p > top_p] = 0
    return int(order[torch.multinomial(p, 1, generator=g)])
