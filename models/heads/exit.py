"""An adapter for early exits after Kangaroo: a hidden state after the first E layers becomes one that the model's own
norm and head can read, as if the other layers had been run."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.heads import HeadFacts, Ops, V

FACTS = HeadFacts(ahead=0, early=True, state="hidden_out")


def shapes(hidden: int, width: int, depth: int) -> dict[str, tuple[int, ...]]:
    return {"norm": (hidden,), "up": (width, hidden), "down": (hidden, width)}


def states(ops: Ops[V], hidden: V, embeddings: Sequence[V], depth: int) -> list[V]:
    """h + W silu(V norm(h))"""
    return [ops.add(hidden, ops.linear(ops.silu(ops.linear(ops.norm(hidden, "norm"), "up")), "down"))]


def run(ops: Ops[V], inputs: Sequence[V], depth: int) -> list[V]:
    return states(ops, inputs[0], (), depth)
