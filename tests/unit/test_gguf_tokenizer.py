"""The vocabulary of a GGUF file reads text as llama.cpp does; `golden/gguf_tokens.json` is what llama.cpp said.

`python tests/unit/test_gguf_tokenizer.py` makes it anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import vocabularies
from vocabularies import SPECIAL, TEXTS, byte_level, ids_by_llama_cpp, rwkv, sentencepiece

from edgedec.bundle.manifest import Text
from edgedec.errors import CheckpointError
from edgedec.export.gguf.file import GgufFile
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.pretokenizers import KNOWN
from edgedec.export.gguf.tokenizer import ENDS, merges_of, write_text
from edgedec.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf_tokens.json"
# One name of each way to cut.
ALL_WAYS = list({pre: name for name, pre in reversed(KNOWN.items())}.values())
# Ling's and LLaDA's are held to the expression of their tokenizer.json, of which llama.cpp's is a copy; Kimi's to that
# of its code, which llama.cpp does not follow where a capital comes after a small letter.
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_BIG, _SMALL = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case in ("Lu}\\p{Lt", "Ll"))
_AFTER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI = (
    rf"(?V1)[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_BIG}*{_SMALL}+{_AFTER}|[^\r\n\p{{L}}\p{{N}}]?{_BIG}+{_SMALL}*{_AFTER}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COPIED = {"bailingmoe": _BAILING, "kimi-k2": _KIMI}
WAYS = [way for way in ALL_WAYS if way not in COPIED]

# Where llama.cpp's expressions fall short of the originals, which we have: it takes a combining mark for no letter.
OURS = {"gpt-4o": "\u0301", "tekken": "\u0301"}


def opened(path: Path) -> tuple[Text, Tokenizer]:
    text = write_text(GgufFacts(GgufFile.open(path)), path.parent)
    return text, Tokenizer.load(path.parent / "tokenizer.json")


def vocabulary(way: str, path: Path) -> Path:
    return sentencepiece(path) if way == "spm" else byte_level(path, way)


def ids(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("way", ["spm", *WAYS])
def test_text_is_read_as_llama_cpp_reads_it(way: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert golden["texts"] == TEXTS
    found = ids(opened(vocabulary(way, tmp_path / "v.gguf"))[1])
    differ = {t: b for t, a, b in zip(TEXTS, golden[way], found) if a != b}
    assert [text for text in differ if OURS.get(way, "\0") not in text] == []
    assert bool(differ) == (way in OURS)


@pytest.mark.parametrize("way", COPIED)
def test_a_copied_expression_cuts_as_the_original(way: str) -> None:
    regex = pytest.importorskip("regex", reason="the original expression is that of the package regex")
    from tokenizers import Regex, pre_tokenizers

    assert way in ALL_WAYS
    (cut,) = KNOWN[way].cuts
    ours = pre_tokenizers.Split(Regex(cut), "isolated")
    for text in [*TEXTS, "Hello, world's 123\n\n  it'LL go\r\n x!!!\n y  ", "aB世界。Ñañ世x 12345/\n"]:
        assert [piece for piece, _ in ours.pre_tokenize_str(text)] == regex.findall(COPIED[way], text)


def test_the_ways_differ() -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert len({json.dumps(golden[way]) for way in WAYS}) == len(WAYS) > 10


@pytest.mark.parametrize("way", ["spm", "llama3"])
def test_the_goldens_are_llama_cpps(way: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert ids_by_llama_cpp(vocabulary(way, tmp_path / "v.gguf")) == golden[way]


@pytest.mark.parametrize("way", ["spm", "qwen2"])
def test_text_comes_back(way: str, tmp_path: Path) -> None:
    _, tokenizer = opened(vocabulary(way, tmp_path / "v.gguf"))
    plain = [text for text in TEXTS if "<" not in text and "▁" not in text]
    assert len(plain) > 25
    assert [tokenizer.decode(tokenizer.encode(text)) for text in plain] == plain


def test_what_a_manifest_says_of_the_text(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "tokenizer.chat_template": "{{ messages }}",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 7,
    }
    text, tokenizer = opened(byte_level(tmp_path / "v.gguf", "llama-bpe", **facts))
    assert (text.bos, text.bos_token, text.eos, text.eos_token) == (1, "<s>", (3, 5, 2), "<|end|>")
    assert text.chat_template == "{{ messages }}"
    assert text.sampling == {"temperature": 0.5, "top_k": 7.0}
    assert tokenizer.encode("a<|user|>")[0] == 1
    assert tokenizer.encode("<s>", special=False, around=False) != [1]
    assert tokenizer.hidden == set(range(len(SPECIAL)))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert settings["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(("flag", "first", "last"), [("add_bos_token", False, False), ("add_eos_token", True, True)])
def test_files_say_what_goes_around_a_text(flag: str, first: bool, last: bool, tmp_path: Path) -> None:
    key = f"tokenizer.ggml.{flag}"
    _, tokenizer = opened(sentencepiece(tmp_path / "v.gguf", **{key: flag == "add_eos_token"}))
    found = tokenizer.encode("Hello")
    assert (found[0] == 1, found[-1] == 2) == (first, last)


def test_texts_end_where_llama_cpp_ends_them(tmp_path: Path) -> None:
    """By the spelling of a token, and by what the metadata calls it."""
    for name in (*ENDS, "<PAD>x", "<|fim_middle|>", "<pad>", "<|im_start|>"):
        for kind in (vocabularies.CONTROL, vocabularies.NORMAL):
            path = vocabularies.ends(tmp_path / "v.gguf", name, kind)
            assert set(opened(path)[0].eos) == vocabularies.ends_by_llama_cpp(path), name
    for purpose in ("eot", "eom", "fim_pad", "fim_rep", "fim_sep", "fim_mid", "pad"):
        path = vocabularies.ends(tmp_path / "v.gguf", "<x>", **{f"tokenizer.ggml.{purpose}_token_id": 40})
        found = set(opened(path)[0].eos)
        assert (40 in found) == (purpose not in ("fim_mid", "pad"))
        assert found == vocabularies.ends_by_llama_cpp(path), purpose


def test_no_space_goes_before_a_text_where_the_file_says_so(tmp_path: Path) -> None:
    path = sentencepiece(tmp_path / "v.gguf", **{"tokenizer.ggml.add_space_prefix": False})
    _, tokenizer = opened(path)
    assert tokenizer.token(tokenizer.encode("Hello")[1]) == "Hello"
    assert tokenizer.decode(tokenizer.encode(" Hello")) == " Hello"
    assert ids(tokenizer) == ids_by_llama_cpp(path)


def test_phi_3_takes_the_space_after_a_token_along(tmp_path: Path) -> None:
    path = sentencepiece(tmp_path / "v.gguf", **{"general.name": "Phi-3 mini"})
    _, tokenizer = opened(path)
    assert ids(tokenizer) == ids_by_llama_cpp(path)
    assert tokenizer.encode("<|user|> \n Hello") == tokenizer.encode("<|user|>Hello")


def test_gemma_4_has_merges_over_characters(tmp_path: Path) -> None:
    """And no space is put before a text. llama.cpp leaves out characters that no token is, and has newlines apart."""
    kept = GgufFile.open(sentencepiece(tmp_path / "v.gguf")).metadata
    merges = merges_of(*(kept[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores")))
    own = {"tokenizer.ggml.merges": [" ".join(pair) for pair in merges], "tokenizer.ggml.add_space_prefix": False}
    path = sentencepiece(tmp_path / "v.gguf", "gemma4", **own)
    _, tokenizer = opened(path)
    plain = [text for text in TEXTS if text.isascii() and "\n" not in text]
    assert len(plain) > 20
    assert [tokenizer.encode(text) for text in plain] == ids_by_llama_cpp(path, plain)
    assert tokenizer.token(tokenizer.encode("Hello world")[1]) == "Hello"


def test_rwkv_has_the_longest_tokens(tmp_path: Path) -> None:
    """Spelled as Python spells bytes, a token of no text before them."""
    raw = [bytes([byte]) for byte in range(256)] + ["Hello", "He", "lo w", "\n\n", "é", "世界", "it's", "\\x", " \t"]
    spelled = [repr(token if isinstance(token, bytes) else token.encode())[2:-1] for token in raw]
    path = rwkv(tmp_path / "v.gguf", ["<s>", *spelled, "[PAD0]"])
    _, tokenizer = opened(path)
    assert [tokenizer.encode(text, around=False) for text in PLAIN] == ids_by_llama_cpp(path, PLAIN)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in PLAIN] == PLAIN


def test_merges_follow_the_scores() -> None:
    tokens, scores = ["a", "b", "ab", "ba", "aba"], [-9.0, -8.0, -2.0, -1.0, -3.0]
    assert merges_of(tokens, [1] * 5, scores) == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]


PLAIN = [text for text in TEXTS if "<" not in text and "[" not in text]
WRONG: list[tuple[str, Any, str]] = [
    ("tokenizer.ggml.model", "plamo2", "'plamo2' is not supported; known: gpt2, llama, gemma4, rwkv"),
    ("tokenizer.ggml.model", 7, "must be a string"),
    ("tokenizer.ggml.pre", "superbpe", "'superbpe' is not supported; known: llama3"),
    ("tokenizer.ggml.tokens", "a", "must be a list of strings"),
    ("tokenizer.ggml.tokens", ["a", "a"], "has a token twice"),
    ("tokenizer.ggml.token_type", [1], "must have a number for each of"),
    ("tokenizer.ggml.merges", ["a"], "is not one that can be used"),
    ("tokenizer.ggml.merges", ["zzz yyy"], "is not one that can be used"),
    ("tokenizer.ggml.merges", 3, "must be a list of strings"),
    ("tokenizer.ggml.eos_token_id", "x", "must be a whole number"),
    ("tokenizer.chat_template", 1, "must be a string"),
]


@pytest.mark.parametrize(("key", "value", "why"), WRONG)
def test_vocabularies_that_cannot_be_are_refused(key: str, value: Any, why: str, tmp_path: Path) -> None:
    file = GgufFile.open(byte_level(tmp_path / "v.gguf", "gpt-2"))
    file.metadata[key] = np.array(value) if key.endswith("token_type") else value
    with pytest.raises(CheckpointError, match=why) as caught:
        write_text(GgufFacts(file), tmp_path)
    assert "\n" not in str(caught.value)


def make() -> None:
    """Write the goldens; needs llama.cpp."""
    path = GOLDEN.parent / "v.gguf"
    found = {way: ids_by_llama_cpp(vocabulary(way, path)) for way in ("spm", *WAYS)}
    path.unlink()
    GOLDEN.write_text(json.dumps({"texts": TEXTS, **found}, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    make()
