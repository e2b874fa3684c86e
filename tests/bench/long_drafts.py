"""A draft head whose state stays of one size, from 1K to 32K tokens: bytes of its state, and tokens a call.

    python tests/bench/long_drafts.py build/long stories.txt --minutes 6 --plot docs/img/longspec.png

nano reads 1,024 tokens, so its positions are stretched first: its base is raised as NTK scaling does, and it is trained
on for --minutes on rows of 512 tokens in four parts that stand anywhere, in order, in 32,768 positions (PoSE). Then
`longspec` and `eagle3` heads are trained for as many minutes on rows of the same text (`train-heads`), and both draft
after 1K, 2K, … 32K tokens of other texts of the file. What is in the folder already is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models" / "nano"))

import model as net  # noqa: E402

import edgedec  # noqa: E402
import export as nano  # noqa: E402
from edgedec.export.exporter import ExportOptions, export  # noqa: E402

LONGEST, ROW, BATCH, PARTS, RATE, SEED = 32768, 512, 4, 4, 4e-4, 29
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
GENERATED, ROOM = 96, 128
JOIN = "\n\n"
HEADS = ("longspec", "eagle3")
THETA = 10000.0 * (LONGEST / 1024) ** (net.HD / (net.HD - 2))


# ---- the target --------------------------------------------------------------------------------------------


def places(rng: np.random.Generator) -> Tensor:
    """Positions of a row: its parts follow each other anywhere in the longest context."""
    gaps = np.diff(np.sort(rng.integers(0, LONGEST - ROW, PARTS)), prepend=0)
    return torch.from_numpy(np.arange(ROW) + np.repeat(np.cumsum(gaps), ROW // PARTS))


def tables(at: Tensor) -> tuple[Tensor, Tensor]:
    """at [B, T] -> cos, sin [B, 1, T, head dim]"""
    inverse = THETA ** (-torch.arange(0, net.HD, 2).float() / net.HD)
    angle = (at[..., None].float() * inverse).repeat(1, 1, 2)[:, None]
    return angle.cos(), angle.sin()


def row_losses(weights: dict[str, Tensor], rows: Tensor, at: Tensor) -> Tensor:
    """rows [B, T + 1] at [B, T] -> the mean loss of a token"""
    x, (cos, sin) = functional.embedding(rows[:, :-1], weights["embed"]), tables(at)
    for parts in zip(*(weights[name].unbind(0) for name in (*net.MATRICES, *net.NORMS)), strict=True):
        x = net.layer(x, cos, sin, *parts)
    return net.token_losses(x.reshape(-1, net.D), weights["norm"], weights["embed"], rows[:, 1:].reshape(-1)).mean()


def stretched(ids: np.ndarray, minutes: float) -> dict[str, Tensor]:
    """nano's weights, trained on for 32K positions."""
    weights = nano.from_bundle(nano_bundle())
    for tensor in weights.values():
        tensor.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    rng, begin, step = np.random.default_rng(SEED), monotonic(), 0
    while (done := (monotonic() - begin) / 60 / minutes) < 1:
        starts = rng.integers(0, len(ids) - ROW - 1, BATCH)
        rows = torch.from_numpy(np.stack([ids[i : i + ROW + 1] for i in starts])).long()
        optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / 10, 1 - done)
        loss = row_losses(weights, rows, torch.stack([places(rng) for _ in range(BATCH)]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        step += 1
        if step % 10 == 1:
            print(f"target: step {step}, {done:.0%}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return weights


def nano_bundle() -> str:
    return str(ROOT / "models" / "nano" / "bundle")


def make_target(folder: Path, ids: np.ndarray, minutes: float) -> Path:
    """The bundle of the stretched model."""
    out = folder / "target"
    if not out.exists():
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (tokenizer / name).write_bytes((Path(nano_bundle()) / name).read_bytes())
        weights = stretched(ids, minutes)
        net.GEOMETRY |= {"rope_theta": THETA, "max_position_embeddings": LONGEST + ROOM}
        nano.folder(weights, folder)
        export(str(folder / "hf"), out, ExportOptions(weights="int8", check=False, runtimes=()))
    return out


# ---- heads and measurement ---------------------------------------------------------------------------------


def make_head(kind: str, target: Path, texts: Path, minutes: float, threads: int) -> Path:
    """A copy of the target with a head."""
    out = target.with_name(kind)
    if not out.exists():
        command = [sys.executable, "-m", "edgedec", "train-heads", str(target), str(texts), "--kind", kind]
        command += ["--out", str(out), "--minutes", str(minutes), "--length", "256", "--threads", str(threads)]
        subprocess.run(command, check=True)
    return out


def drafted(bundle: Path, kind: str, ids: np.ndarray, contexts: list[int], threads: int) -> list[dict[str, Any]]:
    """Tokens a call after each context of one text, and the bytes of what the head keeps."""
    model = edgedec.open(str(bundle), engine="native", threads=threads)
    session, found = model.session(speculate=f"{kind}:fixed=7"), list[dict[str, Any]]()
    for context in contexts:
        session.append(ids[len(session.ids) : context].tolist())
        list(session.tokens(max_tokens=1, ignore_eos=True))
        twin = session.fork()
        before = (twin.stats.generated, twin.stats.calls)
        list(twin.tokens(max_tokens=GENERATED, ignore_eos=True))
        tokens, calls = twin.stats.generated - before[0], twin.stats.calls - before[1]
        state = twin.report()["drafters"][kind]["state_bytes"]
        found.append({"context": context, "tokens_per_call": tokens / calls, "state_bytes": state})
        print(f"{kind} {found[-1]}", file=sys.stderr, flush=True)
    return found


def mean(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The means over texts."""
    return [{key: sum(one[key] for one in same) / len(same) for key in same[0]} for same in zip(*runs, strict=True)]


def plot(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Tokens a call and the bytes of the head's state, by the length of the text."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for kind, points in found.items():
        x = [point["context"] for point in points]
        axes[0].plot(x, [point["tokens_per_call"] for point in points], "o-", label=kind)
        axes[1].plot(x, [point["state_bytes"] / 1024 for point in points], "o-", label=kind)
    for axis, label in zip(axes, ("tokens a call, 7 guesses", "KiB of the head's state"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(x, [f"{n // 1024}K" for n in x])
        axis.set_xlabel("tokens of text")
        axis.set_ylabel(label)
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
        axis.grid(True, color="0.9")
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0, help="of each of the trainings")
    parser.add_argument("--heads", default=",".join(HEADS))
    parser.add_argument("--longest", type=int, default=LONGEST, help="tokens of the longest text")
    parser.add_argument("--count", type=int, default=2, help="texts")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.folder.mkdir(parents=True, exist_ok=True)
    encode = edgedec.open("nano", engine="native", threads=1).tokenizer.encode
    stories = args.texts.read_text("utf-8").split("<|endoftext|>")
    first = next(n for n in range(100, len(stories), 100) if len(encode(JOIN.join(stories[:n]))) > args.count * LONGEST)
    held, learned = (np.array(encode(JOIN.join(some))) for some in (stories[:first], stories[first:]))
    texts = args.folder / "learned.txt"
    texts.write_text("<|endoftext|>".join(stories[first:]), "utf-8")
    target = make_target(args.folder, learned, args.minutes)
    contexts = [n for n in CONTEXTS if n <= args.longest]
    found = dict[str, list[dict[str, Any]]]()
    for kind in args.heads.split(","):
        bundle = make_head(kind, target, texts, args.minutes, args.threads)
        parts = np.split(held[: args.count * LONGEST], args.count)
        found[kind] = mean([drafted(bundle, kind, part, contexts, args.threads) for part in parts])
    print("| tokens of text | " + " | ".join(f"`{kind}` | KiB" for kind in found) + " |")
    print("| --- " * (1 + 2 * len(found)) + "|")
    for rows in zip(*found.values(), strict=True):
        cells = [f"{row['tokens_per_call']:.2f} | {row['state_bytes'] / 1024:.0f}" for row in rows]
        print(f"| {rows[0]['context']:.0f} | {' | '.join(cells)} |")
    (args.folder / "long.json").write_text(json.dumps(found))
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
