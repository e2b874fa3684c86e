"""The merging of subwords inside words: against the loop of the paper, and on tokenizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import raw_tokenizer, tokenizer

from edgedec.bundle import Bundle
from edgedec.text.subwords import Joinable, Merging, Pair, PieceBytes, joinable_of
from edgedec.text.tokenizer import Tokenizer

WIDE = 1 << 20


def whole(joined: bytes) -> bool:
    return b" " not in joined[1:] and b"bb" not in joined


def naive(
    texts: Sequence[Sequence[PieceBytes]], longest: int, most: int, rows: int
) -> tuple[list[list[int]], list[Pair]]:
    """The loop as the authors' code has it: count all pairs that may be joined, join the most frequent, again."""
    found, pairs = [[(piece, 1) for piece in text] for text in texts], list[Pair]()
    while len(pairs) < most and sum(map(len, found)) > rows:
        counts = Counter[Pair]()
        for text in found:
            for (a, n), (b, m) in pairwise(text):
                if a and b and n + m <= longest and whole(a + b):
                    counts[a, b] += 1
        if not counts:
            break
        best = max(counts, key=lambda pair: counts[pair])
        pairs.append(best)
        found = [_joined(text, best, longest) for text in found]
    return [[size for _, size in text] for text in found], pairs


def _joined(text: list[tuple[PieceBytes, int]], pair: Pair, longest: int) -> list[tuple[PieceBytes, int]]:
    made, i = list[tuple[PieceBytes, int]](), 0
    while i < len(text):
        two = text[i : i + 2]
        if tuple(piece for piece, _ in two) == pair and sum(size for _, size in two) <= longest:
            made.append((pair[0] + pair[1], sum(size for _, size in two)))
        else:
            made.append(text[i])
        i += 2 if made[-1] is not text[i] else 1
    return made


PIECES = st.sampled_from([b"a", b"b", b" a", b"ab", b" ", b"", None])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=14), max_size=4), st.integers(2, 5), st.integers(0, 12), st.integers(0, 12))
def test_it_is_the_loop_that_counts_anew(texts: list[list[PieceBytes]], longest: int, most: int, rows: int) -> None:
    expected = naive(texts, longest, most, rows)
    found = Merging(texts, whole, longest)
    pairs = found.learn(most, rows)
    assert (found.sizes(), pairs) == expected
    assert found.rows == sum(map(len, expected[0]))
    again = Merging(texts, whole, longest)
    for pair in pairs:
        again.merge(pair)
    assert again.sizes() == expected[0], "the pairs alone, in their order, do the same"
    for text in texts:
        alone = Merging([text], whole, longest)
        for pair in pairs:
            alone.merge(pair)
        assert alone.sizes() == [naive_sizes(text, pairs, longest)]


def naive_sizes(text: Sequence[PieceBytes], pairs: Sequence[Pair], longest: int) -> list[int]:
    found = [(piece, 1) for piece in text]
    for pair in pairs:
        found = _joined(found, pair, longest)
    return [size for _, size in found]


def learned(texts: list[list[PieceBytes]], most: int = WIDE, longest: int = 8) -> list[list[int]]:
    merging = Merging(texts, whole, longest)
    merging.learn(most, 0)
    return merging.sizes()


def test_the_whole_batch_is_counted() -> None:
    """x y is the most frequent pair of the first text, p q of both: p q is joined in both."""
    first, second = [b"x", b"y", b" x", b"x", b"y", b" p", b"p", b"q"], [b"p", b"q", b" p", b"p", b"q"]
    texts: list[list[PieceBytes]] = [list(first), list(second)]
    assert learned(texts, 1) == [[1, 1, 1, 1, 1, 1, 2], [2, 1, 2]]
    assert learned(texts[:1], 1) == [[2, 1, 2, 1, 1, 1]]


def test_pairs_are_joined_from_left_to_right() -> None:
    assert learned([[b"a", b"a", b"a"]], 1) == [[2, 1]]
    assert learned([[b"a"] * 5], 1) == [[2, 2, 1]]
    assert learned([[b"b", b"a", b"b", b"a", b"a"]], 1) == [[2, 2, 1]], "of equals the first"
    merging = Merging([[b"a"] * 4, [b"b", b"a"] * 2], whole, 8)
    assert merging.learn(1, 0) == [(b"a", b"a")], "three of them, though only two can be joined"


def test_joined_rows_are_neighbours() -> None:
    texts: list[list[PieceBytes]] = [[b"x", b"y", b"z", b"w"], [b"x", b"y"], [b"z", b"w"], [b"x", b"y"]]
    merging = Merging(texts, whole, 8)
    assert merging.learn(WIDE, 0) == [(b"x", b"y"), (b"z", b"w"), (b"xy", b"zw")]
    assert merging.sizes() == [[4], [2], [2], [2]]


