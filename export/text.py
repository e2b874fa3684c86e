"""The text side of a checkpoint: tokenizer, chat template, end tokens, suggested sampling."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import Text
from edgedec.errors import CheckpointError
from edgedec.export.world import vocabulary_of, write_world
from edgedec.text.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
# Not read by edgedec: onnxruntime-genai and Hugging Face tools need them in the same folder as tokenizer.json.
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def copy_text(source: Path, target: Path, config: dict[str, Any]) -> Text:
    """Copy the tokenizer into the bundle; returns the manifest's text facts."""
    generation = _json(source / "generation_config.json")
    settings = _json(source / "tokenizer_config.json")
    bos, ends = _first("bos_token_id", generation, config), ends_of(source, config)
    for key, ids in {"bos_token_id": (bos,) if bos is not None else (), "eos_token_id": ends}.items():
        _check_ids(source, key, ids)
    world = vocabulary_of(source)
    if not (source / TOKENIZER).is_file() and world is None:
        if any(source.glob("tokenizer.model")):
            raise CheckpointError(
                f"{source}: has tokenizer.model but no {TOKENIZER}; convert it with "
                "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        return Text(tokenizer=None, bos=bos, eos=ends, sampling=_sampling(generation))
    for name in (TOKENIZER, *COMPANIONS):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if world and not (source / TOKENIZER).is_file():
        write_world(world, target / TOKENIZER, _spelling(settings, "eos_token") or "")
    tokenizer = Tokenizer.load(source / TOKENIZER if world is None else target / TOKENIZER)
    return Text(
        tokenizer=TOKENIZER,
        bos=bos,
        eos=ends,
        bos_token=_special(settings, "bos_token", tokenizer, bos),
        eos_token=_special(settings, "eos_token", tokenizer, ends[0] if ends else None),
        chat_template=_template(source, settings),
        sampling=_sampling(generation),
    )


def ends_of(source: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text."""
    eos = _first("eos_token_id", _json(source / "generation_config.json"), config)
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def _json(path: Path) -> dict[str, Any]:
    """An optional JSON object; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected an object")
    return data


def _check_ids(source: Path, key: str, ids: tuple[Any, ...]) -> None:
    for id_ in ids:
        if type(id_) is not int or not 0 <= id_ < 1 << 31:
            raise CheckpointError(f"{source}: {key}: {str(id_)[:60]!r} is not the number of a token")


def _first(key: str, *places: dict[str, Any]) -> Any:
    return next((place[key] for place in places if place.get(key) is not None), None)


def _special(settings: dict[str, Any], key: str, tokenizer: Tokenizer, token: int | None) -> str:
    value = _spelling(settings, key)
    if value is not None:
        return value
    return "" if token is None or token >= tokenizer.vocab_size else tokenizer.token(token)


def _spelling(settings: dict[str, Any], key: str) -> str | None:
    value = settings.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(source: Path, settings: dict[str, Any]) -> str | None:
    """From a file of its own or the tokenizer's settings; of several named ones, the default."""
    if (source / "chat_template.jinja").is_file():
        return (source / "chat_template.jinja").read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _sampling(generation: dict[str, Any]) -> dict[str, float]:
    """The suggested sampling settings: none unless the model's config enables sampling."""
    if not generation.get("do_sample"):
        return {}
    found = {key: generation.get(key) for key in _SAMPLING}
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
