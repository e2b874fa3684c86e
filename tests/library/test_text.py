"""Text in libedgedec: the tokens and the text of the `tokenizers` library, and Python's stream of pieces."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clibrary import c, opened
from tokenizers import Tokenizer as Raw

import edgedec
from edgedec.text.stream import TextStream
from edgedec.text.tokenizer import Tokenizer

SPECIAL, AROUND = c.SPECIAL, c.AROUND
PARTS = (
    "a|b|the| |  |\n|\r\n|é|e\u0301|ä|日本|한국어|1|23|½|①|'s|'LL|ſ|'ſ|!|?!|...|\t|\u00a0|\u3000|🙂|👩‍👩‍👧|<|endoftext|>|<s>|</s>|<|assistant|>"
    "| Once upon|▁|\u0000|Ｋ|\u212a|ǅ|\u0308|\u0323\u0307|ạ̈|\u212b|\u1112\u1161\u11ab|가|\ufeff|xxxxxxxxxxxxxxxxxxxx|http://a.b/c?d=e"
    "|def f(x):\n    return x|A|Ω|ﬁ|<0xE2>|İ|ß|１２|<think>"
).split("|")
ALPHABET = [*PARTS, "<|endoftext|>", "<|assistant|>"]
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _ENDS
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _ENDS
)
_CHINESE = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _ENDS,
)
_MARK = "▁"


def _split(*patterns: str) -> dict[str, Any]:
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTES]}}


# As the vocabularies of these families are set up: (vocabulary, what differs).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "nano": ("nano", {}),
    "gpt2": ("gpt2", {}),
    "qwen": ("gpt2", {"normalizer": {"type": "NFC"}} | _split(_WORDS.replace("{1,3}", ""))),
    "llama3": ("gpt2", _split(_WORDS)),
    "o200k": ("gpt2", _split(_CASED)),
    "deepseek": ("gpt2", _split(*_CHINESE)),
    "smollm": ("gpt2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, _BYTES | {"use_regex": True}]}}),
    "prefix": ("gpt2", {"pre_tokenizer": _BYTES | {"add_prefix_space": True, "use_regex": True}}),
    "phi3": ("phi", {}),
    "gemma": ("phi", {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _MARK},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": _MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}}),
    "metaspace": ("phi", {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": "always", "split": True}}),
    "first": ("phi", {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": "first", "split": False}}),
}


def tokenizer_json(vocabulary: str, changes: dict[str, Any], nano: Path, data: Path) -> dict[str, Any]:
    """One of the real vocabularies, set up otherwise."""
    if vocabulary == "nano":
        found = json.loads((nano / "tokenizer.json").read_text("utf-8"))
    elif vocabulary == "phi":
        found = json.loads((data / "tokenizers" / "phi-3-mini" / "tokenizer.json").read_text("utf-8"))
    else:
        folder = data / "tokenizers" / "gpt2"
        merges = (folder / "merges.txt").read_text("utf-8").split("\n")[1:]
        found = {
            "version": "1.0",
            "added_tokens": [{"id": 50256, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": True, "special": True}],
            "normalizer": None,
            "pre_tokenizer": _BYTES | {"use_regex": True},
            "post_processor": _BYTES,
            "decoder": _BYTES,
            "model": {"type": "BPE", "vocab": json.loads((folder / "vocab.json").read_text("utf-8")),
                      "merges": [merge for merge in merges if merge]},
        }  # fmt: skip
    return found | changes


def bundle_with(tokenizer: dict[str, Any], nano: Path, folder: Path) -> Path:
    """nano with another tokenizer: what it says is of no interest."""
    manifest, raw = json.loads((nano / "edgedec.json").read_text()), json.dumps(tokenizer).encode()
    folder.mkdir()
    manifest["files"] = {"weights.bin": manifest["files"]["weights.bin"]} | {
        "tokenizer.json": {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    }
    manifest["artifacts"] = manifest["heads"] = manifest["drafts"] = {}
    (folder / "tokenizer.json").write_bytes(raw)
    shutil.copyfile(nano / "weights.bin", folder / "weights.bin")
    (folder / "edgedec.json").write_text(json.dumps(manifest))
    return folder


def texts(r: random.Random, n: int) -> Iterator[str]:
    for _ in range(n):
        yield "".join(r.choice(ALPHABET) for _ in range(r.randrange(14)))
        blocks = [(32, 127), (0x20, 0x800), (0x800, 0xD800), (0xE000, 0x20000)]
        yield "".join(chr(r.randrange(*r.choice(blocks))) for _ in range(r.randrange(12)))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_text_are_those_of_tokenizers(family: str, nano: Path, tmp_path: Path, request: Any) -> None:
    vocabulary, changes = FAMILIES[family]
    data = request.getfixturevalue("data") if vocabulary != "nano" else nano
    content = tokenizer_json(vocabulary, changes, nano, data)
    model, theirs = opened(bundle_with(content, nano, tmp_path / "b")), Tokenizer(Raw.from_str(json.dumps(content)))
    assert model.info.has_text, model.string(8)
    r, seen = random.Random(family), set[int]()
    for text in texts(r, 150):
        for flags, options in ((SPECIAL | AROUND, {}), (SPECIAL, {"around": False}), (0, {"special": False})):
            want = theirs.encode(text, **options)
            assert model.encode(text, flags) == want, text
            seen.update(want)
        ids = [r.randrange(theirs.vocab_size if r.random() < 0.4 else 300) for _ in range(r.randrange(12))]
        for special in (False, True):
            assert model.decode(ids, SPECIAL * special) == theirs.decode(ids, special), ids
    assert len(seen) > 200


@pytest.mark.parametrize("family", ["nano", "phi3", "gemma"])
def test_pieces_are_pythons(family: str, nano: Path, tmp_path: Path, request: Any) -> None:
    """Of random tokens, broken characters and stop strings across them; each piece and the end at the same token."""
    vocabulary, changes = FAMILIES[family]
    data = request.getfixturevalue("data") if vocabulary != "nano" else nano
    content = tokenizer_json(vocabulary, changes, nano, data)
    model, theirs = opened(bundle_with(content, nano, tmp_path / "b")), Tokenizer(Raw.from_str(json.dumps(content)))
    r, stopped = random.Random(3), 0
    # Only tokens of nano's vocabulary can be given to its model; bytes are among the first of both.
    for _ in range(60):
        prompt = [r.randrange(3, 300) for _ in range(r.randrange(1, 6))]
        options = {"temperature": 30.0, "seed": r.randrange(1000), "max_tokens": 30, "ignore_eos": 1}
        plain = model.session().generate(prompt, **options)
        whole = theirs.decode([*prompt, *plain])[len(theirs.decode(prompt)) :]
        stop = [whole[at : at + r.randrange(1, 5)] for at in [r.randrange(len(whole))]] if r.random() < 0.6 and whole else []
        pieces: list[tuple[int, str]] = []
        session = model.session()
        session.generate(
            prompt, lambda t: pieces.append((t.id, t.piece)), text=1, stop=[s for s in stop if s], **options
        )
        stream, want = TextStream(theirs, tuple(s for s in stop if s), prompt), list[tuple[int, str]]()
        ended = False
        for token in plain:
            text, ended = stream.push(token)
            want.append((token, text))
            if ended:
                break
        if not ended:
            text, ended = stream.flush()
            want += [(-1, text)] if text else []
        assert pieces == want
        assert session.finish == ("stop" if ended else "length")
        stopped += ended
    assert stopped > 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "pre-tokenizer BertPreTokenizer"),
        (_split(r"(?<=a)b"), "kind of group"),
        (_split(r"(ab)+"), "repeated group"),
        (_split(r"a\b"), "escape"),
        ({"decoder": {"type": "WordPiece"}}, "decoder WordPiece"),
        ({"decoder": None}, "no decoder"),
        ({"model": {"type": "Unigram", "vocab": []}}, "model Unigram"),
    ],
)
def test_what_is_not_known_is_named(nano: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """The bundle is opened and takes tokens; text is refused."""
    content = tokenizer_json("nano", changes, nano, nano)
    model = opened(bundle_with(content, nano, tmp_path / "b"))
    assert not model.info.has_text and words in model.string(8)
    with pytest.raises(c.EdgedecFailure, match=words) as caught:
        model.encode("a")
    assert caught.value.status == "text"
    assert model.session().generate([1, 2], max_tokens=3)


def test_costly_expressions_end(nano: Path, tmp_path: Path) -> None:
    content = tokenizer_json("nano", _split("a*" * 40 + "b"), nano, nano)
    with pytest.raises(c.EdgedecFailure, match="takes too long"):
        opened(bundle_with(content, nano, tmp_path / "b")).encode("a" * 3000)


def test_a_text_prompt_is_pythons(nano: Path) -> None:
    session, twin = opened(nano).session(), edgedec.open(nano, engine="native").session(speculate="off")
    shown: list[str] = []
    tokens = session.generate("Once upon a time", lambda t: shown.append(t.piece), text=1, max_tokens=40)
    assert "".join(shown) == "".join(twin.generate("Once upon a time", max_tokens=40))
    assert session.ids == twin.ids and len(tokens) == 40
    assert opened(nano).decode([1 << 30, -5, 5000]) == ""
    with pytest.raises(c.EdgedecFailure, match="not UTF-8"):
        opened(nano).encode(b"\xff")
