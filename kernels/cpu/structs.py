"""The structures of `api.h` in ctypes: same names and order of fields, checked by a test."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from struct import Struct
from typing import Any


def fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Fields in order, from (type, names) groups."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class CStruct(ctypes.Structure):
    """Checked against `api.h` by a test: same names, same order."""


class TensorStruct(CStruct):
    _fields_ = fields((c_int32, "format layout n k block offsets"), (c_void_p, "data scales zeros"))


class NormStruct(CStruct):
    _fields_ = fields((c_int32, "kind reserved"), (c_void_p, "weight bias"))


class AttentionStruct(CStruct):
    _fields_ = fields(
        (c_int32, "heads kv_heads head_dim rope window sinks qk_norm distances"),
        (c_float, "scale softcap"),
        (TensorStruct, "qkv o"),
        (c_void_p, "qkv_bias o_bias q_norm k_norm"),
        (NormStruct, "embedding_norm"),
        (c_int32, "gate with_embedding"),
        (c_void_p, "distance sink_logit q_norm_bias k_norm_bias slopes"),
        (NormStruct, "inner_norm"),
        (c_float, "clip"),
        (c_int32, "qk_norm_last k_is_v v_norm"),
        (c_float, "differential"),
        (c_int32, "relative"),
        (c_void_p, "lambdas pair_norm relative_k relative_q relative_rows"),
        (c_int32, "relative_length nothing"),
    )


class MlpStruct(CStruct):
    _fields_ = fields(
        (c_int32, "inner gated activation reserved"),
        (TensorStruct, "up down"),
        (c_void_p, "up_bias down_bias"),
        (NormStruct, "inner_norm"),
        (c_void_p, "xielu cutoff"),
    )


class MoeStruct(CStruct):
    _fields_ = fields(
        (c_int32, "experts top_k inner activation router normalize shared_inner groups"),
        (c_float, "scale"),
        (c_int32, "top_groups plain"),
        (c_float, "jitter"),
        (TensorStruct, "router_weight gate_up down shared_gate_up shared_down shared_gate"),
        (c_void_p, "router_bias router_logit_bias gate_up_bias down_bias router_norm expert_scale score_norm levels"),
        (TensorStruct * 3, "more_up more_down"),
        (c_float, "drop_below protect_from"),
        (c_void_p, "sum_bias"),
        (c_int32, "early reserved"),
    )


class SsmStruct(CStruct):
    _fields_ = fields(
        (c_int32, "heads head_dim state_size groups conv_size norm_groups"),
        (c_float, "dt_min dt_max"),
        (TensorStruct, "in_proj out_proj"),
        (c_void_p, "in_proj_bias out_proj_bias conv conv_bias dt_bias a d gate_norm"),
    )


class ConvStruct(CStruct):
    _fields_ = fields(
        (c_int32, "channels conv_size"),
        (TensorStruct, "in_proj out_proj"),
        (c_void_p, "in_proj_bias out_proj_bias conv conv_bias"),
    )


class DeltaStruct(CStruct):
    _fields_ = fields(
        (c_int32, "heads head_dim key_dim groups conv_size decays rank sigmoid"),
        (c_float, "beta_scale eps"),
        (TensorStruct, "in_proj out_proj gate_up decay_up"),
        (c_void_p, "conv dt_bias a gate_norm"),
    )


class PowerLawStruct(CStruct):
    _fields_ = fields((NormStruct, "entry attention output"), (c_void_p, "curvature"))


class LatentStruct(CStruct):
    _fields_ = fields(
        (c_int32, "rank rope_dim nope_dim v_dim q_rank"),
        (c_float, "inner_eps"),
        (TensorStruct, "q_a q kv_a k_up v_up"),
        (c_void_p, "q_a_bias kv_a_bias q_a_norm kv_norm"),
    )


class S6Struct(CStruct):
    _fields_ = fields(
        (c_int32, "inner state_size dt_rank conv_size part_norm"),
        (c_float, "part_eps"),
        (c_int32, "keeps reserved"),
        (TensorStruct, "in_proj x_proj dt_proj out_proj"),
        (c_void_p, "in_proj_bias out_proj_bias conv conv_bias dt_bias a d dt_norm b_norm c_norm"),
    )


class LookupStruct(CStruct):
    _fields_ = fields(
        (c_int32, "size first activation streams"),
        (TensorStruct, "gate context out"),
        (c_void_p, "context_norm input_scale"),
    )


class Rwkv7Struct(CStruct):
    _fields_ = fields(
        (c_int32, "heads head_dim key_dim"),
        (c_float, "eps"),
        (TensorStruct, "r k v o decay_down decay_up rate_down rate_up gate_down gate_up value_down value_up"),
        (c_void_p, "mix decay_bias rate_bias value_bias key_scale key_rate bonus out_norm out_norm_bias"),
    )


class ChannelMixStruct(CStruct):
    _fields_ = fields((TensorStruct, "up down"), (c_void_p, "mix"))


class GmuStruct(CStruct):
    _fields_ = fields((c_int32, "inner reserved"), (TensorStruct, "gate out"), (c_void_p, "gate_bias out_bias"))


class AltUpStruct(CStruct):
    _fields_ = fields(
        (c_int32, "step streams active reserved"), (TensorStruct, "router"), (c_void_p, "projections router_norm coefs")
    )


class LaurelStruct(CStruct):
    _fields_ = fields((c_int32, "rank reserved"), (TensorStruct, "left right"), (c_void_p, "low_norm"))


class PreRouterStruct(CStruct):
    _fields_ = fields(
        (c_int32, "experts first"),
        (TensorStruct, "up down router"),
        (c_void_p, "up_bias down_bias router_bias up_norm out_norm"),
    )


class BlockStruct(CStruct):
    _fields_ = [
        *fields(
            (c_int32, "kind branch feeds reserved"), (NormStruct, "norm post_norm after_norm joined_norm again_norm")
        ),
        *fields((c_void_p, "state_scale"), (c_int32, "slots_of values_of")),
        ("attention", POINTER(AttentionStruct)),
        ("mlp", POINTER(MlpStruct)),
        ("moe", POINTER(MoeStruct)),
        ("ssm", POINTER(SsmStruct)),
        ("power_law", POINTER(PowerLawStruct)),
        ("latent", POINTER(LatentStruct)),
        ("s6", POINTER(S6Struct)),
        ("conv", POINTER(ConvStruct)),
        ("delta", POINTER(DeltaStruct)),
        ("lookup", POINTER(LookupStruct)),
        ("rwkv7", POINTER(Rwkv7Struct)),
        ("channel_mix", POINTER(ChannelMixStruct)),
        ("gmu", POINTER(GmuStruct)),
        ("altup", POINTER(AltUpStruct)),
        ("laurel", POINTER(LaurelStruct)),
        ("pre_router", POINTER(PreRouterStruct)),
    ]


class RopeStruct(CStruct):
    _fields_ = fields((c_void_p, "cos sin"), (c_int32, "pairs positions"))


class ModelStruct(CStruct):
    _fields_ = fields(
        (c_int32, "vocab hidden n_blocks n_ropes"),
        (c_float, "norm_eps final_softcap embed_scale"),
        (c_int32, "texts"),
        (TensorStruct, "embed head"),
        (NormStruct, "final_norm"),
        (POINTER(BlockStruct), "blocks"),
        (POINTER(RopeStruct), "ropes"),
        (c_void_p, "head_bias types positions"),
        (NormStruct, "entry_norm"),
        (c_int32, "n_positions streams"),
        (TensorStruct, "lookup head_layer"),
        (c_void_p, "head_layer_bias"),
        (NormStruct, "head_layer_norm"),
        (c_int32, "head_activation n_types"),
    )


LORA_PARTS = 12  # places of a block in an adapter (`ED_LORA_PARTS`)


class LoraStruct(CStruct):
    _fields_ = fields((c_int32, "rank"), (c_float, "scale"), (c_void_p, "a b route"))


class RouteStruct(CStruct):
    _fields_ = fields((c_int32, "parts adapters"), (c_void_p, "gates first count loras"))


class AdapterStruct(CStruct):
    _fields_ = [("parts", POINTER(LoraStruct))]


class ViewStruct(CStruct):
    _fields_ = fields(
        (c_int32, "group striped"),
        (c_float, "theta"),
        (c_void_p, "sinks recent pages chosen_ends chosen slot_ends slots runs"),
    )


class ReadoutStruct(CStruct):
    _fields_ = fields((TensorStruct, "head"), (c_void_p, "ids"))


class SamplingStruct(CStruct):
    _fields_ = fields(
        (c_double, "temperature top_p min_p repetition presence frequency"),
        (c_int32, "top_k n_bias"),
        (c_void_p, "bias_ids bias"),
    )


class StepSettingsStruct(CStruct):
    _fields_ = fields((c_void_p, "cache sampler adapter random random_state ends"), (c_int32, "n_ends vocab"))


class StepResultStruct(CStruct):
    _fields_ = fields(
        (c_void_p, "path picked"), (c_int64, "numbers"), (c_double, "at"), (c_int32, "accepted undecided")
    )


class StepsStruct(CStruct):
    _fields_ = fields(
        (c_void_p, "engine steps others tokens"),
        (c_double, "seconds spent"),
        (c_int64, "rows cells"),
        (c_int32, "n n_others drafts"),
    )
    address = 0


class SequenceRows(CStruct):
    """One sequence of a call. Calls pack it (`pack_sequence`), which is faster than setting fields."""

    _fields_ = fields(
        (c_int32, "rows first n_blocks logits_from top n_hidden"),
        (c_double, "temperature"),
        (
            c_void_p,
            "cache blocks tokens input positions parents groups numbers types logits top_ids top_scores logsum entropy",
        ),
        (c_void_p, "hidden_blocks hidden attention_sums adapter embeddings readout queries views"),
        (c_void_p, "sampler drawn"),
        (c_double, "draw_at"),
    )


# The fields of `SequenceRows` in order, as bytes; addresses are numbers, 0 for none.
pack_sequence = Struct("@6id24Pd").pack
