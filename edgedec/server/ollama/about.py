"""Descriptions of models for Ollama's clients."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from math import prod
from typing import Any

from edgedec.bundle import Bundle
from edgedec.model import Model
from edgedec.server.infill import marks
from edgedec.server.pool import ModelSource
from edgedec.server.thinking import OPEN

Json = dict[str, Any]
# The supported version of Ollama's API, which clients request.
API_VERSION = "0.12.0"
_SAMPLING = {"repetition_penalty": "repeat_penalty"}


def now(seconds: float | None = None) -> str:
    """A time as Ollama writes it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def card(source: ModelSource, name: str | None = None) -> Json:
    """A model in a list."""
    tagged = f"{name or source.name}:latest"
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": now(source.created),
        "size": sum(file.size for file in source.bundle.manifest.files.values()),
        "digest": source.bundle.digest,
        "details": details(source.bundle),
    }


def details(bundle: Bundle) -> Json:
    """A model's family, format and size."""
    family = bundle.spec.architecture
    return {
        "parent_model": "",
        "format": "edgedec",
        "family": family,
        "families": [family],
        "parameter_size": _size(_parameters(bundle)),
        "quantization_level": _quantization(bundle),
    }


def shown(source: ModelSource, model: Model) -> Json:
    """The answer of /api/show."""
    bundle, text = source.bundle, source.bundle.manifest.text
    family, spec = bundle.spec.architecture, bundle.spec
    suggested = {_SAMPLING.get(name, name): value for name, value in text.sampling.items()}
    return {
        "modelfile": f"# {source.name}: an edgedec bundle",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in suggested.items()),
        "template": text.chat_template or "",
        "details": details(bundle),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": _parameters(bundle),
            f"{family}.block_count": len(spec.layers),
            f"{family}.context_length": spec.context_length,
            f"{family}.embedding_length": spec.hidden_size,
            f"{family}.vocab_size": spec.vocab_size,
        },
        "capabilities": _capabilities(model),
        "modified_at": now(source.created),
    }


def _capabilities(model: Model) -> list[str]:
    template = model.bundle.manifest.text.chat_template
    if model.spec.output is not None:
        return ["embedding"]
    found = ["completion", "embedding"]
    found += ["tools"] if template is not None else []
    found += ["insert"] if marks(model.tokenizer) is not None else []
    return found + (["thinking"] if template is not None and OPEN in template else [])


def _parameters(bundle: Bundle) -> int:
    return sum(prod(shape) for shape in bundle.spec.tensors().values())


def _quantization(bundle: Bundle) -> str:
    """The format that most of the weights have."""
    sizes: Counter[str] = Counter()
    for tensor in bundle.manifest.tensors.values():
        sizes[tensor.format] += prod(tensor.shape)
    return sizes.most_common(1)[0][0] if sizes else "unknown"


def _size(parameters: int) -> str:
    """3_300_000 -> "3.3M"."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters)