def test_what_is_never_joined() -> None:
    assert learned([[b" a", b" a"], [b"a", b" "], [b"b", b"b"]]) == [[1, 1], [1, 1], [1, 1]]
    assert learned([[b"a", None, b"a"], [b"a", b"", b"a"]]) == [[1, 1, 1], [1, 1, 1]]
    assert learned([[b"a"], [b"a"], []]) == [[1], [1], []], "texts have ends"
    assert learned([[b"a", b"a", b"a", b"a"]], longest=3) == [[2, 2]]


def test_a_pair_is_known_by_its_text() -> None:
    """ab c and ab c, made of other tokens: both are joined with d at once."""
    texts: list[list[PieceBytes]] = [[b"ab", b"c", b"d"], [b" x", b"a", b"b", b"c", b"d"]]
    merging = Merging(texts, lambda joined: b" " not in joined, 8)
    pairs = merging.learn(WIDE, 0)
    assert (b"abc", b"d") in pairs or (b"ab", b"cd") in pairs
    assert merging.sizes() == [[3], [1, 4]]


# ---- tokenizers


@pytest.fixture(scope="module")
def own(nano: Path) -> tuple[Tokenizer, Joinable]:
    bundle = Bundle.open(nano)
    found = Tokenizer.load(bundle.file(str(bundle.manifest.text.tokenizer)))
    return found, joinable_of(found, bundle.spec.vocab_size)


def words(found: Tokenizer, joinable: Joinable, text: str) -> list[str]:
    """The rows of a text when nothing more can be joined, as text."""
    ids = found.encode(text)
    merging = Merging([joinable.pieces(ids)], joinable.whole, 64)
    merging.learn(WIDE, 0)
    made, at = list[str](), 0
    for size in merging.sizes()[0]:
        made.append(found.decode(ids[at : at + size], special=True))
        at += size
    assert at == len(ids)
    return made


def test_words_of_the_bundled_model(own: tuple[Tokenizer, Joinable]) -> None:
    text = "Elizabeth doesn't like hippopotamuses... 4711  <|endoftext|>Xylophone\nzoology"
    assert words(*own, text) == [
        *("<|endoftext|>", "Elizabeth", " doesn", "'t", " like", " hippopotamuses", "...", " 4711"),
        *(" ", " ", "<|endoftext|>", "Xylophone", "\n", "zoology"),
    ]


@pytest.mark.parametrize("name", ["bytes", "metaspace", "fallback", "unigram", "words"])
def test_no_word_is_left_and_no_text_is_lost(name: str) -> None:
    found = tokenizer(name)
    joinable = joinable_of(found, found.vocab_size)
    text = "the catsat 日本語のテキスト, naïve 🙂🙂 ok!\nqwxz"
    ids = found.encode(text, around=False)
    pieces = joinable.pieces(ids)
    merging = Merging([pieces], joinable.whole, 64)
    merging.learn(WIDE, 0)
    sizes, at = merging.sizes()[0], 0
    assert sum(sizes) == len(ids)
    joined = list[bytes]()
    for size in sizes:
        part = pieces[at : at + size]
        joined.append(b"".join(piece or b"" for piece in part))
        assert size == 1 or (None not in part and not any(map(str.isspace, joined[-1].decode(errors="replace")[1:])))
        at += size
    assert b"".join(joined) == b"".join(piece or b"" for piece in pieces)
    if name == "bytes":
        assert " naïve".encode() in joined
        assert max(sizes) > 3


def test_half_characters_are_joined_to_no_letter(own: tuple[Tokenizer, Joinable]) -> None:
    joinable = own[1]
    assert joinable.whole("é".encode())
    assert joinable.whole("café".encode())
    assert not joinable.whole(b"caf\xc3")
    assert joinable.whole(b"\xe2\x80")
    assert not joinable.whole(b"a b")
    assert not joinable.whole(b"don't")
    assert joinable.whole(b" don")


def test_added_tokens_stay_alone() -> None:
    raw = raw_tokenizer("bytes")
    raw.add_tokens(["zebra"])
    found = Tokenizer(raw)
    assert words(found, joinable_of(found, found.vocab_size), " fishzebrafish") == [" fish", "zebra", "fish"]


def test_tokens_without_a_place(own: tuple[Tokenizer, Joinable]) -> None:
    found, joinable = own
    assert joinable.pieces([0, -1, 1 << 30]) == [None, None, None]
    assert joinable.pieces(found.encode(" dog", around=False)) == [b" dog"]
