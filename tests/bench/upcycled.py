"""A small trained mixture of experts: a Llama checkpoint whose feed-forwards become experts, trained on a text.

    python tests/bench/upcycled.py CHECKPOINT stories.txt OUT [--experts 8] [--minutes 15] [--held 100000]

Sparse upcycling (Komatsuzaki et al., arXiv:2212.05055), of each copy half of the channels drawn anew so that experts
differ (Nakamura et al., arXiv:2502.19261): a checkpoint of type mixtral, two experts a row. The last `--held`
characters of the text are not read; their perplexity is printed, and they are written to OUT/held.txt.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from edgedec.text.tokenizer import Tokenizer

_GROUP, _LENGTH, _TEXTS = 32, 256, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--held", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dense = LlamaForCausalLM.from_pretrained(args.checkpoint, torch_dtype=torch.float32)
    model, content = upcycled(dense, args.experts), args.text.read_text("utf-8")
    encode = Tokenizer.load(args.checkpoint / "tokenizer.json").encode
    ids = torch.tensor(encode(content[: -args.held]))
    held = torch.tensor(encode(content[-args.held :]))
    print(f"{len(ids)} tokens; the dense model's perplexity is {perplexity(dense, held):.3f}", flush=True)
    trained(model, ids, args.minutes, args.rate)
    print(f"the mixture's is {perplexity(model, held):.3f}", flush=True)
    model.save_pretrained(args.out)
    (args.out / "held.txt").write_text(content[-args.held :], "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (args.checkpoint / name).is_file():
            shutil.copy(args.checkpoint / name, args.out / name)


def upcycled(dense: Any, experts: int) -> Any:
    """The mixture, its experts' channels filled up to whole groups with zeros."""
    wide = -(-dense.config.intermediate_size // _GROUP) * _GROUP
    facts = dense.config.to_dict() | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    own = {"intermediate_size": wide, "num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": None}
    own |= {"output_router_logits": True, "router_aux_loss_coef": 0.02}
    model = MixtralForCausalLM(MixtralConfig(**facts | own))
    found = {name: value for name, value in dense.state_dict().items() if ".mlp." not in name}
    missing = model.load_state_dict(found, strict=False).missing_keys
    assert all(".mlp." in name or name == "lm_head.weight" for name in missing), missing
    for layer, old in zip(model.model.layers, dense.model.layers, strict=True):
        gate, up, down = (getattr(old.mlp, f"{name}_proj").weight.data for name in ("gate", "up", "down"))
        n = len(gate)
        for e in range(experts):
            again = torch.randperm(n)[: n // 2]
            parts = [part.clone() for part in (gate, up, down.T)]
            for part in parts:
                part[again] = torch.randn(len(again), part.shape[1]) * part.std()
            put(layer.mlp.experts, e, *parts, wide)
    return model


def put(stack: Any, e: int, gate: Any, up: Any, down: Any, wide: int) -> None:
    """An expert's matrices; down is [channels, hidden]."""
    with torch.no_grad():
        stack.gate_up_proj[e].zero_()
        stack.down_proj[e].zero_()
        stack.gate_up_proj[e][: len(gate)] = gate
        stack.gate_up_proj[e][wide : wide + len(up)] = up
        stack.down_proj[e][:, : len(down)] = down.T


def trained(model: Any, ids: Any, minutes: float, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, step, window = monotonic(), 0, 60 * minutes
    while (spent := monotonic() - began) < window:
        part = spent / window
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - part)
        starts = torch.randint(len(ids) - _LENGTH, (_TEXTS,))
        batch = torch.stack([ids[at : at + _LENGTH] for at in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4), "s": round(spent)}), flush=True)
        step += 1


@torch.no_grad()
def perplexity(model: Any, ids: Any) -> float:
    total, rows = 0.0, 0
    for at in range(0, min(len(ids), 1 << 14) - _LENGTH, _LENGTH):
        batch = ids[at : at + _LENGTH][None]
        logits = model(input_ids=batch).logits[0, :-1]
        total += float(torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="sum"))
        rows += _LENGTH - 1
    return float(torch.tensor(total / rows).exp())


if __name__ == "__main__":
    main()
