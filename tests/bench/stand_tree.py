"""STAND's tree, learned from data, and what it brings under sampling.

    python tests/bench/stand_tree.py build/stand.json                              # learn, write, compare
    edgedec run --spec stand:verify=recursive,choices=build/stand.json --temp 1 …

Learned: a tree of --trial nodes runs on --samples texts at --temp; the --nodes paths of ranks that were accepted most
often are written. Compared, on other prompts: tokens a call of n trajectories of each prompt with tables of their own
and with shared ones (best of n), the deterministic table beside drawn trees whose shape is learned as they go, and
beside drawn ones of the learned shape. All of them may use as many nodes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import edgedec
from edgedec.bench.prompts import choose_prompts, read_prompts
from edgedec.decoding.messages import StepResult
from edgedec.drafters import Tables
from edgedec.drafters.stand import Stand
from edgedec.plugins.words import quoted
from edgedec.sampling import Sampling
from edgedec.trees.choices import Ranks, accepted_ranks, best_choices
from edgedec.trees.grow import grow

DEPTH, FIRST, NEXT = 20, 0.75, 0.25
OPENINGS = ("Once upon a time", "One day", "The little", "Tom and", "Lily had a", "Mom said")


def trial_tree(nodes: int, k: int) -> list[Ranks]:
    """A large tree to begin with, up to 20 deep: each rank a quarter as likely as the one before."""
    claims = [FIRST * NEXT**rank for rank in range(k)]

    def followers(path: Ranks) -> list[tuple[int, float, Ranks]]:
        return [(rank, p, (*path, rank)) for rank, p in enumerate(claims)] if len(path) < DEPTH else []

    root: Ranks = ()
    draft, paths = grow(root, followers, nodes), list[Ranks]()
    for rank, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths


class Counted:
    """Within it, the paths of ranks that STAND's drawn drafts have accepted are counted."""

    def __enter__(self) -> Counter[Ranks]:
        self.found, self.observe = Counter[Ranks](), Stand.observe
        Stand.observe = lambda drafter, step: self.count(drafter, step)  # type: ignore
        return self.found

    def __exit__(self, *error: object) -> None:
        Stand.observe = self.observe  # type: ignore[method-assign]

    def count(self, drafter: Stand, step: StepResult) -> None:
        first = step.root + 1
        parents = [int(parent) - first for parent in step.rows.parents[first:]]
        self.found.update(accepted_ranks(parents, [row - 1 for row in step.path[1:]]))
        self.observe(drafter, step)


def learn(model: edgedec.Model, args: argparse.Namespace, trial: Path) -> list[Ranks]:
    """The paths accepted most often in texts of the model, each drafted for with what the earlier ones left."""
    trial.write_text(json.dumps(trial_tree(args.trial, args.k)))
    spec, tables = f"stand:verify=recursive,k={args.k},choices={quoted(str(trial))},fixed={args.trial}", Tables()
    with Counted() as accepted:
        for seed in range(args.samples):
            run(model, spec, tables, OPENINGS[seed % len(OPENINGS)], 1000 + seed, args)
    trial.unlink()
    return best_choices(accepted, args.nodes)


def run(model: edgedec.Model, spec: str, tables: Tables | None, text: str, seed: int, args: argparse.Namespace) -> Any:
    """The counts of one text."""
    session = model.session(speculate=spec, tables=tables)
    sampling = Sampling(temperature=args.temp, seed=seed)
    list(session.tokens(model.tokenizer.encode(text), max_tokens=args.n, ignore_eos=True, sampling=sampling))
    return session.stats


def trajectories(model: edgedec.Model, spec: str, shared: bool, args: argparse.Namespace) -> float:
    """Tokens a call of the later half of the trajectories of each prompt."""
    generated = calls = 0
    for prompt in choose_prompts(read_prompts(None), args.categories.split(","), args.limit):
        tables: Tables | None = {} if shared else None
        for seed in range(args.best_of):
            stats = run(model, spec, tables, prompt.turns[0], seed, args)
            if seed >= args.best_of // 2:
                generated, calls = generated + stats.generated, calls + stats.calls
    return generated / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the file of the learned tree")
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--trial", type=int, default=625, help="nodes of the tree to begin with")
    parser.add_argument("--samples", type=int, default=30, help="texts that it runs on")
    parser.add_argument("--nodes", type=int, default=16, help="paths that are kept")
    parser.add_argument("-k", type=int, default=8, help="tokens kept under a context")
    parser.add_argument("-n", type=int, default=120, help="tokens of a text")
    parser.add_argument("--best-of", type=int, default=8, help="trajectories of a prompt")
    parser.add_argument("--categories", default="story,dialogue,chat")
    parser.add_argument("--limit", type=int, default=2, help="prompts of a category")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model = edgedec.open(args.model, engine="native", threads=1)
    choices = learn(model, args, args.out.with_suffix(".trial"))
    args.out.write_text(json.dumps(choices))
    print(f"{len(choices)} paths, {max(map(len, choices))} deep: {args.out}\n")
    print("| tokens a call | own tables | shared by the trajectories |\n| --- | --- | --- |")
    rows = {
        "deterministic": f"stand:k={args.k},nodes={args.nodes}",
        "drawn, learned as it goes": f"stand:k={args.k},nodes={args.nodes},verify=recursive",
        "drawn, learned from data": f"stand:k={args.k},verify=recursive,choices={quoted(str(args.out))}",
    }
    for name, spec in rows.items():
        own, shared = (trajectories(model, f"{spec},fixed={args.nodes}", both, args) for both in (False, True))
        print(f"| {name} | {own:.2f} | {shared:.2f} |", flush=True)


if __name__ == "__main__":
    main()
