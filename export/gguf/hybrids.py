"""The configs of decoders in GGUF files that mix attention with other blocks: state spaces, the delta rule."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.gguf.common import Config, biased, common, expert_count, of_experts, rows, some, turned_share
from edgedec.export.gguf.metadata import GgufFacts


def _attending(f: GgufFacts, n: int) -> list[bool]:
    """The layers with keys and values."""
    return [bool(heads) for heads in f.each("attention.head_count_kv", n)]


def _every(f: GgufFacts, on: list[bool], what: str) -> Config:
    """Which layers are of a kind, as one of every so many: all that a config can say."""
    places = [i for i, one in enumerate(on) if one]
    first = places[0] if places else len(on)
    period = places[1] - first if len(places) > 1 else max(len(on), first + 1)
    if [i % period == first for i in range(len(on))] != on:
        raise f.fail(f"{what}_period", f"would not give layers {places}: they are not one of every so many")
    return {f"{what}_period": period, f"{what}_offset": first}


def _jamba(f: GgufFacts) -> Config:
    found, inner = common(f, "jamba"), f.whole("ssm.inner_size", least=1)
    n, hidden, experts = found["num_hidden_layers"], found["hidden_size"], expert_count(f)
    if inner % hidden:
        raise f.fail(f.name("ssm.inner_size"), f"{inner} is not whole times {hidden}")
    routes = [f"blk.{i}.ffn_gate_inp.weight" in f.file.tensors for i in range(n)]
    found |= _every(f, _attending(f, n), "attn_layer") | (_every(f, routes, "expert_layer") if experts else {})
    return {key: value for key, value in found.items() if key not in ("rope_theta", "rope_scaling")} | {
        "num_experts": experts or 1,
        "num_experts_per_tok": f.whole("expert_used_count", 1),
        "mamba_expand": inner // hidden,
        "mamba_d_state": f.whole("ssm.state_size", least=1),
        "mamba_d_conv": f.whole("ssm.conv_kernel", least=1),
        "mamba_dt_rank": f.whole("ssm.time_step_rank", least=1),
        "mamba_proj_bias": biased(f, "ssm_in"),
    }


HYBRIDS: dict[str, Callable[[GgufFacts], Config]] = {
    "jamba": _jamba,
}
