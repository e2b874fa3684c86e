"""NeoBERT (arXiv:2502.19587): Llama's layers whose rows see each other; neighbouring channels turn together, queries,
keys and values are fused head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models._dense import fused, plain, rotary
from edgedec.models._names import Names, named
from edgedec.spec import Attention, Dense, Mlp, ModelSpec, Output

FACTS = ArchitectureFacts(
    (r"(model\.)?decoder\..*", r"dense\..*", r"classifier\..*", r"(\w+\.)?freqs_cis"),
    prefixes=("model.",),
    encodes=True,
)
SCORES = "NeoBERTForSequenceClassification"
WORDS = {"max_length": "max_position_embeddings"}
FIXED: dict[str, Any] = {"hidden_act": "SwiGLU", "rms_norm": True, "rope": True, "ngpt": False}
UNUSED = (
    *("kwargs", "flash_attention", "embedding_init_range", "decoder_init_range", "classifier_init_range"),
    *("base_scale", "trust_remote_code", "pretrained_model_name_or_path"),
)
OUTER = {
    **{"embed": "encoder.weight", "final_norm": "layer_norm.weight"},
    **{"dense.0": "dense.weight", "dense.0_bias": "dense.bias"},
    **{"dense.1": "classifier.weight", "dense.1_bias": "classifier.bias"},
}
# Rows of the feed-forward come in so many.
MULTIPLE = 8


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, UNUSED))
    e.read_always(r)
    heads, hidden = r.whole("num_attention_heads"), r.whole("hidden_size")
    if hidden % heads or r.whole("dim_head", hidden // heads) != hidden // heads:
        raise r.fail("num_attention_heads", f"{heads} do not share {hidden} values evenly, dim_head each")
    dim = hidden // heads
    layer = Attention(heads, heads, dim, dim**-0.5), Mlp(inner(r.whole("intermediate_size")))
    output = e.score(r, "cls", Dense(hidden, True, "tanh")) if e.is_score(r, SCORES) else Output()
    facts: dict[str, Any] = {"tied": True, "eps_key": "norm_eps", "causal": False, "output": output}
    return rotary(r, context, layer, dim, **facts)


def inner(intermediate: int) -> int:
    """The width of the feed-forward: two thirds of the config's, in whole eights.

    >>> inner(3072), inner(20)
    (2048, 16)
    """
    return -(-int(2 * intermediate / 3) // MULTIPLE) * MULTIPLE


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    names: Names = {
        "attention": {
            "norm": ("attention_norm.weight",),
            "qkv": fused("qkv.weight", block := spec.attention[0], (block.head_dim, 0, block.head_dim)),
            "o": ("wo.weight",),
        },
        "mlp": {"norm": ("ffn_norm.weight",), "gate_up": ("ffn.w12.weight",), "down": ("ffn.w3.weight",)},
    }
    return named(spec, names, outer=OUTER, layers="transformer_encoder.")
