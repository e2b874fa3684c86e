"""Vocabularies of text encoders in GGUF files as tokenizer.json: WordPiece and Unigram, and the tokens around texts.

llama.cpp writes a WordPiece vocabulary with "▁" before what begins a word and nothing before what goes on, where BERT
has nothing and "##".
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedec.export.gguf.metadata import GgufFacts

SPACE, CONTINUED = "▁", "##"
UNKNOWN, CONTROL, BYTE = 2, 3, 6
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
# What llama.cpp takes where a file does not say, by the kind of vocabulary.
USUAL = {
    "bert": {"unknown": 100, "bos": 101, "seperator": 102},
    "llama": {"unknown": 0, "bos": 1, "eos": 2},
    "t5": {"unknown": 2, "eos": 1},
}


def wordpiece(f: GgufFacts, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """BERT's vocabulary and cuts."""
    spelled = [_spelled(token, kind) for token, kind in zip(tokens, types, strict=True)]
    if len(set(spelled)) != len(spelled):
        raise f.fail("tokenizer.ggml.tokens", "has a token twice once its words begin as BERT's do")
    lower = _flag(f, "normalizer.lowercase", not _cased(spelled, types))
    accents = f.file.metadata.get("tokenizer.ggml.normalizer.strip_accents")
    return {
        "normalizer": {
            **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
            **{"strip_accents": accents if isinstance(accents, bool) else None, "lowercase": lower},
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUED, "cleanup": True},
        "model": {
            **{"type": "WordPiece", "continuing_subword_prefix": CONTINUED, "max_input_chars_per_word": 100},
            **{"unk_token": spelled[token_id(f, "unknown", len(tokens))]},
            "vocab": {token: i for i, token in enumerate(spelled)},
        },
    }


def _spelled(token: str, kind: int) -> str:
    """As BERT spells it. Special tokens are as they are, and in files of before 2025 all in brackets.

    >>> [_spelled(token, 1) for token in ("▁cat", "s", "[unused7]")]
    ['cat', '##s', '[unused7]']
    """
    if kind == CONTROL or (len(token) > 2 and token[0] == "[" and token[-1] == "]"):
        return token
    return token[1:] if token.startswith(SPACE) and len(token) > 1 else CONTINUED + token


def _cased(tokens: Sequence[str], types: Sequence[int]) -> bool:
    """Is there a token with a capital, which no text in lower case can have?"""
    return any(
        token != token.lower()
        for token, kind in zip(tokens, types, strict=True)
        if kind != CONTROL and not token.startswith("[")
    )


def unigram(f: GgufFacts, tokens: list[str], types: list[int], scores: Sequence[float]) -> dict[str, Any]:
    """SentencePiece's vocabulary of scored pieces (XLM-R's)."""
    words = {"type": "Metaspace", "replacement": SPACE, "split": True}
    words["prepend_scheme"] = "always" if _flag(f, "add_space_prefix", True) else "never"
    extra = _flag(f, "remove_extra_whitespaces", True)
    unknown = next((i for i, kind in enumerate(types) if kind == UNKNOWN), None)
    return {
        "normalizer": _charsmap(f),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*([{"type": "WhitespaceSplit"}] * extra), words]},
        "decoder": words,
        "model": {
            "type": "Unigram",
            "unk_id": token_id(f, "unknown", len(tokens), unknown),
            "vocab": [[token, float(score)] for token, score in zip(tokens, scores, strict=True)],
            "byte_fallback": BYTE in types,
        },
    }


def _charsmap(f: GgufFacts) -> dict[str, Any] | None:
    """SentencePiece's table of characters that stand for others."""
    found = f.file.metadata.get(CHARSMAP)
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.dtype.itemsize != 1:
        raise f.fail(CHARSMAP, "must be a list of bytes")
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(found.tobytes()).decode()}


def token_id(f: GgufFacts, name: str, count: int, usual: int | None = None) -> int:
    """The token for a purpose that the vocabulary must have."""
    key = f"tokenizer.ggml.{name}_token_id"
    if usual is None:
        usual = USUAL.get(f.text("tokenizer.ggml.model"), {}).get(name)
    found = f.file.metadata.get(key, usual)
    if type(found) is not int or not 0 <= found < count:
        raise f.fail(key, f"must be one of {count} tokens, found {found!r:.40}")
    return found


def around(f: GgufFacts, kind: str, tokens: list[str], usual: bool) -> dict[str, Any] | None:
    """The post-processor of an encoder: the first token, a text, the last; of a pair the last and, if the file says so,
    the separator between. usual: if a first token is put there where the file is silent."""
    n, piece = len(tokens), kind == "bert"
    first = _named(f, ("cls", "bos"), n, piece or _flag(f, "add_bos_token", usual and kind != "t5"))
    last = _named(f, ("seperator", "eos") if piece else ("eos", "seperator"), n,
                  piece or _flag(f, "add_eos_token", kind == "t5"))  # fmt: skip
    between = _named(f, ("seperator", "eos"), n, not piece and _flag(f, "add_sep_token", False))
    table = f.file.tensors.get("token_types.weight")
    second = int(piece and table is not None and len(table.shape) > 1 and table.shape[0] > 1)
    used = [i for i in (first, last, between) if i is not None]
    if not used:
        return None

    def special(i: int | None, kind: int) -> list[dict[str, Any]]:
        return [] if i is None else [{"SpecialToken": {"id": tokens[i], "type_id": kind}}]

    whole = [*special(first, 0), {"Sequence": {"id": "A", "type_id": 0}}, *special(last, 0)]
    other = [*special(between, 0), {"Sequence": {"id": "B", "type_id": second}}, *special(last, second)]
    names = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in used}
    return {"type": "TemplateProcessing", "single": whole, "pair": [*whole, *other], "special_tokens": names}


def _named(f: GgufFacts, names: Sequence[str], count: int, wanted: bool) -> int | None:
    """The first of these tokens that the file names, or has without naming it."""
    if not wanted:
        return None
    usual = USUAL.get(f.text("tokenizer.ggml.model"), {})
    said = [name for name in names if f"tokenizer.ggml.{name}_token_id" in f.file.metadata]
    return token_id(f, [*said, *(name for name in names if name in usual), names[0]][0], count)


def _flag(f: GgufFacts, name: str, usual: bool) -> bool:
    found = f.file.metadata.get(f"tokenizer.ggml.{name}", usual)
    if type(found) is not bool:
        raise f.fail(f"tokenizer.ggml.{name}", f"must be true or false, found {found!r:.40}")
    return found
