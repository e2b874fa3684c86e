"""The Mamba-2 blocks of hybrid models: their fields of a config, and the names of their weights."""

from __future__ import annotations

from math import inf

from edgedec.models import Part
from edgedec.models._common import ConfigReader, activation
from edgedec.models._names import Paths
from edgedec.spec import Ssm

MAMBA: Paths = {
    "norm": ("input_layernorm.weight",),
    "in_proj": ("mamba.in_proj.weight",),
    "in_proj_bias": ("mamba.in_proj.bias",),
    "conv": (Part("mamba.conv1d.weight", flat=True),),
    "conv_bias": ("mamba.conv1d.bias",),
    "dt_bias": ("mamba.dt_bias",),
    "a": (Part("mamba.A_log", exp=True, times=-1.0),),
    "d": ("mamba.D",),
    "gate_norm": ("mamba.norm.weight",),
    "out_proj": ("mamba.out_proj.weight",),
    "out_proj_bias": ("mamba.out_proj.bias",),
}


def mamba(r: ConfigReader) -> Ssm:
    """The block that the `mamba_` keys of a config describe."""
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by Mamba blocks; known: silu")
    if not r.flag("mamba_conv_bias", True):
        raise r.fail("mamba_conv_bias", "is false: convolutions without a bias are not supported")
    r.value("mamba_chunk_size", None)  # how a chunk is summed, not what is computed
    n_heads, groups = r.whole("mamba_n_heads", 128), r.whole("mamba_n_groups", 1)
    low, high = _step_limits(r)
    return Ssm(
        n_heads=n_heads,
        head_dim=_head_dim(r, n_heads),
        state_size=r.whole("mamba_d_state", 256),
        n_groups=groups,
        conv_size=r.whole("mamba_d_conv", 4),
        dt_min=low,
        dt_max=high,
        norm_groups=groups,
        proj_bias=r.flag("mamba_proj_bias", False),
    )


def _head_dim(r: ConfigReader, n_heads: int) -> int:
    """The width of a head; "auto" is what fills `mamba_expand` times the hidden size."""
    inner = r.whole("mamba_expand", 2) * r.whole("hidden_size")
    dim = inner // n_heads if r.value("mamba_d_head", "auto") == "auto" else r.whole("mamba_d_head")
    if dim * n_heads != inner:
        raise r.fail("mamba_n_heads", f"{n_heads} heads of {dim} do not fill {inner} channels")
    return dim


def _step_limits(r: ConfigReader) -> tuple[float, float]:
    """The range of a time step. JSON has no infinity, so transformers writes {"__float__": "Infinity"}."""
    found = r.value("time_step_limit", None)
    if found is None:
        return Ssm.dt_min, Ssm.dt_max
    values = [inf if item == {"__float__": "Infinity"} else item for item in found] if isinstance(found, list) else []
    if len(values) != 2 or any(type(item) not in (int, float) for item in values) or not 0 <= values[0] <= values[1]:
        raise r.fail("time_step_limit", f"must be two ascending numbers of at least 0, found {found!r:.60}")
    return float(values[0]), min(float(values[1]), Ssm.dt_max)
