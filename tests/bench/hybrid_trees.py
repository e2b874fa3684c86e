"""What verifying a draft tree costs on a hybrid of state spaces and attention (STree), beside a chain and its paths.

    python tests/bench/hybrid_trees.py [BUNDLE] [ROWS,ROWS] [THREADS]

After 256 tokens, for each number of drafted rows: ms of a call of one row, of a chain of the rows, of a tree of them,
and of the tree's paths as texts of their own, which an engine needs whose states know no trees. Calls take turns; the
least of 25 counts, in processor time, since machines are shared. Where tree / chain is 1.05, a tree has to bring 1.05
times the tokens of a chain. Tree and paths must give the same logits, to the bit. Without a bundle: a Bamba of 12
layers (two of attention) and 512 channels with random weights.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

import numpy as np

from edgedec.bundle.folder import Bundle
from edgedec.cache import Cache
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.trees.grow import Follower, grow

CONTEXT, TURNS, CLAIMS = 256, 25, (0.6, 0.2, 0.1)


def hybrid(folder: Path) -> Path:
    """A bundle of random weights."""
    import torch
    import transformers

    from edgedec.export.exporter import ExportOptions, export

    config = transformers.BambaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        attn_layer_indices=[4, 10],
        mamba_n_heads=16,
        mamba_d_head=64,
        mamba_d_state=64,
        mamba_expand=2,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    transformers.BambaForCausalLM(config).save_pretrained(folder / "hf")
    export(str(folder / "hf"), folder / "bundle", ExportOptions(weights="int8", check=False, runtimes=()))
    return folder / "bundle"


def tree_parents(nodes: int) -> list[int]:
    """A tree as drafters grow it, where each token has three followers of the same chances."""

    def followers(state: int) -> Iterator[Follower[int]]:
        return ((rank, claim, 0) for rank, claim in enumerate(CLAIMS))

    return list(grow(0, followers, nodes).parents)


def paths_of(parents: Sequence[int]) -> list[list[int]]:
    """The nodes of the path to each leaf."""
    paths = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while (above := parents[path[0]]) >= 0:
            path.insert(0, above)
        paths.append(path)
    return paths


def measure(runtime: Runtime, nodes: int) -> tuple[list[float], int]:
    """Seconds of one row, of a chain, of a tree and of its paths; the rows of these."""
    rng = np.random.default_rng(nodes)
    tokens, parents = rng.integers(3, runtime.spec.vocab_size, nodes + 1).tolist(), tree_parents(nodes)
    cache = runtime.new_cache(CONTEXT + 2 * nodes + 2)
    for at in range(0, CONTEXT, 128):
        forward_one(runtime, Call(Rows.chain(rng.integers(3, runtime.spec.vocab_size, 128), at), cache))
        cache.commit(range(128))
    one, chain = (Call(Rows.chain(tokens[:n], CONTEXT), cache, outputs=ALL_LOGITS) for n in (1, nodes + 1))
    tree = Call(Rows.tree(tokens, [-1, *(parent + 1 for parent in parents)], CONTEXT), cache, outputs=ALL_LOGITS)
    paths = paths_of(parents)
    caches = [cache.fork(CONTEXT, CONTEXT + nodes + 2) for _ in paths]
    rows = [Rows.chain([tokens[0], *(tokens[i + 1] for i in path)], CONTEXT) for path in paths]
    apart = [Call(part, fork, outputs=ALL_LOGITS) for part, fork in zip(rows, caches, strict=True)]
    check(runtime, tree, apart, paths)
    ways: list[list[Call]] = [[one], [chain], [tree], apart]
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(TURNS):
        for i in range(len(ways)):
            at = (i + turn) % len(ways)
            times[at].append(seconds(runtime, ways[at], [cache, *caches]))
    return [min(some) for some in times], sum(map(len, rows))


def check(runtime: Runtime, tree: Call, apart: list[Call], paths: list[list[int]]) -> None:
    """The logits of the tree's rows are those of its paths."""
    whole = forward_one(runtime, tree).logits
    assert whole is not None
    tree.cache.rollback()
    for call, path, found in zip(apart, paths, runtime.forward(apart), strict=True):
        assert found.logits is not None
        assert np.array_equal(found.logits, whole[[0, *(i + 1 for i in path)]])
        call.cache.rollback()


def seconds(runtime: Runtime, calls: list[Call], caches: list[Cache]) -> float:
    began = process_time()
    runtime.forward(calls)
    taken = process_time() - began
    for cache in caches:
        cache.rollback()
    return taken


def main(path: str, counts: list[int], threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(path or str(hybrid(Path(folder))))
        runtime = open_runtime("native", bundle, RuntimeOptions(threads=threads))
        print("| drafted rows | one row, ms | chain | tree | paths apart (rows) | tree / chain | tree / paths |")
        print("| --- " * 7 + "|")
        for nodes in counts:
            (one, chain, tree, apart), rows = measure(runtime, nodes)
            ms = " | ".join(f"{1e3 * x:.2f}" for x in (one, chain, tree))
            ratios = f"{tree / chain:.2f} | {tree / apart:.2f}"
            print(f"| {nodes} | {ms} | {1e3 * apart:.2f} ({rows}) | {ratios} |", flush=True)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(given.get(0, ""), [int(n) for n in given.get(1, "4,8,16,32").split(",")], int(given.get(2, "1")))
