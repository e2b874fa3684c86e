"""The text side of a GGUF file: its vocabulary as a tokenizer.json, its chat template, its end tokens, its sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle.manifest import Text
from edgedec.errors import CheckpointError, TextError
from edgedec.export.gguf.encoder_text import around, unigram, wordpiece
from edgedec.export.gguf.encoders import ENCODERS
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.pretokenizers import KNOWN, PreTokenizer
from edgedec.export.world import pipeline
from edgedec.text.tokenizer import Tokenizer

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
TOKENS, MERGES, SCORES, TYPES = (f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "▁"
_KINDS = ("gpt2", "llama", "gemma4", "rwkv", "bert", "t5")
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")
MAX_PIECE = 1 << 10
# Tokens that end a turn, as llama.cpp detects them by their spelling, too; "</s>" only where it is a control token.
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
# Purposes of tokens after which there is no more text: of a turn, a message, a file that is filled in.
ALSO_END = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
BARE = ("<unk>", "<s>", "<|endoftext|>")
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
            "penalty_repeat": "repetition_penalty"}  # fmt: skip


def write_text(f: GgufFacts, target: Path) -> Text:
    """Write the tokenizer into `target`; returns the manifest's text facts."""
    tokens, types = _vocabulary(f)
    kind = f.text("tokenizer.ggml.model", "none")
    sampling = _sampling(f)
    if kind in ("none", "no_vocab") or (kind == "llama" and SCORES not in f.file.metadata):
        return Text(tokenizer=None, bos=_id(f, "bos", tokens, None), eos=_ends(f, tokens, types), sampling=sampling)
    if kind not in _KINDS:
        raise f.fail("tokenizer.ggml.model", f"{kind!r:.40} is not supported; known: {', '.join(_KINDS)}")
    bos = _id(f, "bos", tokens, 1 if kind == "llama" else None)
    encodes = f.architecture in ENCODERS
    ends = () if encodes else _ends(f, tokens, types)
    pre = _pre(f) if kind == "gpt2" else None
    usual = pre.bos if pre else kind != "rwkv"
    processor = around(f, kind, tokens, usual) if encodes else _around(f, tokens, bos, ends, usual)
    model = _model(f, kind, tokens, types, pre)
    _write(f, target / TOKENIZER, model | {"added_tokens": _added(f, tokens, types, ends), "post_processor": processor})
    spelled = {"bos_token": "" if bos is None else tokens[bos], "eos_token": tokens[ends[0]] if ends else ""}
    template = f.text("tokenizer.chat_template", "").removeprefix("rwkv-world") or None  # a name, not a template
    settings = {key: value for key, value in {**spelled, "chat_template": template}.items() if value}
    (target / SETTINGS).write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return Text(tokenizer=TOKENIZER, bos=bos, eos=ends, chat_template=template, sampling=sampling, **spelled)


def _model(f: GgufFacts, kind: str, tokens: list[str], types: list[int], pre: PreTokenizer | None) -> dict[str, Any]:
    if pre:
        return _byte_level(f, tokens, pre)
    match kind:
        case "bert":
            return wordpiece(f, tokens, types)
        case "t5":
            return unigram(f, tokens, types, _array(f, SCORES, len(tokens), 0.0))
        case "rwkv":
            return _world(f, tokens, types)
        case _:
            return _spm(f, tokens, types)


def _vocabulary(f: GgufFacts) -> tuple[list[str], list[int]]:
    """The tokens' spellings and types; all are normal if the file has no types."""
    tokens = f.file.metadata.get(TOKENS, [])
    if not isinstance(tokens, list):
        raise f.fail(TOKENS, "must be a list of strings")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise f.fail(TOKENS, "has a token twice")
    return tokens, [int(kind) for kind in _array(f, TYPES, len(tokens), NORMAL)]


