"""A BlockFFN (arXiv:2507.08771) smaller than nano, trained from nothing on its sampled stories: experts chosen by ReLU,
which the objectives of `edgedec.export.sparse_experts` make few, and the same for neighbours.

python models/nano/blockffn.py --text TEXTS --work build/blockffn --minutes 20
python models/nano/blockffn.py --text TEXTS --work build/blockffn-plain --minutes 20 --plain

writes `hf`, a checkpoint in the authors' format for `edgedec export`, and `held.txt`, stories that were not learned,
for `edgedec eval ppl` and `edgedec eval experts`. `--plain` leaves the objectives out.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus
import data
import model
import torch
import torch.nn.functional as F
from optimizer import Optimizer
from safetensors.torch import save_file
from tokenizers import Tokenizer

import export
from edgedec.export.sparse_experts import LOCALITY, Factor, chunks, locality, used_shares

SEED, WARMUP, FALL = 27, 60, 0.3
D, H, LAYERS, EXPERTS, SIZE, EPS = 64, 2, 4, 40, 16, 1e-5
LENGTH, ROWS = 128, 8
BUNDLE = Path(__file__).resolve().parent / "bundle"
MATRICES = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (D, D))
MATRICES |= {"up_proj": (EXPERTS * SIZE, D), "down_proj": (D, EXPERTS * SIZE)}


def new_weights(seed):
    """{name: tensor}, stacked as nano's; the router [L, E, D], and the weights of the norm of its scores [L, E]."""
    g = torch.Generator().manual_seed(seed)
    w = {"embed": torch.randn(model.V, D, generator=g) * 0.02, "norm": torch.ones(D)}
    for name, shape in (MATRICES | {"router_proj": (EXPERTS, D)}).items():
        spread = 0.0 if name in ("o_proj", "down_proj") else shape[1] ** -0.5
        w[name] = torch.randn(LAYERS, *shape, generator=g) * spread
    return w | {name: torch.ones(LAYERS, D) for name in model.NORMS} | {"router_norm": torch.ones(LAYERS, EXPERTS)}


def layer(x, cos, sin, w, i):
    """x [B, T, D] -> [B, T, D], and the router's scores [B, T, E] before the ReLU."""
    h = F.rms_norm(x, (D,), w["input_layernorm"][i], EPS)
    q, k, v = (F.linear(h, w[f"{name}_proj"][i]).unflatten(-1, (H, -1)).transpose(1, 2) for name in "qkv")
    q, k = model.rotate(q, cos, sin), model.rotate(k, cos, sin)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + F.linear(mixed, w["o_proj"][i])
    h = F.rms_norm(x, (D,), w["post_attention_layernorm"][i], EPS)
    raw = F.linear(h, w["router_proj"][i])
    scores = F.rms_norm(torch.relu(raw), (EXPERTS,), w["router_norm"][i], EPS)
    inner = F.silu(F.linear(h, w["up_proj"][i])).unflatten(-1, (EXPERTS, SIZE)) * scores[..., None]
    return x + F.linear(inner.flatten(-2), w["down_proj"][i]), raw


