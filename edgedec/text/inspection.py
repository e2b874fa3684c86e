"""The check that a tokenizer.json is safe to load: an untrusted file may hang, panic or abort the library that reads
it.

It is inspected first: sizes, nesting, and the growth of a text by its parts. Then, once for each file, it is tested in
a worker process with limits of time and memory; the success is recorded in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from edgedec.errors import LimitExceeded, TextError
from edgedec.sandbox import GuestLimits, Sandbox, enabled
from edgedec.storage.files import cache_folder
from edgedec.text import _tokenizer_guest as guest

LARGEST_FILE = 128 << 20
LARGEST_ID = 1 << 24
LONGEST_TOKEN, LONGEST_TEXT, LARGEST_MAP = 1 << 13, 1 << 13, 8 << 20
MOST_PARTS, DEEPEST = 256, 8
# Of an expression without repetitions, such as the trie of all tokens: characters, sets of them, groups, alternatives.
LONGEST_TRIE = 1 << 20
_TRIE = re.compile(r"(?:\\[^\w]|\(\?:|\)\??|\||\[(?:\\[^\w]|[^\[\]\\^&-])+\]|[^\\()\[\]{}?*+.^$|])*+")
# The largest growth of a text by all replacements of a chain, and the longest prepended text.
MOST_GROWTH, LONGEST_PREPEND = 64, 256
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
_LIMITS = GuestLimits(seconds=20.0, memory=1536, patience=200.0, yields=False)


def check(path: Path) -> None:
    """TextError if the file cannot be trusted to load."""
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise TextError(f"{path}: {size:,} bytes; a tokenizer.json of at most {LARGEST_FILE:,} is read")
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if digest in _passed():
        return
    import tokenizers

    seen = cache_folder() / "tokenizers" / f"{digest}.{tokenizers.__version__}.v1"
    if not seen.is_file():
        try:
            inspect(json.loads(raw))
            if enabled():
                _try_out(raw)
                _note(seen)
        except RecursionError:
            raise TextError(f"{path}: not a tokenizer.json: is nested too deeply") from None
        except ValueError as error:
            raise TextError(f"{path}: not a tokenizer.json: {error}") from None
    _passed().add(digest)


def inspect(content: Any) -> None:
    """ValueError names what is beyond what tokenizers in practice have."""
    if not isinstance(content, dict):
        raise ValueError("is no object")
    for name in _PARTS:
        parts = list(_parts(content.get(name), name, 0))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"{name}: {len(parts)} parts; at most {MOST_PARTS} are allowed")
        growth = 1.0
        for part in parts:
            _check_strings(part, f"{name} {part.get('type')}")
            growth *= _growth(part)
            if growth > MOST_GROWTH:
                raise ValueError(f"{name} {part.get('type')}: makes a text more than {MOST_GROWTH} times longer")
    _check_tokens(content)


def _parts(part: Any, name: str, depth: int) -> Iterator[dict[str, Any]]:
    """A part of the pipeline, and those that it is a sequence of."""
    if depth > DEEPEST:
        raise ValueError(f"{name}: sequences are nested more than {DEEPEST} deep")
    if not isinstance(part, dict):
        return
    yield {key: value for key, value in part.items() if key not in _LISTS}
    for key in _LISTS:
        for inner in part.get(key) or () if isinstance(part.get(key), list) else ():
            yield from _parts(inner, name, depth + 1)


def _check_strings(part: Any, where: str, key: str = "", depth: int = 0) -> None:
    if depth > DEEPEST:
        raise ValueError(f"{where}: is nested too deeply")
    if isinstance(part, str):
        longest = LARGEST_MAP if key == "precompiled_charsmap" else LONGEST_TEXT
        if key == "Regex" and len(part) <= LONGEST_TRIE and _TRIE.fullmatch(part):
            return
        if len(part) > longest:
            raise ValueError(f"{where}: {key or 'text'} of {len(part):,} characters; at most {longest:,} are allowed")
    elif isinstance(part, Mapping):
        for name, value in part.items():
            _check_strings(value, where, str(name), depth + 1)
    elif isinstance(part, list):
        if len(part) > LONGEST_TEXT:
            raise ValueError(f"{where}: {key} has {len(part):,} items; at most {LONGEST_TEXT:,} are allowed")
        for value in part:
            _check_strings(value, where, key, depth + 1)


def _growth(part: Mapping[str, Any]) -> float:
    """The factor by which it may lengthen a text."""
    kind = part.get("type")
    if kind == "Prepend" and len(str(part.get("prepend", "")).encode("utf-8", "replace")) > LONGEST_PREPEND:
        raise ValueError(f"normalizer Prepend: more than {LONGEST_PREPEND} bytes")
    if kind != "Replace":
        return 1.0
    content = len(str(part.get("content", "")).encode("utf-8", "replace"))
    pattern = part.get("pattern")
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(plain, str):
        if not plain:
            raise ValueError("Replace: of nothing")
        return max(1.0, content / len(plain.encode("utf-8", "replace")))
    return max(1.0, content + (1.0 if content > 4 else 0.0))  # a pattern may match between any two characters


def _check_tokens(content: Mapping[str, Any]) -> None:
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        spelt = vocab.items()
    elif isinstance(vocab, list):
        spelt = {str(v[0]): i for i, v in enumerate(vocab) if isinstance(v, list) and v}.items()
    else:
        spelt = {}.items()
    added = content.get("added_tokens") or []
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            _check_token(str(token.get("content")), token.get("id"))
    for text, number in spelt:
        _check_token(text, number)


def _check_token(text: str, number: Any) -> None:
    if len(text) > LONGEST_TOKEN:
        raise ValueError(f"token {number}: {len(text):,} characters; at most {LONGEST_TOKEN:,} are allowed")
    if not isinstance(number, int) or not 0 <= number < LARGEST_ID:
        raise ValueError(f"token {text[:40]!r}: number {str(number)[:40]}; must be from 0 to {LARGEST_ID - 1:,}")


def _try_out(raw: bytes) -> None:
    worker = _sandbox().worker()
    try:
        reply = worker.call(raw)
    except LimitExceeded as error:
        raise ValueError(f"trying it out {error}") from None
    finally:
        worker.close()
    if reply.error:
        raise ValueError(reply.error)


def _note(seen: Path) -> None:
    """Record a successful test; if the cache folder is not writable, the test is repeated next time."""
    try:
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.touch()
    except OSError:
        pass


@cache
def _passed() -> set[str]:
    return set()


@cache
def _sandbox() -> Sandbox:
    return Sandbox(Path(guest.__file__), limits=_LIMITS)
