"""The recurrent blocks of a bundle as the native engine reads them."""

from __future__ import annotations

from edgedec.kernels.cpu import codes, structs
from edgedec.runtimes._native_tensors import NativeTensors
from edgedec.spec import S6, Conv, Delta, Rwkv7, Ssm


class NativeRecurrent(NativeTensors):
    """Their numbers and addresses, by kind."""

    def _ssm(self, prefix: str, block: Ssm) -> structs.SsmStruct:
        return structs.SsmStruct(
            heads=block.n_heads,
            head_dim=block.head_dim,
            state_size=block.state_size,
            groups=block.n_groups,
            conv_size=block.conv_size,
            norm_groups=block.norm_groups,
            dt_min=block.dt_min,
            dt_max=block.dt_max,
            **self._matrices(prefix, "in_proj out_proj"),
            **self._vectors(prefix, "in_proj_bias out_proj_bias conv conv_bias dt_bias a d gate_norm"),
        )

    def _s6(self, prefix: str, block: S6) -> structs.S6Struct:
        return structs.S6Struct(
            inner=block.inner_size,
            state_size=block.state_size,
            dt_rank=block.dt_rank,
            conv_size=block.conv_size,
            part_norm=codes.PART_NORMS[block.part_norm],
            part_eps=block.part_eps,
            **self._matrices(prefix, "in_proj x_proj dt_proj out_proj"),
            **self._vectors(prefix, "in_proj_bias out_proj_bias conv conv_bias dt_bias a d dt_norm b_norm c_norm"),
        )

    def _conv(self, prefix: str, block: Conv) -> structs.ConvStruct:
        return structs.ConvStruct(
            channels=block.inner_size,
            conv_size=block.conv_size,
            **self._matrices(prefix, "in_proj out_proj"),
            **self._vectors(prefix, "in_proj_bias out_proj_bias conv conv_bias"),
        )

    def _delta(self, prefix: str, block: Delta) -> structs.DeltaStruct:
        return structs.DeltaStruct(
            heads=block.n_heads,
            head_dim=block.head_dim,
            key_dim=block.key_dim,
            groups=block.n_groups,
            conv_size=block.conv_size,
            decays=block.decays // block.n_heads,
            rank=block.rank,
            sigmoid=block.gate == "sigmoid",
            beta_scale=block.beta_scale,
            eps=block.eps,
            **self._matrices(prefix, "in_proj out_proj gate_up decay_up"),
            **self._vectors(prefix, "conv dt_bias a gate_norm"),
        )

    def _rwkv7(self, prefix: str, block: Rwkv7) -> structs.Rwkv7Struct:
        low = (f"{name}_{way}" for name in ("decay", "rate", "gate", "value") for way in ("down", "up"))
        return structs.Rwkv7Struct(
            heads=block.n_heads,
            head_dim=block.head_dim,
            key_dim=block.key_dim,
            eps=block.eps,
            **self._matrices(prefix, f"r k v o {' '.join(low)}"),
            **self._vectors(prefix, "mix decay_bias rate_bias value_bias key_scale key_rate bonus"),
            **self._vectors(prefix, "out_norm out_norm_bias"),
        )

    def _channel_mix(self, prefix: str) -> structs.ChannelMixStruct:
        return structs.ChannelMixStruct(**self._matrices(prefix, "up down"), mix=self._vector(prefix + "mix"))