def _array(f: GgufFacts, key: str, n: int, default: float) -> Sequence[Any]:
    """A number for each token."""
    found = f.file.metadata.get(key)
    if found is None:
        return [default] * n
    if not isinstance(found, np.ndarray) or len(found) < n:
        raise f.fail(key, f"must have a number for each of {n} tokens")
    values: list[Any] = found[:n].tolist()
    return values


def _id(f: GgufFacts, name: str, tokens: list[str], default: int | None) -> int | None:
    """The token that the metadata names for a purpose; one outside the vocabulary is ignored."""
    found = f.file.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    if found is not None and type(found) is not int:
        raise f.fail(f"tokenizer.ggml.{name}_token_id", f"must be a whole number, found {found!r:.40}")
    return found if found is not None and 0 <= found < len(tokens) else None


def _ends(f: GgufFacts, tokens: list[str], types: list[int]) -> tuple[int, ...]:
    """The tokens that end a text: those named by the metadata, then those detected by their spelling."""
    default = 2 if f.text("tokenizer.ggml.model", "none") == "llama" else None
    named = [_id(f, "eos", tokens, default), *(_id(f, name, tokens, None) for name in ALSO_END)]
    ids = {token: i for i, token in enumerate(tokens)}
    spelled = [ids.get(token) for token in ENDS]
    strike = ids.get("</s>")
    if strike is not None and types[strike] == CONTROL:
        spelled.append(strike)
    return tuple(dict.fromkeys(end for end in [*named, *spelled] if end is not None))


def _sampling(f: GgufFacts) -> dict[str, float]:
    """The suggested sampling settings, if there are any."""
    found = {ours: f.file.metadata.get(f"general.sampling.{theirs}") for theirs, ours in SAMPLING.items()}
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}


def _added(f: GgufFacts, tokens: list[str], types: list[int], ends: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens that are found in a text as they are spelled; special ones are left out of decoded text.

    Those of Phi-3 strip the space after them: no file has this fact, and llama.cpp, too, decides by the model's name.
    """
    strips = "phi-3" in f.text("general.name", "").lower().replace("phi3", "phi-3")
    plain = {"single_word": False, "lstrip": False, "normalized": False}
    kinds = {i: kind in (CONTROL, UNKNOWN) for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN, USER_DEFINED)}
    kinds |= dict.fromkeys(ends, True)
    return [
        {"id": i, "content": tokens[i], **plain, "rstrip": strips and tokens[i] not in BARE, "special": special}
        for i, special in sorted(kinds.items())
    ]


def _around(
    f: GgufFacts, tokens: list[str], bos: int | None, ends: Sequence[int], usual: bool
) -> dict[str, Any] | None:
    """The post-processor: BOS before a text and EOS after it if the file requests them."""
    first = bos if f.file.metadata.get("tokenizer.ggml.add_bos_token", usual) is True else None
    last = ends[0] if ends and f.file.metadata.get("tokenizer.ggml.add_eos_token", False) is True else None
    if first is None and last is None:
        return None
    special = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in (first, last) if i is not None}

    def pieces(names: Sequence[str]) -> list[dict[str, Any]]:
        before = [] if first is None else [{"SpecialToken": {"id": tokens[first], "type_id": 0}}]
        after = [] if last is None else [{"SpecialToken": {"id": tokens[last], "type_id": 0}}]
        return [*before, *({"Sequence": {"id": name, "type_id": 0}} for name in names), *after]

    return {"type": "TemplateProcessing", "single": pieces("A"), "pair": pieces("AB"), "special_tokens": special}


def _pre(f: GgufFacts) -> PreTokenizer:
    name = f.text("tokenizer.ggml.pre", "default")
    if name not in KNOWN:
        raise f.fail("tokenizer.ggml.pre", f"{name!r:.40} is not supported; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def _byte_level(f: GgufFacts, tokens: list[str], pre: PreTokenizer) -> dict[str, Any]:
    """A vocabulary over bytes, spelled in GPT-2's alphabet, with its merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    cuts = [{"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False} for cut in pre.cuts]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
        "decoder": byte_level,
        "model": _bpe(tokens, _merges(f), ignore_merges=pre.whole),
    }


