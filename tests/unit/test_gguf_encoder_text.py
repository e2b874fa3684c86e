"""WordPiece and Unigram vocabularies of GGUF files: tokens as BERT's own tokenizer and llama.cpp cut them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_encoders as files
import llama_cpp_process
import pytest
from encoder_checkpoints import tokenizer as berts_own

from edgedec.errors import CheckpointError
from edgedec.export.opening import open_source
from edgedec.text.tokenizer import Tokenizer

TEXTS = [
    *("the cat sat.", "The  CATs, dogs!", "the Ａ cat", "x Ａb", "catsat zz the", "héllo ÀB", "the [MASK] cat"),
    *("日本 the", "query: who sat on the mat?", ""),
]


def written(name: str, folder: Path, said: dict[str, Any]) -> tuple[Path, Tokenizer]:
    """A file, and the tokenizer that is made of it."""
    path = files.write(name, folder, said).path
    text = open_source(path).copy_text(folder)
    assert text.eos == ()  # an encoder generates no text
    return path, Tokenizer.load(folder / "tokenizer.json")


def ids(tokenizer: Tokenizer, first: str, second: str | None = None) -> tuple[list[int], list[int]]:
    return tokenizer.encode_pair(first, second, None)


def test_words_are_cut_as_bert_cuts_them(tmp_path: Path) -> None:
    _, ours = written("bert", tmp_path, files.vocabulary())
    own = Tokenizer.load(berts_own(tmp_path / "own.json", files.NAMES))
    for text in TEXTS:
        assert ids(ours, text) == ids(own, text), text
    assert ids(ours, "the cat", "sat on") == ids(own, "the cat", "sat on")
    assert set(ids(ours, "the cat", "sat")[1]) == {0, 1}
    assert len({token for text in TEXTS for token in ids(ours, text)[0]}) > 15


@pytest.mark.parametrize("name", ["bert", "xlm-roberta-score"])
def test_texts_are_cut_as_llama_cpp_cuts_them(name: str, tmp_path: Path) -> None:
    path, ours = written(name, tmp_path, files.vocabulary() if name == "bert" else files.pieces())
    theirs = llama_cpp_process.asked("tokens", path, TEXTS)
    assert {text: ids(ours, text)[0] for text in TEXTS} == dict(zip(TEXTS, theirs, strict=True))


def test_a_vocabulary_with_capitals_is_of_cased_text(tmp_path: Path) -> None:
    words = [*files.NAMES[:-1], "Cat"]
    said = files.vocabulary(words)
    assert ids(written("bert", tmp_path / "a", said)[1], "Cat cat")[0] == [2, 100, words.index("cat"), 3]
    lower = said | {"tokenizer.ggml.normalizer.lowercase": True}
    assert ids(written("bert", tmp_path / "b", lower)[1], "Cat cat")[0] == [2, *[words.index("cat")] * 2, 3]


def test_brackets_of_older_files_are_words_as_they_are(tmp_path: Path) -> None:
    said = files.vocabulary([*files.NAMES[:-1], "[unused1]"])
    said["tokenizer.ggml.tokens"][-1] = "[unused1]"
    _, ours = written("bert", tmp_path, said)
    assert ours.spellings(101)[-1] == "[unused1]"


def test_facts_of_pieces_count(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"tokenizer.ggml.add_space_prefix": False},
        {"tokenizer.ggml.precompiled_charsmap": None},
        {"tokenizer.ggml.add_bos_token": False},
        {"tokenizer.ggml.add_eos_token": False},
        {"tokenizer.ggml.add_sep_token": False},
        {"tokenizer.ggml.unknown_token_id": 5},
        {"tokenizer.ggml.remove_extra_whitespaces": False},
    ]
    made = []
    for i, change in enumerate(({}, *changes)):
        said = {key: value for key, value in files.pieces(**change).items() if value is not None}
        ours = written("xlm-roberta-score", tmp_path / f"{i}", said)[1]
        made.append([ids(ours, "the  Ａ cat 日", "cat"), ids(ours, "cat")])
    assert made[0][0][0][:2] == [0, 4]
    assert made[0][0][0].count(2) == 3  # of a pair, "</s></s>" between
    assert all(found != made[0] for found in made[1:])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer.ggml.unknown_token_id": 101}, "unknown_token_id must be one of 101 tokens, found 101"),
    ({"tokenizer.ggml.cls_token_id": 999}, "cls_token_id must be one of 101 tokens, found 999"),
    ({"tokenizer.ggml.normalizer.lowercase": 1}, "normalizer.lowercase must be true or false, found 1"),
    (
        {"tokenizer.ggml.tokens": [*(f"▁w{i}" for i in range(99)), "▁##s", "s"]},
        "has a token twice once its words begin",
    ),
    ({"tokenizer.ggml.model": "plamo2"}, "'plamo2' is not supported; known: gpt2, llama, gemma4, rwkv, bert, t5"),
]


@pytest.mark.parametrize(("change", "why"), WRONG)
def test_vocabularies_that_cannot_be_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = files.write("bert", tmp_path, files.vocabulary() | change).path
    with pytest.raises(CheckpointError, match=why) as caught:
        open_source(path).copy_text(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_charsmap_that_is_no_list_of_bytes_is_refused(tmp_path: Path) -> None:
    path = files.write("xlm-roberta-score", tmp_path, files.pieces(**{"tokenizer.ggml.precompiled_charsmap": 7})).path
    with pytest.raises(CheckpointError, match="precompiled_charsmap must be a list of bytes"):
        open_source(path).copy_text(tmp_path)
