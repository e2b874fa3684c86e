"""EuroBERT: Llama whose rows see each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source, llama
from edgedec.models import _encoders as e
from edgedec.models._common import IGNORED, ConfigReader
from edgedec.models._names import named
from edgedec.spec import Dense, ModelSpec, Output

FACTS = ArchitectureFacts(
    (*IGNORED, r"lm_head\.bias", r"classifier\..*", r"dense\..*"), prefixes=("model.",), encodes=True
)
SCORES = "EuroBertForSequenceClassification"
POOLS = {"bos": "cls", "mean": "mean"}
OWN = (
    "classifier_pooling",
    "clf_pooling",
    "mask_token",
    "pad_token",
    "bos_token",
    "eos_token",
    "sentence_transformers",
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    plain = {key: value for key, value in config.items() if key not in OWN}
    found = llama.spec({"rms_norm_eps": 1e-5, **plain}, context)
    return replace(found, tied=True, causal=False, output=_output(r, found.hidden_size)).check(r.where)


def _output(r: ConfigReader, hidden: int) -> Output:
    if not e.is_score(r, SCORES):
        return Output()
    pool = r.text("classifier_pooling", "late")
    if pool not in POOLS:
        raise r.fail("classifier_pooling", f"{pool!r} is not supported; supported: {', '.join(POOLS)}")
    return e.score(r, POOLS[pool], Dense(hidden, True, "gelu"))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec) | {k: v for k, v in e.heads_of("dense", "classifier").items() if k in spec.tensors()}