def _world(f: GgufFacts, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """RWKV's vocabulary: strings of bytes, those that are not seen as \\n, \\x00 .."""
    raw = {_unescaped(token): i for i, token in enumerate(tokens) if types[i] == NORMAL}
    if missing := [byte for byte in range(256) if bytes([byte]) not in raw]:
        raise f.fail(TOKENS, f"has no token for byte {missing[0]}, so that not every text can be cut")
    return pipeline(raw, {token: i for i, token in enumerate(tokens) if types[i] != NORMAL})


def _unescaped(token: str) -> bytes:
    one = {"n": b"\n", "t": b"\t", "r": b"\r"}
    parts = _ESCAPE.split(token)
    codes = [bytes([int(code[1:], 16)]) if len(code) == 3 else one.get(code, code.encode()) for code in parts[1::2]]
    return b"".join(part.encode() + code for part, code in zip(parts[::2], [*codes, b""], strict=True))


def _merges(f: GgufFacts) -> list[tuple[str, str]]:
    merges = f.file.metadata.get(MERGES)
    if not isinstance(merges, list):
        raise f.fail(MERGES, "must be a list of strings")
    pairs = [merge[0] + merge[1:].partition(" ")[0] if merge else "" for merge in merges]
    return [(left, merge[len(left) + 1 :]) for left, merge in zip(pairs, merges, strict=True)]


def _spm(f: GgufFacts, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """A SentencePiece vocabulary: two neighbours become one token where there is one, the best scored first; Gemma 4's
    has merges in its file."""
    prefix = f.file.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    bytewise = BYTE in types
    unknown, gemma = _id(f, "unknown", tokens, 0), f.text("tokenizer.ggml.model") == "gemma4"
    merges = _merges(f) if gemma else merges_of(tokens, types, _array(f, SCORES, len(tokens), 0.0))
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if prefix else []), spaces],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [*decoders, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else [])],
        },
        "model": _bpe(
            tokens,
            merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=bytewise,
        ),
    }


def merges_of(tokens: list[str], types: list[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary stands for: each split of a token into two, those of the best scored first.

    >>> merges_of(["a", "b", "ab", "c", "abc"], [1] * 5, [-3, -4, -2, -5, -1])
    [('ab', 'c'), ('a', 'b')]
    """
    pieces = {token: i for i, token in enumerate(tokens) if types[i] in (NORMAL, USER_DEFINED)}
    found: list[tuple[tuple[float, int], str, str]] = []
    for token, i in pieces.items():
        if types[i] != NORMAL or len(token) > MAX_PIECE:
            continue
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        splits = [(left, right) for left, right in splits if left in pieces and right in pieces]
        splits.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
        found += [((-scores[i], _late(token)), *pair) for pair in splits]
    found.sort(key=lambda item: item[0])
    return [(left, right) for _, left, right in found]


def _late(token: str) -> int:
    """The order of merges of equal score, which runs of spaces often have: runs of a power of two first. A long run
    then becomes the longest token and a rest, as in SentencePiece, which merges the leftmost pair first."""
    n = len(token)
    return n if set(token) == {SPACE} and n & (n - 1) else 0


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    usual = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    vocab = {token: i for i, token in enumerate(tokens)}
    return usual | settings | {"vocab": vocab, "merges": merges}


def _write(f: GgufFacts, path: Path, tokenizer: dict[str, Any]) -> None:
    """Write the tokenizer.json after a test that the tokenizers library can load it."""
    whole = {"version": "1.0", "truncation": None, "padding": None, **tokenizer}
    path.write_text(json.dumps(whole, ensure_ascii=False), "utf-8")
    try:
        Tokenizer.load(path)
    except TextError as error:
        why = str(error).rpartition("tokenizer.json: ")[2]
        raise CheckpointError(f"{f.file.path}: its vocabulary is not one that can be used: {why:.200}") from None
