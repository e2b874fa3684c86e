"""Hydra: heads that depend on each other; each reads the token before the one it predicts.

One step serves every depth, as in a recurrent drafter: its weights are stored once, and it can go on
beyond the depth it was trained for.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.heads import HeadFacts, Ops, V

FACTS = HeadFacts(reads=True, inputs=("state", "embedding"), state="state_out")


def shapes(hidden: int, width: int, depth: int) -> dict[str, tuple[int, ...]]:
    return {
        "state_norm": (hidden,),
        "token_norm": (hidden,),
        "state_up": (width, hidden),
        "token_up": (width, hidden),
        "down": (hidden, width),
    }


def step(ops: Ops[V], state: V, embedding: V) -> V:
    """s_i = s_{i-1} + W silu(V [norm(s_{i-1}); norm(e)]), V in two halves."""
    up = ops.add(
        ops.linear(ops.norm(state, "state_norm"), "state_up"),
        ops.linear(ops.norm(embedding, "token_norm"), "token_up"),
    )
    return ops.add(state, ops.linear(ops.silu(up), "down"))


def states(ops: Ops[V], hidden: V, embeddings: Sequence[V], depth: int) -> list[V]:
    """s_0 is the hidden state; step i reads the token i places after it."""
    found = [hidden]
    for embedding in embeddings[:depth]:
        found.append(step(ops, found[-1], embedding))
    return found[1:]


def run(ops: Ops[V], inputs: Sequence[V], depth: int) -> list[V]:
    """One step: the drafter repeats it from depth to depth."""
    return [step(ops, *inputs)]
