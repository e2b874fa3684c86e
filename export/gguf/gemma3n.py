"""Gemma 3n in GGUF files: its config, and where its tensors are: as in the checkpoint but for their names, and with the
projections of all streams in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan
from statistics import NormalDist

import numpy as np

from edgedec.export.gguf.common import Config, common, pattern, rows
from edgedec.export.gguf.gemma4 import LAYER, OUTER
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.models import Part, Source
from edgedec.models.gemma3n_text import text_weights
from edgedec.spec import ModelSpec

_STREAMS = {
    "model.altup_projections": "altup_proj.weight",
    "model.altup_unembed_projections": "altup_unembd_proj.weight",
}
_LAYER = {
    **LAYER,
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "altup.correction_coefs.weight": "altup_correct_coef.weight",
    "altup.prediction_coefs.weight": "altup_predict_coef.weight",
    "altup.modality_router.weight": "altup_router.weight",
    "altup.router_norm.weight": "altup_router_norm.weight",
    "laurel.linear_left.weight": "laurel_l.weight",
    "laurel.linear_right.weight": "laurel_r.weight",
    "laurel.post_laurel_norm.weight": "laurel_post_norm.weight",
}


def gemma3n(f: GgufFacts) -> Config:
    n = f.whole("block_count", least=1, most=len(f.file.tensors))
    found = common(f, "gemma3n_text", inner=f.each("feed_forward_length", n)[0])
    scaling = found.pop("rope_scaling", None) or {"rope_type": "default"}
    streams = f.whole("altup.num_inputs", least=2)
    for tensor in _STREAMS.values():
        if rows(f, tensor) != streams - 1:
            raise f.fail(f.name("altup.num_inputs"), f"is {streams}; {tensor} has {rows(f, tensor)} streams beside one")
    return found | {
        "hidden_activation": "gelu_pytorch_tanh",
        "intermediate_size": f.each("feed_forward_length", n),
        "layer_types": ["sliding_attention" if on else "full_attention" for on in pattern(f, n, 5)],
        "sliding_window": f.whole("attention.sliding_window", least=1),
        "num_kv_shared_layers": f.whole("attention.shared_kv_layers", most=n),
        "hidden_size_per_layer_input": f.whole("embedding_length_per_layer_input", least=1),
        "vocab_size_per_layer_input": rows(f, "per_layer_token_embd.weight"),
        "final_logit_softcapping": f.number("final_logit_softcapping", 0.0) or None,
        "activation_sparsity_pattern": _sparsity(f, n),
        "altup_num_inputs": streams,
        "altup_active_idx": f.whole("altup.active_idx"),
        "laurel_rank": rows(f, "blk.0.laurel_l.weight"),
        "rope_parameters": {
            "full_attention": {"rope_theta": found.pop("rope_theta"), **scaling},
            "sliding_attention": {"rope_theta": f.number("rope.freq_base_swa", 1e4), "rope_type": "default"},
        },
    }


def _sparsity(f: GgufFacts, n: int) -> list[float]:
    """The share of each layer's gates that is off. The file has how many deviations above their mean a gate must be,
    in single precision: minus infinity where none is off."""
    key = f.name("activation_sparsity_scale")
    found = f.file.metadata.get(key)
    values = [float(value) for value in found] if isinstance(found, np.ndarray) else []
    if len(values) != n or any(isnan(value) for value in values):
        raise f.fail(key, f"must give a number for each of {n} layers, found {found!r:.60}")
    return [round(NormalDist().cdf(value), 6) for value in values]


def gemma3n_weights(spec: ModelSpec, config: Config) -> dict[str, Source]:
    return {
        name: tuple(_named(part, spec.hidden_size) for part in source)
        for name, source in text_weights(spec, config).items()
    }


def _named(part: Part, hidden: int) -> Part:
    if part.name in OUTER:
        return replace(part, name=OUTER[part.name])
    group, _, rest = part.name.removesuffix(".weight").rpartition(".")
    if group in _STREAMS:  # of stream 1 and the others
        at = int(rest) * hidden
        return replace(part, name=_STREAMS[group], rows=(at, at + hidden), flat=True)
    _, _, layer, rest = part.name.split(".", 3)
    return replace(part, name=f"blk.{layer}.{_LAYER.get(rest, f'{rest} (no name in GGUF)')}")


GEMMA3N: Mapping[str, Callable[[GgufFacts], Config]] = {"gemma3n": gemma3n}
