"""MPNet: BERT without token types, whose scores have a learned part by distance (T5's buckets), the same in all
layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, finish
from edgedec.spec import Dense, ModelSpec, Output

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("mpnet.",), encodes=True)
SCORES = "MPNetForSequenceClassification"
# Distances from which on all are in the last bucket.
FAR = 128
# Rows of the table of positions before that of the first token.
OFFSET = 2
ATTENTION: e.Places = {
    **{
        f"qkv{end}": tuple(f"attention.attn.{p}.{kind}" for p in "qkv")
        for end, kind in (("", "weight"), ("_bias", "bias"))
    },
    "o": ("attention.attn.o.weight",),
    "o_bias": ("attention.attn.o.bias",),
    "after_norm": ("attention.LayerNorm.weight",),
    "after_norm_bias": ("attention.LayerNorm.bias",),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    _buckets(r)
    length, common = e.positions(r, context, OFFSET), e.bert_sizes(r)
    first = Dense(common["hidden_size"], True, "tanh")
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(e.bert_layer(r, distances=FAR),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=e.entry(r, length, types=0),
        output=e.score(r, "cls", first) if e.is_score(r, SCORES) else Output(),
    )
    return finish(r, found)


def bucket(distance: int, buckets: int) -> int:
    """The bucket of key - query: half of them for keys after it, of which half are of one distance each and the others
    grow with its logarithm."""
    half, apart = buckets // 2, abs(distance)
    exact, start = half // 2, half if distance > 0 else 0
    if apart < exact:
        return start + apart
    far = exact + int(math.log(apart / exact) / math.log(FAR / exact) * (half - exact))
    return start + min(far, half - 1)


def _buckets(r: ConfigReader) -> int:
    found = r.whole("relative_attention_num_buckets", 32)
    if found != 32:  # transformers computes with 32 whatever the config says
        raise r.fail("relative_attention_num_buckets", f"must be 32, found {found}")
    return found


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    r = ConfigReader(config)
    outer = e.embeddings(spec.context_length, OFFSET) | e.heads_of("classifier.dense", "classifier.out_proj")
    rows = [bucket(distance, _buckets(r)) for distance in range(-FAR, FAR + 1)]
    table = tuple(Part("/encoder.relative_attention_bias.weight", (row, row + 1)) for row in rows)
    return e.placed(spec, "encoder.layer.", {**ATTENTION, "distance": table}, e.BERT_MLP, outer)
