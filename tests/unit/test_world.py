"""RWKV's vocabulary as a tokenizer.json cuts a text into the longest tokens, from its start."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from edgedec.errors import CheckpointError, TextError
from edgedec.export.text import copy_text
from edgedec.export.world import END, expression, write_world
from edgedec.text.inspection import LONGEST_TEXT, LONGEST_TRIE, inspect
from edgedec.text.tokenizer import Tokenizer

TEXTS = ["", "a", "Hello, world\n\n  it's ok", "\x00\t\r\n", "世界 Ünï é", "😀👩‍👩‍👧 x\u0301", "[]\\^-&(a|b)?*+.{2}$"]


def drawn(seed: int, count: int = 3000) -> list[bytes]:
    """All bytes, and tokens of up to nine characters, whose beginnings are tokens now and then only."""
    rng = random.Random(seed)
    letters = "ab c\n[]^-&|\\'\"é世😀"
    words = {"".join(rng.choices(letters, k=rng.randint(2, 9))).encode() for _ in range(count)}
    cuts = {word[: rng.randint(2, len(word))] for word in sorted(words)[::3]}
    return [bytes([byte]) for byte in range(256)] + sorted((words | cuts) - {bytes([byte]) for byte in range(256)})


def lines_of(tokens: list[bytes]) -> list[str]:
    """As the authors write them: as text where it is, as bytes where not."""
    found = []
    for i, token in enumerate(tokens, 1):
        try:
            spelled = repr(token.decode())
        except UnicodeDecodeError:
            spelled = repr(token)
        found.append(f"{i} {spelled} {len(token)}")
    return found


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "rwkv_vocab_v20230424.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def longest_first(tokens: list[bytes], text: str) -> list[int]:
    """The naive cut."""
    numbers, raw, found = {token: i for i, token in enumerate(tokens, 1)}, text.encode(), []
    at, most = 0, max(map(len, tokens))
    while at < len(raw):
        n = next(n for n in range(most, 0, -1) if raw[at : at + n] in numbers)
        found.append(numbers[raw[at : at + n]])
        at += n
    return found


def test_the_longest_token_is_taken(tmp_path: Path) -> None:
    tokens, rng = drawn(1), random.Random(2)
    write_world(written(tmp_path, lines_of(tokens)), tmp_path / "tokenizer.json")
    found = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert len(found["pre_tokenizer"]["pretokenizers"][1]["pattern"]["Regex"]) > LONGEST_TEXT
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    long = ["".join(rng.choices("ab c\n[]^-&|\\'\"é世😀x", k=400)) for _ in range(20)]
    for text in [*TEXTS, *long]:
        ids = tokenizer.encode(text)
        assert ids == longest_first(tokens, text)
        assert tokenizer.decode(ids) == text
    assert max(map(len, (tokens[i - 1] for text in long for i in tokenizer.encode(text)))) > 8


def test_a_token_that_begins_another_is_what_remains(tmp_path: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"abcdef", b"cd"]
    write_world(written(tmp_path, lines_of(tokens)), tmp_path / "tokenizer.json", "<end>")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.encode("abcdeabcdef") == [257, 259, 102, 258]
    assert tokenizer.encode("a<end>b") == [98, 0, 99]
    assert tokenizer.encode("<end>", special=False) == longest_first(tokens, "<end>")


def test_the_authors_package_cuts_as_well(tmp_path: Path) -> None:
    theirs = pytest.importorskip("rwkv.rwkv_tokenizer", reason="the authors' package is not installed")
    path = Path(theirs.__file__).with_name("rwkv_vocab_v20230424.txt")
    write_world(path, tmp_path / "tokenizer.json")
    ours, expected = Tokenizer.load(tmp_path / "tokenizer.json"), theirs.TRIE_TOKENIZER(str(path))
    for text in [*TEXTS, Path(__file__).read_text("utf-8")]:
        assert ours.encode(text) == expected.encode(text)


def test_a_checkpoint_with_the_vocabulary_alone_has_a_tokenizer(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    written(source, lines_of(drawn(3, 20)))
    found = copy_text(source, target, {"eos_token_id": 0, "bos_token_id": 0})
    assert (found.tokenizer, found.eos, found.eos_token) == ("tokenizer.json", (0,), END)
    assert Tokenizer.load(target / "tokenizer.json").encode("AB") == [66, 67]
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<over>"}), "utf-8")
    assert copy_text(source, target, {"eos_token_id": 0}).eos_token == "<over>"
    assert Tokenizer.load(target / "tokenizer.json").encode("<over>") == [0]


BYTES = lines_of([bytes([byte]) for byte in range(256)])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([*BYTES, "257 'ab' 3"], "line 257 is not a number, a string and its length in bytes: \"257 'ab' 3\""),
        ([*BYTES, "257 f'ab' 2"], "line 257 is not a number, a string"),
        ([*BYTES, "257 'a\\' 2"], "line 257 is not a number, a string"),
        ([*BYTES, "257 'a' + 'b' 2"], "line 257 is not a number, a string"),
        ([*BYTES, "257 '' 0"], "line 257 is not a number, a string"),
        ([*BYTES, "257 'a' 1"], "line 257 has token b'a' or number 257 a second time"),
        ([*BYTES, "256 'ab' 2"], "line 257 has token b'ab' or number 256 a second time"),
        (BYTES[:-1], "byte 255 is no token, so that not every text can be cut"),
        (["0 'ab' 2", *BYTES], "line 1 has token b'ab' or number 0 a second time"),
    ],
)
def test_other_files_are_refused(lines: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(why)) as caught:
        write_world(written(tmp_path, lines), tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "tokenizer.json").exists()


def split_at(pattern: str) -> dict[str, object]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}}


def test_long_expressions_are_read_without_repetitions_only() -> None:
    trie = expression(["".join(random.Random(i).choices("abcdefgh[-&^\\", k=9)) for i in range(2000)])
    assert LONGEST_TEXT < len(trie) < LONGEST_TRIE
    inspect(split_at(trie))
    for other in ("a*", "b+", "a{2,9}", "(?=a)", "(a)", ".", "\\w", "[^a]", "[a-z]", "[a&&b]", "a?", "\\p{L}"):
        with pytest.raises(ValueError, match="at most 8,192 are allowed"):
            inspect(split_at(trie + "|" + other))
    with pytest.raises(ValueError, match="at most 8,192 are allowed"):
        inspect(split_at("|".join([trie] * (LONGEST_TRIE // len(trie) + 1))))


def test_such_a_file_with_repetitions_is_not_loaded(tmp_path: Path) -> None:
    write_world(written(tmp_path, lines_of(drawn(4))), tmp_path / "tokenizer.json")
    content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    content["pre_tokenizer"]["pretokenizers"][1]["pattern"]["Regex"] += "|x+"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(TextError, match="at most 8,192 are allowed"):
        Tokenizer.load(tmp_path / "tokenizer.json")
