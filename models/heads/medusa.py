"""Medusa: independent heads, head i predicts the token i+1 places ahead from the last hidden state alone."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.heads import HeadFacts, Ops, V

FACTS = HeadFacts(stacked=True)


def shapes(hidden: int, width: int, depth: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for i in range(depth):
        found |= {f"{i}.norm": (hidden,), f"{i}.up": (width, hidden), f"{i}.down": (hidden, width)}
    return found


def states(ops: Ops[V], hidden: V, embeddings: Sequence[V], depth: int) -> list[V]:
    """s_i = h + W_i silu(V_i norm(h))"""
    return [
        ops.add(hidden, ops.linear(ops.silu(ops.linear(ops.norm(hidden, f"{i}.norm"), f"{i}.up")), f"{i}.down"))
        for i in range(depth)
    ]


def run(ops: Ops[V], inputs: Sequence[V], depth: int) -> list[V]:
    return states(ops, inputs[0], (), depth)
