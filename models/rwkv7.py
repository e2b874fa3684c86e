"""RWKV-7 (Goose): time mixing and channel mixing, no attention: a text of any length has a state of one size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import ConfigReader, finish, require_supported, sizes, unrotated_length
from edgedec.models._mamba import LONGEST
from edgedec.models._names import Names, named
from edgedec.spec import ChannelMix, EncoderEntry, ModelSpec, Rwkv7

FACTS = ArchitectureFacts((r"lm_head\.weight",))
# How sums are made in training, and how long its texts were: no layer has positions.
_UNUSED = ("attn_mode", "fuse_norm", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp")
# (supported, what the code assumes)
_FIXED: dict[str, tuple[Any, Any]] = {
    "attn": (None, None),
    "hidden_act": ("sqrelu", "sqrelu"),
    "norm_bias": (True, True),
}
_RANKS = {"decay_rank": "decay_low_rank_dim", "rate_rank": "a_low_rank_dim", "gate_rank": "gate_low_rank_dim"}
_USUAL = {"decay_low_rank_dim": 64, "a_low_rank_dim": 64, "gate_low_rank_dim": 128, "v_low_rank_dim": 16}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    require_supported(r, _FIXED)
    for key in (*_UNUSED, "max_position_embeddings"):
        r.value(key, None)
    common, ranks = sizes(r, tied=False, eps=1e-5, eps_key="norm_eps"), {**_USUAL, **config}
    hidden, n = common["hidden_size"], r.whole("num_hidden_layers", 24)
    dim, heads = _heads(r, hidden)
    facts: dict[str, Any] = {
        "width": hidden,
        "n_heads": heads,
        "key_dim": dim,
        "head_dim": _values(r, hidden, n) // heads,
        "eps": dim * common["norm_eps"],
        **{name: r.whole(key, ranks[key]) for name, key in _RANKS.items()},
    }
    rank = r.whole("v_low_rank_dim", ranks["v_low_rank_dim"])
    fed = ChannelMix(hidden, _inner(r, hidden))
    later = Rwkv7(**facts, value_rank=rank, values_of=0)
    found = ModelSpec(
        **common,
        context_length=unrotated_length(ConfigReader({}), context, LONGEST),
        layers=((Rwkv7(**facts), fed), *[(later, fed)] * (n - 1)),
        final_norm="layer",
        entry=EncoderEntry(norm="layer") if r.flag("norm_first", True) else None,
    )
    return finish(r, found)


def _heads(r: ConfigReader, hidden: int) -> tuple[int, int]:
    """Channels of a key of one head, and heads; either may be all that a config names."""
    dim, n = r.maybe_whole("head_dim", 64), r.maybe_whole("num_heads")
    dim = dim or (hidden // n if n else 0)
    if not dim or hidden % dim or n not in (None, hidden // dim):
        raise r.fail("head_dim", f"{dim} with num_heads {n} does not divide hidden_size {hidden}")
    return dim, hidden // dim


def _values(r: ConfigReader, hidden: int, layers: int) -> int:
    """Values of all heads: those of the first layer are mixed into all others, so there are as many in each."""
    found = r.value("value_dim", None)
    every = [hidden if found is None else found] * layers if not isinstance(found, list) else found
    heads = _heads(r, hidden)[1]
    if (
        len(every) != layers
        or set(map(type, every)) != {int}
        or len(set(every)) > 1
        or every[0] < 1
        or every[0] % heads
    ):
        raise r.fail("value_dim", f"{found!r:.40} is not one multiple of {heads} heads for each of {layers} layers")
    return int(every[0])


def _inner(r: ConfigReader, hidden: int) -> int:
    """Values between the matrices of channel mixing; by their ratio to the state a multiple of 32."""
    ratio = r.maybe_number("hidden_ratio") or 4.0
    return r.maybe_whole("intermediate_size") or -(-int(hidden * ratio) // 32) * 32


OUTER = {
    "embed": "model.embeddings.weight",
    "entry_norm": "model.layers.0.pre_norm.weight",
    "entry_norm_bias": "model.layers.0.pre_norm.bias",
    "final_norm": "model.norm.weight",
    "final_norm_bias": "model.norm.bias",
    "head": "lm_head.weight",
}
_LOW = {"decay": "w", "rate": "a", "gate": "g", "value": "v"}
NAMES: Names = {
    "rwkv7": {
        "norm": ("attn_norm.weight",),
        "norm_bias": ("attn_norm.bias",),
        "mix": tuple(Part(f"attn.x_{name}", flat=True) for name in "rwkvag"),
        **{name: (f"attn.{name}_proj.weight",) for name in "rkvo"},
        **{f"{name}_down": (f"attn.{own}_lora.lora.0.weight",) for name, own in _LOW.items()},
        **{f"{name}_up": (f"attn.{own}_lora.lora.2.weight",) for name, own in _LOW.items()},
        **{f"{name}_bias": (f"attn.{own}_lora.lora.2.bias",) for name, own in _LOW.items()},
        "key_scale": ("attn.k_k",),
        "key_rate": ("attn.k_a",),
        "bonus": (Part("attn.r_k", vector=True),),
        "out_norm": ("attn.g_norm.weight",),
        "out_norm_bias": ("attn.g_norm.bias",),
    },
    "channel_mix": {
        "norm": ("ffn_norm.weight",),
        "norm_bias": ("ffn_norm.bias",),
        "mix": ("ffn.x_k",),
        "up": ("ffn.key.weight",),
        "down": ("ffn.value.weight",),
    },
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=OUTER)
