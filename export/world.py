"""The vocabulary "World" of RWKV as a tokenizer.json. Its tokens are strings of bytes, and a text is cut from its start
into the longest that there are (github.com/BlinkDL/RWKV-LM; rwkv_vocab_v20230424.txt has a line for each, such as
`261 '\\n\\n' 2`).

One regular expression makes the same cuts: the trie of all tokens, where a token that begins others is what remains if
none of these follows. Matching never repeats a part, and every byte alone is a token.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import CheckpointError

END = "<|rwkv_tokenizer_end_of_text|>"
_FILES = "rwkv_vocab_*.txt"
_LINE = re.compile(r"(0|[1-9]\d*) (b?['\"].*['\"]) (\d+)")
Trie = dict[str, Any]  # of a character the tries after it; of "" whether a token ends here


def vocabulary_of(folder: Path) -> Path | None:
    """The file of such a vocabulary in a checkpoint."""
    return next(iter(sorted(folder.glob(_FILES))), None)


def write_world(path: Path, target: Path, end: str = "") -> None:
    """Write the tokenizer.json for a vocabulary. end: the spelling of token 0, which ends a text."""
    added = {
        "id": 0,
        "content": end or END,
        "special": True,
        **dict.fromkeys(("single_word", "lstrip", "rstrip"), False),
    }
    content = pipeline(_read(path), {end or END: 0}) | {"added_tokens": [added | {"normalized": False}]}
    target.write_text(json.dumps(content | {"version": "1.0"}, ensure_ascii=False), "utf-8")


def pipeline(numbers: Mapping[bytes, int], others: Mapping[str, int]) -> dict[str, Any]:
    """The parts of a tokenizer.json for such tokens. others: that no text is cut into."""
    tokens = {number: _spelled(token) for token, number in numbers.items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": expression(tokens.values())}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "ignore_merges": True, "merges": [], "byte_fallback": False, "fuse_unk": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [byte_level, cut]},
        "decoder": byte_level,
        "model": model | {"vocab": {**others} | {token: number for number, token in tokens.items()}},
    }


def _read(path: Path) -> dict[bytes, int]:
    """The tokens and their numbers."""
    found, numbers = dict[bytes, int](), {"0"}
    for at, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if not line:
            continue
        fields = _LINE.fullmatch(line)
        try:
            token = ast.literal_eval(fields[2]) if fields else b""
        except (SyntaxError, ValueError):
            token = b""
        token = token.encode("utf-8") if isinstance(token, str) else token
        if not fields or not token or len(token) != int(fields[3]):
            raise CheckpointError(f"{path}: line {at} is not a number, a string and its length in bytes: {line!r:.80}")
        if token in found or fields[1] in numbers:
            raise CheckpointError(f"{path}: line {at} has token {token!r:.40} or number {fields[1]} a second time")
        numbers.add(fields[1])
        found[token] = int(fields[1])
    if missing := [byte for byte in range(256) if bytes([byte]) not in found]:
        raise CheckpointError(f"{path}: byte {missing[0]} is no token, so that not every text can be cut")
    return found


def _alphabet() -> dict[int, str]:
    """A character for every byte, as GPT-2 has them: those that are seen stand for themselves."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in seen)
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _spelled(token: bytes) -> str:
    return "".join(_ALPHABET[byte] for byte in token)


def expression(tokens: Any) -> str:
    """The expression that matches the longest token at the start of a text.

    >>> expression(["a", "ab", "abcd", "b"])
    '(?:a(?:b(?:cd)?)?|b)'
    """
    trie: Trie = {}
    for token in tokens:
        place = trie
        for character in token:
            place = place.setdefault(character, {})
        place[""] = {}
    return _after(trie)


def _after(trie: Trie) -> str:
    """What may follow; tokens are at most some hundred bytes long, and so are the nested calls."""
    inner = {c: rest for c, rest in trie.items() if c}
    last = [c for c, rest in inner.items() if set(rest) == {""}]
    ways = [re.escape(c) + _after(rest) for c, rest in inner.items() if c not in last]
    ways += [re.escape(last[0])] if len(last) == 1 else [_any(last)] if last else []
    if not ways:
        return ""
    if "" in trie:
        return f"(?:{'|'.join(ways)})?"
    return f"(?:{'|'.join(ways)})" if len(ways) > 1 else ways[0]


def _any(characters: list[str]) -> str:
    return "[" + "".join(f"\\{c}" if c in r"[]\^-&" else c for c in characters) + "]"
