"""Labels learned from examples, and their files (`edgedec.encoding.learned_labels`, `label_learning`)."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.encoding import label_learning
from edgedec.encoding.label_learning import learned, new_labels
from edgedec.encoding.learned_labels import MAGIC, LearnedLabels, open_labels
from edgedec.encoding.numeric import squashed, unit
from edgedec.errors import UsageError
from edgedec.storage.arrays import read_arrays, write_arrays

WIDTH, LABELS = 24, ["a", "b", "c", "d", "e", "f"]
Vectors = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CODEBOOKS", 16), ("KEYS", 64), ("SIZE", 8)):
        monkeypatch.setattr(label_learning, name, value)


def drawn(n: int, seed: int) -> Vectors:
    """n vectors a label, around a centre of its own."""
    of, random = np.random.default_rng(0), np.random.default_rng(seed)
    centres = of.standard_normal((len(LABELS), WIDTH)) + 1.5 * of.standard_normal(
        WIDTH
    )  # as texts' vectors: near others
    return {
        label: unit(centre + 0.8 * random.standard_normal((n, WIDTH))).astype(np.float32)
        for label, centre in zip(LABELS, centres, strict=True)
    }


def empty(seed: int = 0) -> LearnedLabels:
    return new_labels("ab" * 32, np.concatenate([*drawn(60, 9).values()]), seed)


def some(vectors: Vectors, *labels: str) -> Vectors:
    return {label: vectors[label] for label in labels}


def right(known: LearnedLabels, vectors: Vectors) -> float:
    return float(np.mean([next(iter(known.scores(x))) == label for label, held in vectors.items() for x in held]))


def test_worked_examples() -> None:
    found = doctest.testmod(label_learning)
    assert (found.attempted > 0, found.failed) == (True, 0)


def test_labels_added_later_leave_earlier_ones() -> None:
    few, asked, known = drawn(10, 1), drawn(40, 2), empty()
    matrix = np.zeros((WIDTH, len(LABELS)), np.float32)
    for at in range(0, 6, 2):
        part = some(few, *LABELS[at : at + 2])
        known = learned(known, part)
        x, wanted = np.concatenate([*part.values()]), np.repeat(np.arange(at, at + 2), 10)
        for _ in range(100):  # a linear softmax, trained on the same examples at the same time
            off = squashed(x @ matrix, "softmax") - np.eye(len(LABELS), dtype=np.float32)[wanted]
            matrix -= 10 * x.T @ off / np.float32(len(x))
        if not at:
            before = known
    earlier = some(asked, "a", "b")
    labelled = np.concatenate([(held @ matrix).argmax(axis=1) for held in earlier.values()])
    assert right(before, earlier) > 0.95
    assert right(known, earlier) > 0.9
    assert (labelled == np.repeat([0, 1], 40)).mean() < 0.5
    assert right(known, asked) > right(learned(empty(), few), asked) - 0.05
    assert known.labels == tuple(LABELS)


def test_labels_that_come_one_at_a_time() -> None:
    few, asked, known = drawn(10, 1), drawn(40, 2), empty()
    for label in LABELS:
        known = learned(known, some(few, label))
    assert right(known, asked) > 0.9
    assert right(known, some(asked, "a")) > 0.9


def test_only_values_of_keys_that_are_hit_change() -> None:
    few, known = drawn(5, 1), learned(empty(), some(drawn(5, 1), "a", "b", "c"))
    more = learned(known, some(few, "d", "e"))
    hit = np.zeros(known.used.shape, bool)
    for x in np.concatenate([few["d"], few["e"]]):
        hit[np.arange(16), known.hits(x)] = True
    assert 0 < hit.sum() < hit.size
    assert more.values[~hit][:, : known.values.shape[2]].tobytes() == known.values[~hit].tobytes()
    assert (more.values[hit][:, 0] != known.values[hit][:, 0]).all()
    # A new label begins with the value of those that were unknown.
    np.testing.assert_array_equal(more.values[~hit][:, -2:], np.repeat(known.values[~hit][:, :1], 2, axis=1))
    np.testing.assert_array_equal(more.used > 0, (known.used > 0) | hit)
    assert (more.keys.tobytes(), more.projections.tobytes()) == (known.keys.tobytes(), known.projections.tobytes())
    assert (known.labels, more.labels) == (("a", "b", "c"), ("a", "b", "c", "d", "e"))


def test_more_examples_of_a_known_label() -> None:
    few, known = drawn(4, 1), learned(empty(), some(drawn(4, 1), "a", "b"))
    asked = next(x for x in drawn(40, 2)["b"] if 0.5 < known.scores(x)["b"] < 0.95)
    more = learned(known, {"b": asked[None]})
    assert more.labels == known.labels
    assert more.scores(asked)["b"] > known.scores(asked)["b"]
    assert right(more, some(few, "a")) == 1


def test_values_are_learned_to_the_smoothed_targets() -> None:
    few = some(drawn(3, 1), "a", "b", "c")
    known = learned(empty(), few)
    for label, held in few.items():
        for x in held:
            logits = known.values[np.arange(16), known.hits(x)].mean(axis=0)
            shares = squashed(logits, "softmax")
            assert shares[1 + known.labels.index(label)] == pytest.approx(0.925, abs=0.02)  # 0.9, and 0.1 over four
            assert shares[0] < 0.05
            scores = known.scores(x)
            assert sum(scores.values()) == pytest.approx(1)
            assert list(scores.values()) == sorted(scores.values(), reverse=True)
            assert scores == pytest.approx(
                dict(zip(known.labels, squashed(logits[1:], "softmax"), strict=True)), abs=1e-5
            )


def test_hits_are_the_nearest_keys_by_the_naive_rule() -> None:
    known = learned(empty(), some(drawn(3, 1), "a", "b"))
    for x in drawn(3, 5)["c"]:
        far = np.stack(
            [np.square(keys - x @ m).sum(axis=1) for keys, m in zip(known.keys, known.projections, strict=True)]
        )
        np.testing.assert_array_equal(known.hits(x), far.argmin(axis=1))
        of_used = known.hits(x, used=True)
        assert known.used[np.arange(16), of_used].all()
        np.testing.assert_array_equal(of_used, np.where(known.used, far, np.inf).argmin(axis=1))
        assert (of_used != known.hits(x)).any()


def test_keys_are_where_the_texts_are() -> None:
    texts = np.concatenate([*drawn(60, 9).values()])
    made = empty()
    assert made.keys.shape == (16, 64, 8)
    np.testing.assert_allclose(np.square(made.projections).sum(axis=1), 1, atol=1e-5)
    spread = drawn(40, 10)
    for m, keys in zip(made.projections, made.keys, strict=True):
        x = np.concatenate([*spread.values()]) @ m
        random = (texts @ m)[np.random.default_rng(1).choice(len(texts), 64, replace=False)]

        def off(held: np.ndarray, x: np.ndarray = x) -> float:
            return float(np.square(x[:, None] - held).sum(axis=2).min(axis=1).mean())

        assert off(keys) < off(random)  # averages are nearer to other texts than texts are
    hits = np.stack([made.hits(x) for x in texts])
    assert np.mean([len(np.unique(hits[:, book])) for book in range(16)]) > 0.9 * 64
    assert empty().keys.tobytes() == made.keys.tobytes()
    assert new_labels("x", texts[:5]).keys.shape == (16, 5, 8)
    with pytest.raises(UsageError, match="keys are made of texts"):
        new_labels("x", texts[:0])


def test_a_file_keeps_labels(tmp_path: Path) -> None:
    file, known = tmp_path / "a.labels", learned(empty(), drawn(5, 1))
    known.save(file)
    found = open_labels(file, known.encoder, WIDTH)
    for x in drawn(2, 3)["a"]:
        assert found.scores(x) == known.scores(x)
    more = {"new": drawn(2, 4)["a"]}
    assert learned(found, more).values.tobytes() == learned(known, more).values.tobytes()
    assert list(tmp_path.iterdir()) == [file]


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file, known = tmp_path / "a.labels", learned(empty(), some(drawn(5, 1), "a", "b"))
    known.save(file)
    raw, of = file.read_bytes(), read_arrays(file, MAGIC, "labels", UsageError)

    def refused(why: str, encoder: str = known.encoder, width: int = WIDTH) -> None:
        with pytest.raises(UsageError, match=why) as caught:
            open_labels(file, encoder, width)
        assert "\n" not in str(caught.value)
        assert str(file) in str(caught.value)

    def rewritten(header: dict[str, Any], **arrays: np.ndarray) -> None:
        write_arrays(file, MAGIC, of.header | header, of.arrays | arrays, UsageError)

    refused("of another encoder's vectors", encoder="cd" * 32)
    refused("do not fit", width=WIDTH + 1)
    for cut in (4, 40, len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:cut])
        refused("cut short|damaged")
    file.write_bytes(b"EDGELORA" + raw[8:])
    refused("not a file of labels")
    rewritten({"version": 2})
    refused("version 2")
    for labels in (["a"], ["a", "a"], ["a", ""], ["a", 1], "ab", None, []):
        rewritten({"labels": labels})
        refused("do not fit")
    for name, wrong in (
        ("values", of.arrays["values"][:, :, :2]),
        ("values", of.arrays["values"].astype(np.float64)),
        ("values", np.where(np.arange(3) == 1, np.nan, of.arrays["values"]).astype(np.float32)),
        ("keys", of.arrays["keys"][:, :9]),
        ("keys", of.arrays["keys"][0]),
        ("projections", of.arrays["projections"][1:]),
        ("used", of.arrays["used"][:, 1:]),
        ("used", of.arrays["used"].astype(np.float32)),
        ("used", of.arrays["used"] * (np.arange(16) > 0)[:, None].astype(np.uint8)),
        ("more", of.arrays["used"]),
    ):
        rewritten({}, **{name: wrong})
        refused("do not fit")
    none = {name: a[:, :0] if name in ("keys", "values", "used") else a for name, a in of.arrays.items()}
    rewritten({"labels": []}, **(none | {"values": none["values"][:, :, :1]}))
    refused("do not fit")
    rewritten({})
    assert open_labels(file, known.encoder, WIDTH).labels == ("a", "b")


def test_examples_that_are_none() -> None:
    for wrong in ({}, {"a": np.zeros((0, WIDTH), np.float32)}):
        with pytest.raises(UsageError, match="every label needs one at least"):
            learned(empty(), wrong)
    with pytest.raises(UsageError, match="none are learned yet"):
        empty().scores(drawn(1, 1)["a"][0])