def run(w, batch):
    """batch [B, T + 1] -> the mean loss of next tokens, and of every layer the scores of its router."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    cos, sin = model.rope_tables(tokens.shape[1])
    x, raws = F.embedding(tokens, w["embed"]), []
    for i in range(LAYERS):
        x, raw = layer(x, cos, sin, w, i)
        raws.append(raw)
    logits = F.linear(F.rms_norm(x, (D,), w["norm"], EPS), w["embed"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), raws


def stories(text):
    """The sampled stories, shuffled -> those to learn, those held out."""
    found = corpus.sampled(text / "stories_sampled_t065.txt.xz")
    random.Random(SEED).shuffle(found)
    return found[:-200], found[-200:]


def batches(tok, learned):
    """Endless batches [ROWS, LENGTH + 1] of shuffled passes."""
    encoded, rng = data.encode(tok, learned), random.Random(SEED)
    while True:
        rng.shuffle(encoded)
        rows = [torch.from_numpy(row.astype("int64")) for row in data.rows(encoded, LENGTH + 1)]
        for i in range(0, len(rows) - ROWS, ROWS):
            yield torch.stack(rows[i : i + ROWS])


def train(feed, minutes, plain, steady, say):
    """The weights after so many minutes, and the steps; the rate falls over the last part of the time."""
    w = {name: value.requires_grad_() for name, value in new_weights(SEED).items()}
    optimizer, factor, total, batch = Optimizer(w, ()), Factor(steady=steady), torch.zeros(5), next(feed)
    began = time.time()  # all texts are encoded by now
    while (progress := (time.time() - began) / (60 * minutes)) < 1:
        loss, raws = run(w, batch)
        within = (batch[:, :-1] != 0).float()
        near = torch.stack([locality(raw, within) for raw in raws]).mean()
        far = torch.stack([chunks(raw) for raw in raws]).mean()
        weight = factor.step(far.item())
        whole = loss if plain else loss + LOCALITY * near + weight * far
        grads = dict(zip(w, torch.autograd.grad(whole, list(w.values()), allow_unused=plain)))
        rate = min(1.0, (optimizer.steps + 1) / WARMUP, (1 - progress) / FALL)
        optimizer.step({name: g for name, g in grads.items() if g is not None}, rate)
        shares = torch.tensor([used_shares(r, 8) for r in raws]).mean(0)
        total += torch.tensor([loss.item(), near.item(), far.item(), *shares.tolist()])
        batch = next(feed)
        if optimizer.steps % 50 == 0:
            means = total / 50
            say(
                f"step {optimizer.steps} min {progress * minutes:.1f} loss {means[0]:.3f} locality {means[1]:.3f} "
                f"chunks {means[2]:.3f} x {weight:.3f} experts of a token {means[3]:.1%}, of 8 {means[4]:.1%}"
            )
            total.zero_()
    return {name: value.detach() for name, value in w.items()}, optimizer.steps


def config():
    """As the authors' converter writes it; multipliers that change nothing."""
    kept = ("vocab_size", "rope_theta", "max_position_embeddings")
    return {key: model.GEOMETRY[key] for key in kept} | {
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "hidden_size": D,
        "num_attention_heads": H,
        "rms_norm_eps": EPS,
        "num_hidden_layers": LAYERS,
        "attention_type": "vanilla",
        "ffn_type": "block_linear",
        "hidden_act": "silu",
        "router_act": "relu",
        "expert_size": SIZE,
        "num_experts": EXPERTS,
        "norm_after_router": "rms",
        "block_implementation": "torch",
        "tie_word_embeddings": True,
        "scale_emb": 1,
        "scale_depth": LAYERS**0.5,
        "dim_model_base": D,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def named(w):
    """Our stacked tensors under the authors' names."""
    out = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["norm"]}
    for i in range(LAYERS):
        for name in (*MATRICES, *model.NORMS, "router_proj", "router_norm"):
            stored = export.llama_name(name, i)
            out[stored.removesuffix(".weight") if name in ("up_proj", "down_proj") else stored] = w[name][i].clone()
    return out


def write(w, work):
    folder = work / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(named(w), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(), indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((BUNDLE / name).read_bytes())


def main(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    args.work.mkdir(parents=True, exist_ok=True)
    learned, held = stories(args.text)
    (args.work / "held.txt").write_text("\n\n".join(held))
    tok = Tokenizer.from_file(str(BUNDLE / "tokenizer.json"))
    w, steps = train(batches(tok, learned), args.minutes, args.plain, args.steady, lambda line: print(line, flush=True))
    write(w, args.work)
    print(f"{steps} steps of {LENGTH * ROWS} tokens, {sum(x.numel() for x in w.values())} parameters")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder with stories_sampled_t065.txt.xz")
    parser.add_argument("--work", type=Path, required=True, help="where the checkpoint goes")
    parser.add_argument("--minutes", type=float, default=20, help="training time (default 20)")
    parser.add_argument("--plain", action="store_true", help="without the objectives that make experts few")
    parser.add_argument("--steady", type=int, default=1000, help="steps before the factor follows the loss")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
