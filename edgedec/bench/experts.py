"""Cost of mixture-of-experts blocks by the number of distinct experts that the rows of a call choose.

A call of k rows reads the weights of every expert that any of its rows chose, once. To measure that apart from the
number of rows, calls of one size are made of states whose experts coincide or differ: from random states the router's
choices are computed here, and states are picked until the union of their experts has the wanted size.

    top_k 2, wanted 4, states that choose {0,1} {0,1} {2,5} {1,3}  ->  {0,1}, {2,5}, and these again for more rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.runtime import Call, Hidden, Outputs, Rows, Runtime, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.moe import experts_of
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import Moe
from edgedec.spec.moe import level_name

_POOL = 512


def moe_blocks(bundle: Bundle) -> dict[int, Moe]:
    """The mixture-of-experts blocks by number."""
    return {b: block for b, block in enumerate(bundle.spec.blocks) if isinstance(block, Moe)}


def alone(bundle: Bundle) -> dict[int, Moe]:
    """Those that a call may run without any other block: of themselves they choose experts for what enters them."""
    return {b: block for b, block in moe_blocks(bundle).items() if not block.given and not block.early_router}


def chosen_experts(bundle: Bundle, block: int, hidden: Hidden) -> NDArray[np.int64]:
    """hidden [n, hidden_size] -> [n, top_k]: the experts that the router of a block chooses for the states that it
    reads, the best first, by ReLU in order; -1 for those that are not chosen and for one that a row leaves out."""
    facts = bundle.spec.blocks[block]
    assert isinstance(facts, Moe)
    return experts_of(facts, BlockWeights(bundle.spec, block, bundle.rows), hidden)[0]


def given_experts(bundle: Bundle, ids: Sequence[int]) -> dict[int, NDArray[np.int64]]:
    """The expert of each token of a text [len(ids), 1], as the blocks choose it that choose for others; by block."""
    runtime, found = Reference(bundle.spec, bundle.rows), dict[int, NDArray[np.int64]]()
    for b in sorted({block.given_by for block in moe_blocks(bundle).values() if block.given}):
        cache, rows = runtime.new_cache(len(ids)), Rows.chain(list(ids), 0)
        state = np.zeros((len(ids), bundle.spec.hidden_size), np.float32)
        forward_one(runtime, Call(rows, cache, (b,), state, Outputs(logits=False)))
        found[b] = cache.experts.of(b, rows)[:, None]
    return found


def expert_bytes(bundle: Bundle, block: int) -> int:
    """The stored bytes of all experts of a block, without a shared one."""
    facts, names = moe_blocks(bundle)[block], list[str]()
    for level in range(facts.n_levels):
        names += [f"blocks.{block}.{level_name(name, level)}" for name in (facts.up, "down")]
    return sum(bundle.manifest.tensors[name].stored_bytes for name in names)


def rows_choosing(experts: NDArray[np.int64], wanted: int, n: int) -> NDArray[np.int64]:
    """[n]: states, some of them again, whose experts are `wanted` in all, or the nearest number below that is found.

    experts [states, top_k]: what each state chooses; -1: nothing.
    """
    union, picked = set(experts[0].tolist()) - {-1}, [0]
    for i, row in enumerate(experts.tolist()):
        grown = (union | set(row)) - {-1}
        if len(picked) < n and len(union) < len(grown) <= wanted:
            union, picked = grown, [*picked, i]
    return np.resize(np.array(picked, np.int64), n)


def expert_costs(
    runtime: Runtime,
    bundle: Bundle,
    wanted: Sequence[int],
    rows: int,
    repetitions: int,
    after: Callable[[int], None] = lambda done: None,
) -> dict[int, list[float]]:
    """Seconds of a call of `rows` rows through all mixture-of-experts blocks, by the mean number of distinct experts
    of a block; one for each repetition, after one to warm up."""
    states = np.random.default_rng(0).standard_normal((_POOL, bundle.spec.hidden_size)).astype(np.float32)
    choices = {b: chosen_experts(bundle, b, states) for b in alone(bundle)}
    plans: dict[int, list[tuple[int, Hidden]]] = {}
    for count in sorted(set(wanted)):
        picked = {b: rows_choosing(experts, count, rows) for b, experts in choices.items()}
        found = [len(set(choices[b][index].ravel().tolist()) - {-1}) for b, index in picked.items()]
        plans[round(sum(found) / len(found))] = [(b, states[index]) for b, index in picked.items()]
    seconds: dict[int, list[float]] = {count: [] for count in plans}
    for repetition in range(repetitions + 1):
        for count, plan in plans.items():
            took = sum(_seconds(runtime, block, hidden) for block, hidden in plan)
            if repetition:
                seconds[count].append(took)
        after(repetition + 1)
    return seconds


def _seconds(runtime: Runtime, block: int, hidden: Hidden) -> float:
    cache, rows = runtime.new_cache(len(hidden)), Rows.chain([0] * len(hidden), 0)
    call = Call(rows, cache, [block], hidden, Outputs(hidden=(block,)))
    began = perf_counter()
    runtime.forward([call])
    return perf_counter() - began
