"""What the files of dense decoders share: the whole spec around their layers, and LayerNorms' names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from edgedec.models import Part
from edgedec.models._common import ConfigReader, finish, sizes, unrotated_length
from edgedec.models._names import OUTER, Paths
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Block, EncoderEntry, ModelSpec

Layers = Sequence[tuple[Block, ...]]
# Of models normed by LayerNorm, and of a head with a bias.
LAYER_OUTER = OUTER | {"final_norm_bias": "model.norm.bias", "head_bias": "lm_head.bias"}


def rotary(
    r: ConfigReader,
    context: int | None,
    layers: tuple[Block, ...] | Callable[[int], Layers],
    head_dim: int,
    *,
    tied: bool,
    eps: float = 1e-6,
    eps_key: str = "rms_norm_eps",
    theta: float = 10000.0,
    share: float | None = None,
    **facts: Any,
) -> ModelSpec:
    """A model with one rope. layers: one layer that is repeated, or all of them by the context length; share: of a head
    that rotates where the config says nothing, None: all of it, and a config that says less is refused."""
    table = rope_table(r, theta, partial=share is not None, share=share or 1.0)
    length = context_length(r, table, context)
    all_layers = layers(length) if callable(layers) else (layers,) * r.whole("num_hidden_layers")
    found = ModelSpec(
        **sizes(r, tied=tied, eps=eps, eps_key=eps_key),
        context_length=length,
        layers=tuple(all_layers),
        ropes=(rope(r, table, head_dim, length),),
        **facts,
    )
    return finish(r, found)


def layer_norm(tensor: str, name: str, bias: bool = True) -> Paths:
    """The tensors of a LayerNorm `name` of a checkpoint; without a bias there, of zeros."""
    weight = f"{name}.weight"
    return {tensor: (weight,), f"{tensor}_bias": (f"{name}.bias" if bias else Part(weight, times=0.0),)}


def in_pairs(paths: Paths, head_dim: int, turned: int) -> Paths:
    """`paths` of an attention whose rope turns neighbours, as one whose rope turns the halves of its first `turned`
    dims: the rows of q and k in that order."""

    def ordered(part: str | Part) -> Part:
        return Part(part if isinstance(part, str) else part.name, halves=(head_dim, 0, turned))

    changed = {
        name: (ordered(paths[name][0]), ordered(paths[name][1]), *paths[name][2:])
        for name in ("qkv", "qkv_bias")
        if name in paths
    }
    return paths | changed


def unrotated(
    r: ConfigReader,
    layers: tuple[Block, ...] | Layers,
    *,
    tied: bool,
    eps_key: str,
    context: int,
    eps: float = 1e-5,
    **facts: Any,
) -> ModelSpec:
    """A model without a rope, normed by LayerNorm at its end. layers: one that is repeated, or all."""
    one = bool(layers) and not isinstance(layers[0], tuple)
    found = ModelSpec(
        **sizes(r, tied=tied, eps=eps, eps_key=eps_key),
        context_length=context,
        layers=(layers,) * r.whole("num_hidden_layers") if one else tuple(layers),  # type: ignore[arg-type]
        final_norm="layer",
        **facts,
    )
    return finish(r, found)


def absolute(
    r: ConfigReader, layers: tuple[Block, ...] | Layers, context: int | None, *, tied: bool, eps_key: str, **facts: Any
) -> ModelSpec:
    """A model with learned positions, as many as its context is long."""
    length = unrotated_length(r, context)
    entry = EncoderEntry(positions=length)
    return unrotated(r, layers, tied=tied, eps_key=eps_key, context=length, entry=entry, **facts)


def plain(
    config: Mapping[str, Any], names: Mapping[str, str], fixed: Mapping[str, Any], unused: Collection[str]
) -> dict[str, Any]:
    """The config in Llama's words: `names` renamed, `fixed` as the only values of keys, `unused` left out."""
    r, found = ConfigReader(config), dict[str, Any]()
    for key, value in fixed.items():
        if config.get(key, value) != value:
            raise r.fail(key, f"{config[key]!r:.40} is not supported; known: {value!r}")
    for key, value in config.items():
        if key in fixed or key in unused:
            continue
        usual = names.get(key, key)
        if found.get(usual, value) not in (value, None):
            raise r.fail(key, f"is {value!r:.40}, {usual} is {found[usual]!r:.40}: make them equal")
        found[usual] = found.get(usual) if value is None else value
    return found


def fused(name: str, block: Attention, pairs: tuple[int, int, int] | None = None) -> tuple[Part, ...]:
    """q, k and v of a matrix or a bias that has, kv head by kv head, its queries, its key and its value.

    2 kv heads of 2 queries, rows in units of a head: 0 1 4 5, 2 6, 3 7
    """
    dim, group = block.head_dim, block.n_heads // block.n_kv_heads
    one = (group + 2) * dim

    def rows(first: int, count: int, order: tuple[int, int, int] | None) -> tuple[Part, ...]:
        starts = (head * one + first * dim for head in range(block.n_kv_heads))
        return tuple(Part(name, (at, at + count * dim), halves=order) for at in starts)

    return (*rows(0, group, pairs), *rows(group, 1, pairs), *rows(group + 1, 1, None))


def alibi(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """ALiBi's slopes (arXiv:2108.12409): 2^(-8/n), 2^(-16/n), ... of n heads, a power of 2; of others, those of the
    next lower power, and then every other one of the next higher."""
    lower = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-most * (i + 1) / lower) for i in range(lower)]
    return tuple(slopes + [2.0 ** (-most * (2 * i + 1) / (2 * lower)) for i in range(heads - lower)])
