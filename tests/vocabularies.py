"""Vocabularies as GGUF files with nothing else in them, small and sensitive, and texts that are cut in every way."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ggufs
import llama_cpp_process
import numpy as np
from checkpoints import LLAMA, llama_shapes
from ggufs import add_value, finish, gguf
from zoo_golden import neutral, spread

from edgedec.export.gguf.types import BLOCK

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEXTS = [
    "Hello world", " leading", "trailing  ", "", "a\n\n\nb\t\tc", "I'm you're WE'LL it's I'Ve", "123456789 3.14 ①②",
    "héllo wörld ñ", "日本語のテキスト", "👩‍👩‍👧‍👦 emoji 🙂", "  multiple   spaces    here", "foo_bar(baz)[1]={'a':2}",
    "\r\nwin\r\n", "mixed 汉字 and русский текст", "ﬁ ligature", "\u200b\u00a0nbsp", "a" * 50, "<|end|>hi<s> there</s>",
    "<|user|> Hi<|end|>\n<|user|>", "tab\tsep", "한국어 띄어쓰기", "  \n  \n", "x" + " " * 17 + "y",
    "https://a.b/c?d=e&f=%20", "CamelCaseWordsHERE iPhone", "مرحبا بالعالم", "हिन्दी में", "ÅÄÖ Ünïcödé e\u0301",
    "$100,000.00 #tag @me", "'''\"\"\"```",
    "1 12 123 1234 12345", "def f(x):\n    return x**2  # ok\n\n\n", "a/b//c\n/d", "don't can't 'twas", "\n", " ",
    "▁under",
    "aB", "lC", "mI", "ABc", "e\u0301x", "日a", "a日", "“a”", "x…", "a\u0301\u0301",
]  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>", "<|user|>", "<|endoftext|>"]


def alphabet() -> list[str]:
    """GPT-2's spelling of the 256 bytes."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(path: Path, pre: str, **extra: Any) -> Path:
    """Bytes, and any two of the commoner ones merged: where a text is cut shows in which two are."""
    pieces = alphabet()
    common = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "Ã", "©", "ĉ", "č", "Ì", "¥", "Ŀ"]
    pairs = list(product(common, common))
    triples = [("Ġt", "h"), ("Ġth", "e"), ("12", "3"), ("123", "4"), ("..", "."), ("ĠĠ", "ĠĠ")]
    whole = ["Hello", "ĠHERE"]  # which no merges make
    tokens = [*SPECIAL, *pieces, *(a + b for a, b in [*pairs, *triples]), *whole]
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL))
    merges = [f"{a} {b}" for a, b in [*pairs, *triples]]
    facts = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}
    return _write(path, facts | {"bos_token_id": 1, "eos_token_id": 3}, extra)


def sentencepiece(path: Path, kind: str = "llama", **extra: Any) -> Path:
    """Byte tokens, letters and some words, scored as SentencePiece scores; runs of spaces come last, all alike."""
    words = [
        "he",
        "ll",
        "ello",
        "▁H",
        "▁t",
        "th",
        "he",
        "re",
        "▁w",
        "or",
        "ld",
        "▁wor",
        "▁world",
        "in",
        "ing",
        "▁a",
        "an",
    ]
    words += ["é", "ö", "▁l", "ea", "er", "▁(", "00", "12", "▁1", "ti", "pl", "ac", "es", "▁Hello", "Hello", "ñ", "語"]
    pieces = list(dict.fromkeys([*words, "▁", *(chr(c) for c in range(33, 127))]))
    # Whoever joins two pieces must find the parts: all beginnings of a word are pieces.
    pieces = list(dict.fromkeys([*pieces, *(word[:n] for word in words for n in range(1, len(word)))]))
    runs = ["▁" * n for n in range(2, 17)]
    tokens = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *pieces, *runs]
    types = [
        UNKNOWN,
        CONTROL,
        CONTROL,
        USER_DEFINED,
        USER_DEFINED,
        CONTROL,
        *[BYTE] * 256,
        *[NORMAL] * (len(pieces) + len(runs)),
    ]
    scores = [*[0.0] * (len(SPECIAL) + 256), *(-float(i) for i in range(len(pieces))), *[-1e9] * len(runs)]
    facts = {"model": kind, "pre": "default", "tokens": tokens, "token_type": types, "scores": scores}
    return _write(path, facts | {"bos_token_id": 1, "eos_token_id": 2}, extra)


def rwkv(path: Path, tokens: list[str]) -> Path:
    """The first token ends a text, the last is of none."""
    types = [CONTROL, *[NORMAL] * (len(tokens) - 2), 5]
    return _write(path, {"model": "rwkv", "tokens": tokens, "token_type": types, "eos_token_id": 0}, {})


def _write(path: Path, facts: dict[str, Any], extra: dict[str, Any]) -> Path:
    """A file that llama.cpp too opens for its vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 64, "embedding_length": BLOCK, "block_count": 1, "feed_forward_length": BLOCK}
    for key, value in (sizes | {"attention.head_count": 2, "rope.dimension_count": 16}).items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in facts.items():
        add_value(writer, f"tokenizer.ggml.{key}", value)
    for key, value in extra.items():
        add_value(writer, key, value)
    finish(writer)
    return path


def ends(path: Path, name: str, kind: int = CONTROL, **extra: Any) -> Path:
    """Letters, an end token, and one more that may be taken for one by its spelling."""
    tokens = [*alphabet()[:-1], "ab", "<zz>", name]
    types = [NORMAL] * len(alphabet()) + [CONTROL, kind]
    facts = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": ["a b"]}
    return _write(path, facts | {"eos_token_id": tokens.index("<zz>")}, extra)


def ends_by_llama_cpp(path: Path) -> set[int]:
    """The tokens after which llama.cpp generates no more."""
    return set(llama_cpp_process.asked("ends", path))


def ids_by_llama_cpp(path: Path, texts: list[str] = TEXTS) -> list[list[int]]:
    """How llama.cpp reads texts with the vocabulary of a file."""
    found: list[list[int]] = llama_cpp_process.asked("tokens", path, texts)
    return found


def tiny(path: Path, kind: str = "Q8_0", seed: int = 0) -> Path:
    """Write a random Llama over bytes."""
    tokens = [*alphabet(), "<|end|>"]
    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(tokens), "num_key_value_heads": 1, "tie_word_embeddings": False}
    config = LLAMA | sizes
    rng = np.random.default_rng(seed)
    drawn = {
        name: (neutral(name, "llama") + spread(name, shape) * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in llama_shapes(config).items()
    }
    model = ggufs.Drawn(SimpleNamespace(**config), drawn)
    facts = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["a b"], "eos_token_id": 256}
    facts["tokens"] = [*tokens[:255], "ab", tokens[256]]
    return ggufs.write(model, path, kind, **{f"tokenizer.ggml.{key}": value for key, value in facts.items()})
