"""What models with differential attention have in common: heads as pairs, and the numbers of theirs."""

from __future__ import annotations

from math import exp

from edgedec.models._common import ConfigReader, Heads


def paired(r: ConfigReader, single: Heads) -> Heads:
    """Of single heads: two of them share a key of both, and a value; `heads` stay as many, with half of a key each."""
    if single["n_kv_heads"] % 2 or single["n_heads"] % 2:
        raise r.fail("num_key_value_heads", f"{single['n_kv_heads']} of {single['n_heads']} heads are not pairs")
    return Heads(
        n_heads=single["n_heads"],
        n_kv_heads=single["n_kv_heads"] // 2,
        head_dim=2 * single["head_dim"],
        scale=single["scale"],
    )


def unlearned(layer: int) -> float:
    """The part of the second heads' factor that is not learned."""
    return 0.8 - 0.6 * exp(-0.3 * layer)


def lambdas(where: str) -> tuple[str, ...]:
    """The four vectors that the other part is made of, in their order."""
    return tuple(f"{where}lambda_{name}" for name in ("q1", "k1", "q2", "k2"))
