"""UniXcoder's mode tokens: which RoBERTa checkpoints have them, and how texts of each mode are given to the model.

encoder-only      <s> <encoder-only> </s> text </s>       all rows see each other; a vector is their mean
decoder-only      <s> <decoder-only> </s> text            a row sees what is before it
encoder-decoder   <s> <encoder-decoder> </s> text </s>    the rows of the text see each other, those after it as before
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import Text
from edgedec.bundle.modes import ModeFacts
from edgedec.errors import CheckpointError
from edgedec.export.safetensors import read_json, read_optional

TYPE, BASE = "unixcoder", "roberta"
ENCODER, DECODER, BOTH = MODES = ("<encoder-only>", "<decoder-only>", "<encoder-decoder>")
BEGIN, END, MASK = "<s>", "</s>", "<mask0>"
TOKENIZER = "tokenizer.json"
# The last message is a source, from which the model writes.
TEMPLATE = f"{BEGIN}{BOTH}{END}{{{{ messages[-1].content }}}}{END}"


def recognised(folder: Path, config: dict[str, Any], modules: bool) -> dict[str, Any]:
    """The config, of type `unixcoder` where the vocabulary of a RoBERTa without a head has the mode tokens. modules:
    sentence-transformers' files make an encoder of it, which no mode token is given to."""
    plain = config.get("architectures") in (None, [], ["RobertaModel"])
    if config.get("model_type") != BASE or modules or not plain:
        return config
    ids = _vocabulary(folder)
    lacking = [token for token in MODES if token not in ids]
    if len(lacking) == len(MODES):
        return config
    if lacking:
        raise CheckpointError(f"{folder}: its vocabulary has UniXcoder's mode tokens but {' and '.join(lacking)}")
    if not (folder / TOKENIZER).is_file():
        raise CheckpointError(
            f"{folder}: has vocab.json but no {TOKENIZER}; convert it with "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return config | {"model_type": TYPE}


def mode_facts(folder: Path, config: Mapping[str, Any]) -> ModeFacts | None:
    """The tokens around a text of each mode; None for a model without modes, or without a tokenizer here."""
    if config.get("model_type") != TYPE or not (folder / TOKENIZER).is_file():
        return None
    ids, size = _vocabulary(folder), config.get("vocab_size", 0)
    for token in (BEGIN, END, *MODES):
        if token not in ids:
            raise CheckpointError(f"{folder / TOKENIZER}: has no {token}, which the modes of {TYPE} need")
        if ids[token] >= size:
            raise CheckpointError(f"{folder / TOKENIZER}: {token} is token {ids[token]} of {size} in the vocabulary")
    begin, end = ids[BEGIN], ids[END]
    return ModeFacts((begin, ids[ENCODER], end), (begin, ids[BOTH], end), end)


def with_modes(folder: Path, text: Text) -> Text:
    """Let a bundle's tokenizer put what decoder-only mode needs before a text, and read mode tokens and the mask as one
    token each; a chat's last message is a source of encoder-decoder mode."""
    file = folder / TOKENIZER
    data, ids = read_json(file), _vocabulary(folder)
    known = {token.get("content") for token in data.get("added_tokens") or []}
    added = [_special(token, ids[token]) for token in (*MODES, MASK) if token in ids and token not in known]
    data["added_tokens"] = sorted([*(data.get("added_tokens") or []), *added], key=lambda token: token["id"])
    data["post_processor"] = _around((BEGIN, DECODER, END), ids)
    file.write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    return replace(text, bos_token=BEGIN, eos_token=END, chat_template=text.chat_template or TEMPLATE)


def _vocabulary(folder: Path) -> dict[str, int]:
    """Every token's number, by tokenizer.json or by the older files."""
    if not (folder / TOKENIZER).is_file():
        return read_optional(folder / "vocab.json") | read_optional(folder / "added_tokens.json")
    data = read_json(folder / TOKENIZER)
    model, added = data.get("model"), data.get("added_tokens")
    found = dict(model.get("vocab") or {}) if isinstance(model, dict) and isinstance(model.get("vocab"), dict) else {}
    return found | {token["content"]: token["id"] for token in added or [] if isinstance(token, dict)}


def _special(token: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def _around(before: tuple[str, ...], ids: Mapping[str, int]) -> dict[str, Any]:
    """A post-processor that puts tokens before a text."""
    first = [{"SpecialToken": {"id": token, "type_id": 0}} for token in before]
    text, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    specials = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in before}
    single = [*first, text]
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, second], "special_tokens": specials}
