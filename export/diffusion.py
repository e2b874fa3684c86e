"""How a checkpoint is decoded if it is a diffusion language model: the section `diffusion` of the manifest.

What the architecture's authors do (`Fills` in models), with the mask that the config or the tokenizer names; the key
`diffusion` of config.json goes first, entry by entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.models import Fills, architecture
from edgedec.models._common import ConfigReader
from edgedec.spec import ModelSpec
from edgedec.storage.serde import from_json

KEY = "diffusion"
MASK = "mask_token_id"
# Files of a tokenizer, in which its special tokens are.
_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
_TOKENIZER = "tokenizer.json"


def diffusion_facts(
    config: Mapping[str, Any], spec: ModelSpec, folder: Path | None = None, where: str = "config.json"
) -> DiffusionFacts | None:
    """The facts of a diffusion model; None for an autoregressive one. folder: of the checkpoint, whose tokenizer may
    name the mask; where: the config's place, for messages.

    {"diffusion": {"mask": 4096, "shift": true, "context": "causal", "block": 8}} is the config's entry of nano-block
    """
    fills, given = architecture(config).FACTS.diffusion, config.get(KEY)
    if given is None and fills is None:
        return None
    if given is not None and not isinstance(given, dict):
        raise CheckpointError(f"{where}: {KEY}: expected an object, found {given!r:.40}")
    said: dict[str, Any] = dict(given or {})
    if fills is not None:
        said = _usual(ConfigReader(config, where), fills, spec) | said
        if "mask" not in said:
            said["mask"] = _mask(config, fills, spec, folder, where)
    try:
        found = from_json(DiffusionFacts, said, f"{where}: {KEY}")
    except BundleCorrupt as error:
        raise CheckpointError(str(error)) from None
    if not 0 <= found.mask < spec.vocab_size or not 1 <= found.block <= spec.context_length:
        sizes = f"{spec.vocab_size} tokens and a context of {spec.context_length}"
        raise CheckpointError(f"{where}: {KEY}: mask {found.mask}, block {found.block}: does not fit {sizes}")
    return found


def _usual(r: ConfigReader, fills: Fills, spec: ModelSpec) -> dict[str, Any]:
    """What the authors do, without the mask."""
    block = r.whole(fills.block_key, fills.block) if fills.block_key else fills.block
    if fills.context == "full":  # there a block is an order of decoding and no part of the model
        block = min(block, spec.context_length)
    return {"shift": fills.shift, "context": fills.context, "block": block}


def _mask(config: Mapping[str, Any], fills: Fills, spec: ModelSpec, folder: Path | None, where: str) -> int:
    """The mask by the config, the tokenizer, or the authors' code."""
    if config.get(MASK) is not None:
        return ConfigReader(config, where).whole(MASK, least=0)
    found = None if folder is None else _of_tokenizer(folder)
    if found is None and fills.mask is not None and fills.mask < spec.vocab_size:
        found = fills.mask
    if found is None:
        raise CheckpointError(
            f"{where}: {MASK} is missing, and the tokenizer names no mask token: a diffusion model needs one; give its "
            f"number as {MASK}"
        )
    return found


def _of_tokenizer(folder: Path) -> int | None:
    """The number of the mask token that a tokenizer's files name; None if they name none."""
    named = [_content(_json(folder / name).get("mask_token")) for name in _NAMES]
    content = next((name for name in named if name), None)
    if content is None:
        return None
    added = _json(folder / _TOKENIZER).get("added_tokens")
    found = {each.get("content"): each.get("id") for each in added if isinstance(each, dict)} if added else {}
    settings = _json(folder / _NAMES[0]).get("added_tokens_decoder")
    if isinstance(settings, dict):
        found |= {_content(token): int(number) for number, token in settings.items() if str(number).isdecimal()}
    number = found.get(content)
    return number if type(number) is int else None


def _content(token: Any) -> str | None:
    """The text of a token, which may stand in an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _json(path: Path) -> dict[str, Any]:
    """An optional JSON object; empty if there is none (`copy_text` refuses files that are no JSON)."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
