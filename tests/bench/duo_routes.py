"""How many large feed-forward networks a token needs: Duo-LLM's oracle beside fixed, random and learned routes.

    python tests/bench/duo_routes.py build/duo texts.txt --minutes 3 --threads 2

The first layers of nano get a small network beside each large one, are trained under random routes, and all routes of
each token of some held-out texts are tried (2 to the power of the layers). Then routers are trained at three budgets.
Given again, the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

import edgedec
from edgedec.export.duo import DuoModel, DuoPlan, DuoTrainer, Routes, all_routes
from edgedec.export.training_loop import train


def show(stage: str, done: int, total: int) -> None:
    print(f"\r{stage} {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def router_loss(trainer: DuoTrainer, rows: list[list[int]]) -> tuple[float, float]:
    """The loss with its routers' likelier choices, and the large networks that a token uses."""
    losses, used = list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        for row in map(torch.tensor, rows):
            logits, shares = trainer.model.routed(row[:-1], 0.0)
            losses.append(functional.cross_entropy(logits, row[1:], reduction="none"))
            used.append(shares.sum(0))
    return float(torch.cat(losses).mean()), float(torch.cat(used).mean())


def table(routes: Routes) -> None:
    names = ("oracle", "best fixed", "last layers", "random")
    print(f"\n| large of {routes.large.shape[1]} | {' | '.join(names)} | oracle's use of each layer |\n{'| --- ' * 6}|")
    for budget in range(routes.large.shape[1] + 1):
        found = routes.at(budget)
        use = " ".join(f"{share:.0%}" for share in routes.chosen(budget))
        print(f"| {budget} | {' | '.join(f'{found[name]:.3f}' for name in names)} | {use} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of checkpoints")
    parser.add_argument("texts", type=Path)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=6, help="held-out texts whose routes are tried")
    args = parser.parse_args()
    model = edgedec.open(args.model)
    plan = DuoPlan(layers=args.layers, minutes=args.minutes, threads=args.threads)
    torch.manual_seed(0)
    encode = model.tokenizer.encode
    trainer = DuoTrainer(DuoModel(model.bundle, args.layers), [args.texts], encode, plan)
    key = f"{model.bundle.digest} {args.texts.stat().st_size} {replace(plan, minutes=0, threads=0)}"
    loss = train(trainer, args.folder / "duo.safetensors", key, show)
    print(f"{trainer.steps} updates of {plan.batch} rows of {plan.length} tokens, loss {loss:.3f}")
    rows = trainer.held[: args.rows]
    table(all_routes(trainer.model, rows))
    print("\n| router's budget | large used | loss |\n| --- | --- | --- |")
    for budget in (0.25, 0.5, 0.75):
        own = replace(plan, budget=budget, minutes=args.minutes / 6)
        routers = DuoTrainer(trainer.model, [args.texts], encode, own, routers=True)
        train(routers, args.folder / f"router-{budget}.safetensors", f"{key} {budget}", show)
        found, used = router_loss(routers, rows)
        print(f"| {budget * args.layers:.1f} | {used:.2f} | {found:.3f} |")


if __name__ == "__main__":
    main()
