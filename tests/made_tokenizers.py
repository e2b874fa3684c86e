"""Small tokenizers of every family, trained when a test wants them, and big ones where they are at hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edgedec.text.tokenizer import Tokenizer

REAL = Path(__file__).parents[2] / "shared" / "data" / "tokenizers"
CORPUS = [
    "the cat sat on the mat",
    "  two  spaces, a\ttab\nand a line",
    "été ça va",
    "日本語のテキスト",
    "naïve 🙂 ok",
] * 4
NAMES = ["bytes", "metaspace", "fallback", "unigram", "words", "gpt2", "phi3"]


@cache
def tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name, small ones trained here; the big ones where they are at hand."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        raw_tokenizer(name).save(str(path))
        return Tokenizer.load(path)


def raw_tokenizer(name: str):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    if name == "phi3":
        return Raw.from_file(str(_real("phi-3-mini", "tokenizer.json")))
    if name in ("bytes", "gpt2"):
        raw = Raw(models.BPE())
        if name == "gpt2":
            raw = Raw(models.BPE.from_file(*(str(_real("gpt2", f)) for f in ("vocab.json", "merges.txt"))))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        if name == "bytes":
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
            raw.train_from_iterator(CORPUS, trainer)
        raw.add_special_tokens(["<|end|>"])
        return raw
    if name == "words":
        raw = Raw(models.WordPiece(unk_token="[UNK]"))
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
        raw.train_from_iterator(CORPUS, trainers.WordPieceTrainer(special_tokens=["[UNK]"], show_progress=False))
        return raw
    special = ["<unk>", "<s>", "</s>"]
    if name == "unigram":
        raw = Raw(models.Unigram())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False)
        raw.train_from_iterator(CORPUS, trainer)
        return raw
    special += [f"<0x{b:02X}>" for b in range(256)] if name == "fallback" else []
    raw = Raw(models.BPE(unk_token="<unk>", byte_fallback=name == "fallback", fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    words = ["the cat sat on the mat", "a tab and a line"] * 4 if name == "fallback" else CORPUS
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special[:3], show_progress=False)
    raw.train_from_iterator(words, trainer)
    if name == "fallback":  # byte tokens are ordinary tokens of the model
        state = json.loads(raw.to_str())
        n = len(state["model"]["vocab"])
        state["model"]["vocab"] |= {f"<0x{b:02X}>": n + b for b in range(256)}
        raw = Raw.from_str(json.dumps(state))
    return raw


def _real(*parts: str) -> Path:
    path = REAL.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"no {'/'.join(parts)} in shared/data/tokenizers")
    return path
