"""A bundle as the native engine reads it: numbers and addresses in the weights file."""

from __future__ import annotations

import ctypes
from typing import Any

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cpu import codes, structs
from edgedec.runtimes._native_recurrent import NativeRecurrent
from edgedec.spec import (
    S6,
    AltUp,
    Attention,
    Block,
    ChannelMix,
    Conv,
    Delta,
    Gmu,
    LatentAttention,
    Laurel,
    Lookup,
    Mlp,
    Moe,
    Opaque,
    PowerLaw,
    PreRouter,
    Rwkv7,
    SharedAttention,
    Ssm,
)
from edgedec.spec.branches import feeds
from edgedec.spec.moe import level_name
from edgedec.spec.relative import relative_rows


class NativeModel(NativeRecurrent):
    """The C++ view of a bundle; keeps alive what it points to."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self._spec = spec = bundle.spec
        blocks = (structs.BlockStruct * spec.n_blocks)(*[self._block(b, block) for b, block in enumerate(spec.blocks)])
        places = zip(bundle.manifest.ropes, spec.ropes, strict=True)
        ropes = (structs.RopeStruct * len(spec.ropes))(
            *[
                structs.RopeStruct(self._base + cos, self._base + sin, len(rope.inv_freq), spec.positions)
                for (cos, sin), rope in places
            ]
        )
        self.struct = structs.ModelStruct(
            vocab=spec.vocab_size,
            hidden=spec.hidden_size,
            n_blocks=spec.n_blocks,
            n_ropes=len(spec.ropes),
            norm_eps=spec.norm_eps,
            final_softcap=spec.final_softcap,
            embed_scale=spec.embed_scale,
            texts=not spec.causal,
            embed=self._tensor("embed"),
            head=self._tensor("embed" if spec.tied or spec.output else "head"),
            final_norm=self._norm(spec.final_norm, "final_norm"),
            blocks=blocks,
            ropes=ropes,
            head_bias=self._vector("head_bias"),
            types=self._vector("types"),
            n_types=spec.entry.types if spec.entry else 0,
            positions=self._vector("positions"),
            entry_norm=self._norm(spec.entry.norm if spec.entry else "none", "entry_norm"),
            n_positions=spec.entry.positions if spec.entry else 0,
            lookup=self._tensor("lookup"),
            streams=next((block.streams for block in spec.altups.values()), 0),
            **self._head_layer(),
        )

    def _head_layer(self) -> dict[str, Any]:
        """The fields of a layer before the head."""
        layer = self._spec.head_layer
        if layer is None:
            return {}
        return {
            "head_layer": self._tensor("head_layer"),
            "head_layer_bias": self._vector("head_layer_bias"),
            "head_layer_norm": self._norm(layer.norm, "head_layer_norm"),
            "head_activation": codes.ACTIVATIONS[layer.activation],
        }

    def _block(self, b: int, block: Block) -> structs.BlockStruct:
        made = structs.BlockStruct(kind=codes.KINDS[block.kind], branch=block.branch, values_of=-1, feeds=feeds(block))
        made.norm = self._norm(block.norm, f"blocks.{b}.norm")
        made.post_norm = self._norm(block.post_norm, f"blocks.{b}.post_norm")
        made.after_norm = self._norm(block.after, f"blocks.{b}.after_norm")
        again = block.again if isinstance(block, Attention) else "none"
        made.again_norm = self._norm(again, f"blocks.{b}.again_norm")
        made.joined_norm = self._norm(block.joined if isinstance(block, Moe) else "none", f"blocks.{b}.joined_norm")
        made.state_scale = self._vector(f"blocks.{b}.state_scale")
        if isinstance(block, Laurel):
            made.state_scale = self._numbers((block.scale,))
        part = self._part(f"blocks.{b}.", block)
        self._keep.append(part)
        if isinstance(block, SharedAttention):
            made.slots_of, made.attention = block.slots_of, ctypes.pointer(part)
            return made
        setattr(made, block.kind, ctypes.pointer(part))
        made.values_of = self._spec.owners.get(b, -1)
        if isinstance(block, S6):
            part.keeps = b in self._spec.owners.values()
        if isinstance(block, Lookup | PreRouter):
            part.first = self._spec.lookups[b].start
        if isinstance(block, LatentAttention | PreRouter):
            heads = self._attention(f"blocks.{b}.", block)
            made.attention = ctypes.pointer(heads)
            self._keep.append(heads)
        if isinstance(block, PowerLaw):
            inner = self._attention(f"blocks.{b}.", block), self._fed(f"blocks.{b}.", block)
            made.attention, made.mlp = map(ctypes.pointer, inner)
            self._keep.append(inner)
        return made

    def _part(self, prefix: str, block: Block) -> ctypes.Structure:
        match block:
            case PowerLaw():
                return self._power_law(prefix, block)
            case PreRouter():
                own = self._vectors(prefix, "up_bias down_bias router_bias up_norm out_norm")
                return structs.PreRouterStruct(block.n_experts, 0, **self._matrices(prefix, "up down router"), **own)
            case LatentAttention():
                return self._latent(prefix, block)
            case Attention():
                return self._attention(prefix, block)
            case SharedAttention():
                return self._shared_attention(prefix, block)
            case AltUp():
                return self._altup(prefix, block)
            case Laurel():
                norm = self._vector(prefix + "low_norm")
                return structs.LaurelStruct(rank=block.rank, **self._matrices(prefix, "left right"), low_norm=norm)
            case Lookup():
                return self._lookup(prefix, block)
            case Mlp():
                return self._mlp(prefix, block)
            case Moe():
                return self._moe(prefix, block)
            case Ssm():
                return self._ssm(prefix, block)
            case S6():
                return self._s6(prefix, block)
            case Gmu():
                biases = self._vectors(prefix, "gate_bias out_bias")
                return structs.GmuStruct(inner=block.inner_size, **self._matrices(prefix, "gate out"), **biases)
            case Conv():
                return self._conv(prefix, block)
            case Delta():
                return self._delta(prefix, block)
            case Rwkv7():
                return self._rwkv7(prefix, block)
            case ChannelMix():
                return structs.ChannelMixStruct(**self._matrices(prefix, "up down"), mix=self._vector(prefix + "mix"))
            case Opaque():
                raise RuntimeUnavailable("an opaque block runs in its own graph only")

    def _attention(self, prefix: str, block: Attention) -> structs.AttentionStruct:
        length = self._spec.context_length
        return structs.AttentionStruct(
            heads=block.n_heads,
            kv_heads=block.n_kv_heads,
            head_dim=block.head_dim,
            rope=-1 if block.rope is None else block.rope,
            window=block.window or 0,
            sinks=block.sinks,
            qk_norm=codes.QK_NORMS[block.qk_norm],
            distances=block.distances,
            scale=block.scale,
            softcap=block.softcap,
            gate=block.gate_dim,
            with_embedding=block.with_embedding,
            **self._matrices(prefix, "qkv o"),
            **self._vectors(prefix, "qkv_bias o_bias q_norm k_norm distance sink_logit q_norm_bias k_norm_bias"),
            embedding_norm=self._norm(block.embedding_norm, f"{prefix}embedding_norm"),
            slopes=self._numbers(block.slopes),
            inner_norm=self._norm(block.inner_norm, f"{prefix}inner_norm"),
            clip=block.clip,
            qk_norm_last=block.qk_norm_last,
            k_is_v=block.k_is_v,
            v_norm=block.v_norm,
            differential=block.differential,
            **self._vectors(prefix, "lambdas pair_norm relative_k relative_q"),
            relative=block.relative,
            relative_rows=self._integers(tuple(relative_rows(block, length).tolist()) if block.relative else ()),
            relative_length=length,
        )

    def _shared_attention(self, prefix: str, block: SharedAttention) -> structs.AttentionStruct:
        made = self._attention(prefix, block.attention)
        made.qkv, made.qkv_bias = self._tensor(prefix + "q"), self._vector(prefix + "q_bias")
        return made

    def _lookup(self, prefix: str, block: Lookup) -> structs.LookupStruct:
        return structs.LookupStruct(
            size=block.size,
            activation=codes.ACTIVATIONS[block.activation],
            streams=block.streams,
            **self._matrices(prefix, "gate context out"),
            **self._vectors(prefix, "context_norm input_scale"),
        )

    def _altup(self, prefix: str, block: AltUp) -> structs.AltUpStruct:
        return structs.AltUpStruct(
            step=codes.ALTUP_STEPS[block.step],
            streams=block.streams,
            active=block.active,
            router=self._tensor(prefix + "router"),
            projections=self._list([prefix + name for name in block.projections]),
            **self._vectors(prefix, "router_norm coefs"),
        )

    def _latent(self, prefix: str, block: LatentAttention) -> structs.LatentStruct:
        return structs.LatentStruct(
            rank=block.rank,
            rope_dim=block.rope_dim,
            nope_dim=block.nope_dim,
            v_dim=block.v_dim,
            q_rank=block.q_rank,
            inner_eps=block.inner_eps,
            **self._matrices(prefix, "q_a q kv_a k_up v_up"),
            **self._vectors(prefix, "q_a_bias kv_a_bias q_a_norm kv_norm"),
        )

    def _mlp(self, prefix: str, block: Mlp) -> structs.MlpStruct:
        return structs.MlpStruct(
            inner=block.inner_size,
            gated=block.gated,
            activation=codes.ACTIVATIONS[block.activation],
            up=self._tensor(prefix + block.up),
            down=self._tensor(prefix + "down"),
            up_bias=self._vector(f"{prefix}{block.up}_bias"),
            down_bias=self._vector(prefix + "down_bias"),
            inner_norm=self._norm(block.inner_norm, f"{prefix}inner_norm"),
            xielu=self._vector(prefix + "xielu"),
            cutoff=self._numbers((block.cutoff,)) if block.sparsity else None,
        )

    def _power_law(self, prefix: str, block: PowerLaw) -> structs.PowerLawStruct:
        return structs.PowerLawStruct(
            entry=self._norm("layer" if block.entry else "none", prefix + "entry_norm"),
            attention=self._norm("layer", prefix + "attention_norm"),
            output=self._norm("layer", prefix + "output_norm"),
            curvature=self._vector(prefix + "curvature"),
        )

    def _fed(self, prefix: str, block: PowerLaw) -> structs.MlpStruct:
        return structs.MlpStruct(
            inner=block.inner_size,
            gated=True,
            activation=codes.ACTIVATIONS["silu"],
            up=self._tensor(prefix + "gate_up"),
            down=self._tensor(prefix + "down"),
            up_bias=self._vector(prefix + "gate_up_bias"),
            down_bias=self._vector(prefix + "down_bias"),
        )

    def _moe(self, prefix: str, block: Moe) -> structs.MoeStruct:
        same = ("top_k", "normalize", "groups", "scale", "top_groups", "jitter", "drop_below", "protect_from")
        more = range(1, block.n_levels)
        return structs.MoeStruct(
            **{name: getattr(block, name) for name in same},
            experts=block.n_experts,
            inner=block.inner_size,
            activation=codes.ACTIVATIONS["clamped_swiglu" if block.clamped else block.activation],
            router=codes.ROUTERS[block.router],
            shared_inner=block.shared_size,
            plain=not block.gated,
            early=block.early_router,
            gate_up=self._tensor(prefix + block.up),
            shared_gate_up=self._tensor(prefix + block.shared_up),
            gate_up_bias=self._vector(f"{prefix}{block.up}_bias"),
            router_weight=self._tensor(prefix + "router"),
            levels=self._integers(block.levels),
            more_up=(structs.TensorStruct * 3)(*[self._tensor(prefix + level_name(block.up, level)) for level in more]),
            more_down=(structs.TensorStruct * 3)(*[self._tensor(prefix + level_name("down", level)) for level in more]),
            **self._matrices(prefix, "down shared_down shared_gate"),
            **self._vectors(prefix, "router_bias router_logit_bias down_bias router_norm expert_scale score_norm"),
            sum_bias=self._vector(f"{prefix}sum_bias"),
        )
