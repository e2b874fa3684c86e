"""The record of what a model has read: what it finds, what it does not, what is refused."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgedec.bench.prompts import read_prompts
from edgedec.bundle.folder import Bundle
from edgedec.bundle.read_grams import BITS, EVERY, MODEL, WORDS, ReadPart, ReadRecord, grams, readers_of
from edgedec.errors import BundleCorrupt


def words(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(10**9)}" for _ in range(n)]


def record(*texts: str, of: tuple[str, ...] = (MODEL,)) -> ReadRecord:
    return ReadRecord((ReadPart.build(of, np.concatenate([grams(text, EVERY) for text in texts])),))


def test_grams_are_of_words_whatever_their_case_and_signs() -> None:
    assert len(grams(" ".join(words(40)))) == 40 - WORDS + 1
    assert grams("It's  A\nred-dog, x_1!").tolist() == grams("it s a red dog x_1").tolist()
    assert len(grams("only three words")) == 1
    assert len(grams("  ...")) == 0
    assert grams("a b").tolist() != grams("b a").tolist()
    assert len(set(grams(" ".join(["a"] * 30)).tolist())) == 1
    assert len({int(grams(text)[0]) for text in ("a", "a a", "a a a", "b")}) == 4


def test_every_eighth_gram_begins_at_the_first_word() -> None:
    text = " ".join(words(WORDS + 2 * EVERY))
    assert grams(text, EVERY).tolist() == grams(text)[::EVERY].tolist()
    assert len(grams(text, EVERY)) == 3


def test_a_run_long_enough_is_always_found_and_one_too_short_never() -> None:
    text = words(200)
    read = record(" ".join(text))
    assert read.parts[0].grams == len(range(0, 200 - WORDS + 1, EVERY))
    by_chance = 0
    for at in range(150):
        new = words(20, seed=at + 1)
        for n in (WORDS + EVERY - 1, WORDS, WORDS - 1):
            found = read.seen([" ".join([*new[:9], *text[at : at + n], *new[9:]])], [MODEL])
            by_chance += n == WORDS and found == "seen"
            assert n == WORDS or found == ("unseen" if n < WORDS else "seen")
    assert by_chance == pytest.approx(150 / EVERY, abs=1)


def test_short_texts_are_found_whole() -> None:
    read = record("Tell me a story about a dog", " ".join(words(30)))
    assert read.seen(["tell me a story, about a dog!"], [MODEL]) == "seen"
    assert read.seen(["tell me a story about a dog please"], [MODEL]) == "unseen"
    assert read.seen(["nothing", "Tell me a story about a dog."], [MODEL]) == "seen", "of any turn"
    assert read.seen(["", "..."], [MODEL]) == "unseen"


def test_hardly_anything_is_found_by_chance() -> None:
    rng = np.random.default_rng(0)
    read, other = (rng.integers(0, 2**64, n, dtype=np.uint64) for n in (20000, 1000000))
    part = ReadPart.build([MODEL], np.concatenate([read, read]))
    assert part.grams == 20000
    assert len(part.filter) == 20000 * BITS // 8
    assert part.holds(read).all()
    assert part.holds(other).mean() < 5e-5


def test_seen_by_whom() -> None:
    read = record("one two three").with_part(record("four five six", of=("medusa",)).parts[0])
    assert read.seen(["four five six"], [MODEL]) == "seen"
    assert read.seen(["seven"], [MODEL, "medusa"]) == "unseen"
    assert read.seen(["seven"], [MODEL, "medusa", "eagle3"]) == "unknown"
    assert read.seen(["one two three"], [MODEL, "eagle3"]) == "seen", "though the head has no record"
    assert ReadRecord().seen(["one two three"], [MODEL]) == "unknown"
    again = read.with_part(read.parts[1])
    assert again.parts == read.parts


def test_it_is_read_as_it_was_written() -> None:
    read = record(" ".join(words(60))).with_part(record("four five", of=("medusa", "hydra")).parts[0])
    back = ReadRecord.parse(read.to_bytes(), "x")
    assert [(p.of, p.grams, p.filter.tolist()) for p in back.parts] == [
        (p.of, p.grams, p.filter.tolist()) for p in read.parts
    ]
    header = json.loads(read.to_bytes().partition(b"\n")[0])
    assert "13-grams of words" in header["rule"]
    assert ReadRecord.parse(ReadRecord().to_bytes(), "x").parts == ()


def test_other_bytes_are_refused() -> None:
    good = record("one two three").to_bytes()
    header, _, body = good.partition(b"\n")
    facts = json.loads(header)

    def of(**changed: object) -> bytes:
        return json.dumps({**facts, **changed}).encode() + b"\n" + body

    part = facts["parts"][0]
    for data, says in (
        (b"", "not a record"),
        (b"[]\n", "not a record"),
        (b"{", "not a record"),
        (of(parts=[{"of": ["model"]}]), "not a record"),
        (of(format="other"), "another rule"),
        (of(version=2), "another rule"),
        (of(every=4), "another rule"),
        (good + b"x", "wrong size"),
        (good[:-1], "wrong size"),
        (of(parts=[{**part, "bytes": -1}, {**part, "bytes": part["bytes"] + 1}]), "wrong size"),
    ):
        with pytest.raises(BundleCorrupt, match=says) as error:
            ReadRecord.parse(data, "here.bin")
        assert "here.bin" in str(error.value)


def test_a_bundle_keeps_its_record_and_its_name(tiny: Path, tmp_path: Path) -> None:
    from edgedec.export.read_record import add_read

    assert ReadRecord.of(Bundle.open(tiny)).parts == ()
    folder = Path(shutil.copytree(tiny, tmp_path / "copy"))
    bundle = add_read(Bundle.open(folder), (MODEL,), ["the king and the thing", " ".join(words(50))])
    bundle = add_read(bundle, ("medusa",), iter(["on the hand"]))
    bundle.verify()
    assert bundle.origin == Bundle.open(tiny).digest
    found = ReadRecord.of(bundle)
    assert [(part.of, part.grams) for part in found.parts] == [((MODEL,), 6), (("medusa",), 1)]
    assert found.seen(["the king and the thing"], readers_of(bundle)) == "seen"


def test_a_padded_bundle_has_the_record(tiny: Path, tmp_path: Path) -> None:
    from edgedec.export import geometry, padding
    from edgedec.export.read_record import add_read

    folder = Path(shutil.copytree(tiny, tmp_path / "copy"))
    source, wide = Bundle.open(folder), geometry.Geometry(512, 64, 64, 4, 6, 2, 32)
    padded = padding.pad_to_geometry(source, wide, tmp_path / "without", "without")
    assert ReadRecord.of(padded).parts == ()
    source = add_read(source, (MODEL,), ["the king and the thing"])
    padded = padding.pad_to_geometry(source, wide, tmp_path / "with", "with")
    assert ReadRecord.of(padded).to_bytes() == ReadRecord.of(source).to_bytes()


# -- nano's


def test_nano_knows_what_it_has_read(nano: Path) -> None:
    """A prompt of Spec-Bench and a program of MBPP, which it read, and one of HumanEval, which it did not."""
    bundle = Bundle.open(nano)
    read, readers = ReadRecord.of(bundle), readers_of(bundle)
    prompt = (
        "Compose an engaging travel blog post about a recent trip to Hawaii, highlighting cultural experiences and "
        "must-see attractions."
    )
    program = (
        "R = 3\nC = 3\ndef min_cost(cost, m, n):\n    tc = [[0 for x in range(C)] for x in range(R)]\n"
        "    tc[0][0] = cost[0][0]\n    for i in range(1, m+1):\n        tc[i][0] = tc[i-1][0] + cost[i][0]"
    )
    other = "Check if in given list of numbers, are any two numbers closer to each other than given threshold."
    assert [read.seen([text], readers) for text in (prompt, program, other)] == ["seen", "seen", "unseen"]
    assert sum(part.grams for part in read.parts) > 400000


def test_hardly_any_of_our_prompts_was_read(nano: Path) -> None:
    bundle = Bundle.open(nano)
    found = [ReadRecord.of(bundle).seen(prompt.turns, readers_of(bundle)) for prompt in read_prompts()]
    assert found.count("seen") <= 1
    assert "unknown" not in found
