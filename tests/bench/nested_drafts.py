"""One nested draft (S2D, SortedNet) for two targets: tokens a call, and what the draft model ran for them.

    python tests/bench/nested_drafts.py build/nested texts.txt --minutes 2 --threads 2

The draft is nano's first layers, trained so that a part of them is a model of its own; the targets are nano and nano
with its last layers left out and trained on as well. Given again, the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import edgedec
from edgedec.bundle import Bundle

PROMPTS = ("Once upon a time", "One day, a dog", "Tom and Lily", "The little bird", "Mom said that", "There was a red")


def write_checkpoint(bundle: Bundle, layers: int, folder: Path) -> None:
    """The first layers of a bundle of a Llama as a Hugging Face folder."""
    spec, folder = bundle.spec, Path(folder)
    block, mlp = spec.blocks[0], spec.blocks[1]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": mlp.inner_size,
        "num_hidden_layers": layers,
        "num_attention_heads": block.n_heads,
        "num_key_value_heads": block.n_kv_heads,
        "head_dim": block.head_dim,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }

    def rows(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.array(bundle.rows(name), np.float32))

    tensors = {"model.embed_tokens.weight": rows("embed"), "model.norm.weight": rows("final_norm").reshape(-1)}
    for i in range(layers):
        a, b, p = 2 * i, 2 * i + 1, f"model.layers.{i}."
        q, k, v = np.split(rows(f"blocks.{a}.qkv"), [block.q_dim, block.q_dim + block.kv_dim])
        gate, up = np.split(rows(f"blocks.{b}.gate_up"), 2)
        tensors |= {f"{p}self_attn.{n}_proj.weight": x for n, x in (("q", q), ("k", k), ("v", v))}
        tensors |= {f"{p}self_attn.o_proj.weight": rows(f"blocks.{a}.o"), f"{p}mlp.gate_proj.weight": gate}
        tensors |= {f"{p}mlp.up_proj.weight": up, f"{p}mlp.down_proj.weight": rows(f"blocks.{b}.down")}
        tensors[f"{p}input_layernorm.weight"] = rows(f"blocks.{a}.norm").reshape(-1)
        tensors[f"{p}post_attention_layernorm.weight"] = rows(f"blocks.{b}.norm").reshape(-1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: x.copy() for name, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source := bundle.path / name).exists():
            shutil.copyfile(source, folder / name)


def made(folder: Path, name: str, layers: int, args: argparse.Namespace, *options: str) -> Path:
    """The bundle of nano's first layers, trained."""
    out = folder / name
    if not out.exists():
        write_checkpoint(edgedec.open("nano").bundle, layers, folder / f"{name}-hf")
        common = ["--minutes", str(args.minutes), "--threads", str(args.threads), "--length", "128", "--rate", "1e-3"]
        train = ["train-exits", str(folder / f"{name}-hf"), str(args.texts), "-o", str(folder / f"{name}-trained")]
        work = ["--work", str(folder / f"{name}-work"), "--force"]
        edgedec_(*train, *common, *work, *options)
        edgedec_("export", str(folder / f"{name}-trained"), "-o", str(out), "--weights", "int8")
    return out


def edgedec_(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "edgedec", *command], check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each training")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    drafts = {
        method: made(args.folder, method, 6, args, "--method", method, "--exits", "2,4")
        for method in ("s2d", "sortednet")
    }
    other = made(args.folder, "ten", 10, args, "--method", "s2d", "--exits", "9")
    print(
        "| target | draft | tokens a call | tokens of 2, 4, 6 layers | the same text |\n| --- | --- | --- | --- | --- |"
    )
    for target in ("nano", str(other)):
        model = edgedec.open(target, engine="native", threads=args.threads)
        for method, path in drafts.items():
            for how in ("nested:layers=2-4,threshold=0.5", "nested:layers=2-4,threshold=1", "model:"):
                spec = f"{how}{',' if '=' in how else ''}path={path},fixed=4"
                tokens, calls, same, used = 0, 0, True, [0, 0, 0]
                for start in PROMPTS:
                    ids = model.tokenizer.encode(start)
                    plain = [int(t) for t in model.session(speculate="off").tokens(ids, max_tokens=64, ignore_eos=True)]
                    session = model.session(speculate=spec)
                    same &= [int(t) for t in session.tokens(ids, max_tokens=64, ignore_eos=True)] == plain
                    tokens, calls = tokens + 64, calls + session.stats.calls
                    if how.startswith("nested"):
                        by = session.report()["drafters"]["nested"]["layers"]
                        used = [a + b for a, b in zip(used, by.values(), strict=True)]
                name = f"{method}, {how.rstrip(':')}"
                print(f"| {Path(target).name} | {name} | {tokens / calls:.2f} | {used} | {same} |", flush=True)


if __name__ == "__main__":
    main()
