"""Gemma 3n, text only: alternating updates, low-rank residuals, sparse gates, embeddings of layers, shared slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source, gemma4_text
from edgedec.models._common import ConfigReader, activation, finish, heads, sizes, sliding, windows
from edgedec.models._names import MLP, OUTER, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.gemma2 import embed_scale
from edgedec.models.gemma4_text import GEMMA4, layer_embeddings, reading, shared_with
from edgedec.spec import AltUp, Attention, Block, Laurel, Lookup, Mlp, ModelSpec

FACTS = ArchitectureFacts((*gemma4_text.FACTS.ignored, r"model\.layers\.\d+\.altup\.correct_output_scale"))
# Published configs leave these out wherever they are the usual ones.
USUAL = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "final_logit_softcapping": 30.0,
}
_HALF = 0.5**0.5  # of the mean of two, whose size is that of each


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({**USUAL, **config})
    n = r.whole("num_hidden_layers")
    slides = sliding(r, [(i + 1) % 5 != 0 for i in range(n)])
    full = rope_table(r, 1e6, "full_attention")
    local = rope_table(r, r.number("rope_local_base_freq", 1e4), "sliding_attention", legacy=False)
    length = context_length(r, full, context)
    common, layers = sizes(r, tied=True), list[tuple[Block, ...]]()
    attention = _attention(r, slides, windows(r, slides, r.maybe_whole("sliding_window", 512), length))
    before, after = _streams(r)
    rest, starts = _rest(r, n), list[int]()
    for kind, owner, last in zip(attention, shared_with(r, slides, 15), rest, strict=True):
        enter = () if layers else (replace(before, step="enter", active=0),)
        starts.append(sum(map(len, layers)) + len(enter) + 1)
        mine = kind if owner is None else reading(kind, starts[owner])
        layers.append((*enter, before, mine, *last[:2], after, last[2]))
    layers[-1] += (replace(before, step="leave", active=0),)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(layers),
        ropes=tuple(rope(r, table, attention[0].head_dim, length) for table in (full, local)),
        final_softcap=r.maybe_number("final_logit_softcapping") or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
    )
    return finish(r, found)


def _attention(r: ConfigReader, slides: Sequence[bool], spans: Sequence[int | None]) -> list[Attention]:
    """The attention of every layer, as if it had slots of its own; the low-rank residual stands beside it."""
    bias, common = r.flag("attention_bias", False), heads(r) | {"scale": 1.0}
    plain = Attention(**common, qk_norm="head", qkv_bias=bias, o_bias=bias, post_norm="rms", v_norm=True, branch=True)
    return [replace(plain, rope=int(on), window=span) for on, span in zip(slides, spans, strict=True)]


def _streams(r: ConfigReader) -> tuple[AltUp, AltUp]:
    """What predicts the streams before a layer and what corrects them after it."""
    count, active = r.whole("altup_num_inputs", 4, least=2), r.whole("altup_active_idx", 0, least=0)
    # Of training, for what is published is clipped; and a leftover: queries are not scaled.
    for other in ("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"):
        r.value(other, None)
    return AltUp("predict", count, active), AltUp("correct", count, active)


def _rest(r: ConfigReader, n: int) -> list[tuple[Laurel, Mlp, Lookup]]:
    """What stands beside the attention of every layer and after it."""
    chosen, small = activation(r, "hidden_activation", "gelu_pytorch_tanh"), r.whole("hidden_size_per_layer_input", 256)
    r.whole("vocab_size_per_layer_input", 262144)
    laurel = Laurel(r.whole("laurel_rank", 64), _HALF)
    scaled = r.flag("altup_correct_scale", True)
    lookup = Lookup(small, chosen, post_norm="rms", streams=True, input_scale=scaled)
    inner, sparse = r.value("intermediate_size"), r.items("activation_sparsity_pattern", float)
    widths = r.items("intermediate_size", int) if isinstance(inner, list) else [r.whole("intermediate_size")] * n
    shares = [0.95 if i < 10 < n else 0.0 for i in range(n)] if sparse is None else sparse
    for key, values in (("intermediate_size", widths), ("activation_sparsity_pattern", shares)):
        if values is None or len(values) != n:
            raise r.fail(key, f"has {len(values or ())} values for {n} layers")
    plain = Mlp(1, activation=chosen, post_norm="rms")
    return [
        (laurel, replace(plain, inner_size=width, sparsity=float(share)), lookup)
        for width, share in zip(widths or (), shares, strict=True)
    ]


_ROUTER: dict[str, tuple[str | Part, ...]] = {
    "router_norm": ("altup.router_norm.weight",),
    "router": ("altup.modality_router.weight",),
}
GEMMA3N: Names = {
    **GEMMA4,
    "altup": _ROUTER | {"coefs": ("altup.prediction_coefs.weight",)},
    "laurel": {
        "norm": ("input_layernorm.weight",),
        "left": ("laurel.linear_left.weight",),
        "right": ("laurel.linear_right.weight",),
        "low_norm": ("laurel.post_laurel_norm.weight",),
    },
    "mlp": MLP | {"norm": ("pre_feedforward_layernorm.weight",), "post_norm": ("post_feedforward_layernorm.weight",)},
    "lookup": GEMMA4["lookup"] | {"input_scale": ("altup.correct_output_scale",)},
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return text_weights(spec, config)


def text_weights(spec: ModelSpec, config: Mapping[str, Any], inner: str = "model.") -> dict[str, Source]:
    """Every tensor of `spec`; inner: what the names of the text model begin with."""
    outer = {name: path.replace("model.", inner, 1) for name, path in OUTER.items()}
    paths = dict(GEMMA3N)
    for block in spec.altups.values():
        paths["altup"] = paths["altup"] | dict.fromkeys(block.projections, ())
    found = named(spec, paths, outer=outer, layers=f"{inner}layers.") | layer_embeddings(spec, inner)
    for b, block in spec.altups.items():
        for i, name in enumerate(block.projections):
            group = "altup_projections" if block.step == "enter" else "altup_unembed_projections"
            found[f"blocks.{b}.{name}"] = (Part(f"{inner}{group}.{i}.weight"),)
        if block.routed:
            source = found[f"blocks.{b}.router"]
            found[f"blocks.{b}.router"] = tuple(replace(part, times=1 / spec.hidden_size) for part in source)
        if block.step == "correct":
            where = f"{inner}layers.{spec.layer_of(b)}."
            found[f"blocks.{b}.coefs"] = (Part(f"{where}altup.correction_coefs.weight"),)
    rows = ConfigReader(config).whole("vocab_size_per_layer_input", 262144)
    (table,) = found["lookup"]
    # Tokens that the table does not have read its first row.
    absent = (replace(table, rows=(0, 1)),) * max(spec.vocab_size - rows, 0)
    found["lookup"] = (replace(table, rows=(0, min(rows, spec.vocab_size))), *absent)
    return found
