"""Gemma 4, text only: full layers with other heads, norms of values; E2B, E4B: embeddings of layers, shared slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, sliding, windows
from edgedec.models._names import ATTENTION, MLP, OUTER, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.gemma2 import embed_scale
from edgedec.spec import Attention, Block, Lookup, Mlp, ModelSpec, Moe, SharedAttention

# Layers that read the slots of others are published with matrices of keys and values, which nothing reads.
FACTS = ArchitectureFacts((*IGNORED, r"model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.(weight|bias)"))
# Published configs leave these out wherever they are the usual ones.
USUAL = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
_FULL = ("head_dim", "num_key_value_heads")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({**USUAL, **config})
    if r.value("use_bidirectional_attention", None) not in (None, "vision"):
        raise r.fail("use_bidirectional_attention", "is set: an embedding model, not one that decodes")
    n = r.whole("num_hidden_layers")
    slides = sliding(r, [(i + 1) % 6 != 0 for i in range(n)])
    slides[-1] = False  # as transformers reads it
    parameters = r.table("rope_parameters") or {"full_attention": PROPORTIONAL}
    ropes = ConfigReader({**r.values, "rope_parameters": {"sliding_attention": {}} | parameters}, read=r.read)
    full = rope_table(ropes, 1e6, "full_attention", legacy=False, partial=True)
    local = rope_table(ropes, 1e4, "sliding_attention", legacy=False, partial=True)
    length = context_length(r, full, context)
    kinds = _attention(r, windows(r, slides, r.maybe_whole("sliding_window", 512), length), slides)
    shared = shared_with(r, slides)
    common, starts, layers = sizes(r, tied=True), list[int](), list[tuple[Block, ...]]()
    for kind, owner, rest in zip(kinds, shared, _after(r, n, shared), strict=True):
        starts.append(sum(map(len, layers)))
        layers.append((kind if owner is None else reading(kind, starts[owner]), *rest))
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(layers),
        ropes=(
            rope(r, full, max(k.head_dim for k in kinds if k.rope == 0), length),
            rope(r, local, _local(kinds), length),
        ),
        final_softcap=r.maybe_number("final_logit_softcapping") or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
    )
    return finish(r, found)


def _local(kinds: Sequence[Attention]) -> int:
    """The head size that the rope of windowed layers turns; any of a model without such layers."""
    return next((kind.head_dim for kind in kinds if kind.rope), kinds[0].head_dim)


def _attention(r: ConfigReader, spans: Sequence[int | None], slides: Sequence[bool]) -> list[Attention]:
    """The attention of every layer, as if it had slots of its own."""
    bias, common = r.flag("attention_bias", False), heads(r) | {"scale": 1.0}
    alike = r.flag("attention_k_eq_v", False)
    plain = Attention(**common, qk_norm="head", qkv_bias=bias, o_bias=bias, post_norm="rms", v_norm=True)
    dim, kv = _full_heads(r, slides, alike)
    full = replace(plain, head_dim=dim, n_kv_heads=kv, k_is_v=alike)
    return [replace(plain if on else full, rope=int(on), window=span) for on, span in zip(slides, spans, strict=True)]


def _full_heads(r: ConfigReader, slides: Sequence[bool], alike: bool) -> tuple[int, int]:
    """The size of heads and the number of kv heads of layers without a window."""
    layers = r.table("per_layer_config")
    r.value("global_head_dim", None), r.value("num_global_key_value_heads", None)
    if not layers:
        kv = r.maybe_whole("num_global_key_value_heads") if alike else None
        return r.whole("global_head_dim", 512), kv or r.whole("num_key_value_heads")
    found = [tuple(layers.get(str(i), {}).get(key, r.whole(key)) for key in _FULL) for i in range(len(slides))]
    known = all(set(table) <= set(_FULL) for table in layers.values())
    by_kind = [{pair for pair, on in zip(found, slides, strict=True) if on is kind} for kind in (True, False)]
    if not known or len(by_kind[1]) > 1 or by_kind[0] - {tuple(r.whole(key) for key in _FULL)}:
        raise r.fail("per_layer_config", "has other sizes than those of heads of full layers")
    dim, kv = next(iter(by_kind[1]))
    return dim, kv


def shared_with(r: ConfigReader, slides: Sequence[bool], usual: int = 0) -> list[int | None]:
    """For every layer that reads the slots of another the number of that one: the last of its kind that has some.
    usual: so many do where the config is silent."""
    own = len(slides) - r.whole("num_kv_shared_layers", usual, least=0)
    found: list[int | None] = []
    for i, on in enumerate(slides):
        owner = max((j for j in range(max(own, 0)) if slides[j] is on), default=None)
        if i >= own and owner is None:
            raise r.fail("num_kv_shared_layers", f"leaves no layer whose keys and values layer {i} could read")
        found.append(owner if i >= own else None)
    return found


def reading(block: Attention, owner: int) -> SharedAttention:
    """The same attention over the slots of block `owner`."""
    sizes = (block.n_heads, block.n_kv_heads, block.head_dim, block.scale, block.rope, block.window)
    return SharedAttention(
        owner,
        *sizes,
        qk_norm="head",
        post_norm="rms",
        q_bias=block.qkv_bias,
        o_bias=block.o_bias,
        branch=block.branch,
    )


def _after(r: ConfigReader, n: int, shared: Sequence[int | None]) -> list[tuple[Block, ...]]:
    """What follows the attention of every layer."""
    chosen = activation(r, "hidden_activation", "gelu_pytorch_tanh")
    wide = 2 if r.flag("use_double_wide_mlp", False) else 1
    inner, small = r.whole("intermediate_size"), r.whole("hidden_size_per_layer_input", 256, least=0)
    if small and r.whole("vocab_size_per_layer_input", r.whole("vocab_size")) != r.whole("vocab_size"):
        raise r.fail("vocab_size_per_layer_input", "is not vocab_size")
    r.value("vocab_size_per_layer_input", None)
    mlp, last = Mlp(inner, activation=chosen, post_norm="rms"), list[Block]()
    if r.flag("enable_moe_block", False):
        mlp, last = replace(mlp, branch=True), [_experts(r)]
        if small:
            raise r.fail("hidden_size_per_layer_input", "is set: embeddings of layers beside experts are not supported")
    if small:
        last = [Lookup(small, chosen, post_norm="rms", state_scale=True)]
    mlp = replace(mlp, state_scale=not last)
    return [(replace(mlp, inner_size=inner * (1 if owner is None else wide)), *last) for owner in shared]


def _experts(r: ConfigReader) -> Moe:
    """Beside the dense feed-forward; the sum of both is normed."""
    return Moe(
        n_experts=r.whole("num_experts"),
        top_k=r.whole("top_k_experts"),
        inner_size=r.whole("moe_intermediate_size"),
        activation=activation(r, "hidden_activation", "gelu_pytorch_tanh"),
        router_norm=True,
        expert_scale=True,
        post_norm="rms",
        joined="rms",
        state_scale=True,
    )


GEMMA4: Names = {
    "attention": ATTENTION | {"post_norm": ("post_attention_layernorm.weight",)},
    "shared_attention": {
        "norm": ("input_layernorm.weight",),
        "post_norm": ("post_attention_layernorm.weight",),
        "q": ("self_attn.q_proj.weight",),
        "q_bias": ("self_attn.q_proj.bias",),
        "q_norm": ("self_attn.q_norm.weight",),
        "o": ("self_attn.o_proj.weight",),
        "o_bias": ("self_attn.o_proj.bias",),
    },
    "mlp": MLP
    | {
        "norm": ("pre_feedforward_layernorm.weight",),
        "post_norm": ("post_feedforward_layernorm.weight",),
        "state_scale": ("layer_scalar",),
    },
    "moe": {
        "norm": ("pre_feedforward_layernorm_2.weight",),
        "post_norm": ("post_feedforward_layernorm_2.weight",),
        "joined_norm": ("post_feedforward_layernorm.weight",),
        "router": ("router.proj.weight",),
        "router_norm": ("router.scale",),
        "expert_scale": ("router.per_expert_scale",),
        "gate_up": (Part("experts.gate_up_proj", flat=True),),
        "down": (Part("experts.down_proj", flat=True),),
        "state_scale": ("layer_scalar",),
    },
    "lookup": {
        "gate": ("per_layer_input_gate.weight",),
        "out": ("per_layer_projection.weight",),
        "post_norm": ("post_per_layer_input_norm.weight",),
        "state_scale": ("layer_scalar",),
        "context": (),
        "context_norm": (),
    },
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return text_weights(spec)


def text_weights(spec: ModelSpec, inner: str = "model.") -> dict[str, Source]:
    """Every tensor of `spec`; inner: what the names of the text model begin with."""
    outer = {name: path.replace("model.", inner, 1) for name, path in OUTER.items()}
    found = named(spec, GEMMA4, outer=outer, layers=f"{inner}layers.") | layer_embeddings(spec, inner)
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Moe):
            found[f"blocks.{b}.router_norm"] = tuple(
                replace(part, times=spec.hidden_size**-0.5) for part in found[f"blocks.{b}.router_norm"]
            )
        if isinstance(block, Mlp) and block.branch:
            where = f"{inner}layers.{spec.layer_of(b)}."
            found[f"blocks.{b}.post_norm"] = (Part(f"{where}post_feedforward_layernorm_1.weight"),)
    for b, block in spec.attention.items():
        if block.k_is_v:
            for name in ("qkv", "qkv_bias")[: 1 + block.qkv_bias]:
                found[f"blocks.{b}.{name}"] = found[f"blocks.{b}.{name}"][:2]
    return found


def layer_embeddings(spec: ModelSpec, inner: str) -> dict[str, Source]:
    """The table of the embeddings of layers, and what they are added to."""
    half, found = 0.5**0.5, dict[str, Source]()  # of the mean of two, whose size is that of each
    if spec.lookups:
        size = len(next(iter(spec.lookups.values())))
        found["lookup"] = (Part(f"{inner}embed_tokens_per_layer.weight", times=half * size**0.5),)
    for b, part in spec.lookups.items():
        rows = (part.start, part.stop)
        context = Part(f"{inner}per_layer_model_projection.weight", rows, times=spec.hidden_size**-0.5)
        found[f"blocks.{b}.context"] = (context,)
        found[f"blocks.{b}.context_norm"] = (Part(f"{inner}per_layer_projection_norm.weight", times=half),)
    return found
