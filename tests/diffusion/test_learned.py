"""A trained schedule (D20): the net, its files, its training on a model's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bench.fill_schedule import Noted, _gradients, trained
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.schedules.learned import FillNet, LearnedSchedule, features, log_odds, make
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.runtime import Capabilities
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec

HOST = DiffusionHost(DiffusionFacts(MASK, True, "causal", 4), Capabilities((), ()))


def seen(p: list[float], positions: list[int], tokens: list[int] | None = None, given: int = 0) -> SeenBlock:
    at, both = np.array(positions), np.array([tokens or positions, tokens or positions]).T
    return SeenBlock(at, both, both.astype(float), np.array([p, p]).T, given=given)


def identity(size: int, shift: float = 0.0) -> FillNet:
    """The logit of a position is that of its probability, and a shift."""
    return FillNet(np.eye(size), np.full(size, 9.0), np.eye(size) * 4, np.full(size, shift - 36))


def test_positions_above_the_value_are_filled_and_the_surest() -> None:
    made = LearnedSchedule(identity(4), 0.96)  # the net says what it reads
    canvas = Canvas([0] * 8 + [MASK] * 4, MASK, start=8, end=12)
    assert made.choose(seen([0.97, 0.95, 0.965], [8, 9, 11]), canvas) == [8, 11]
    assert made.choose(seen([0.3, 0.4], [9, 10]), canvas) == [10]
    assert made.choose(seen([0.3, 0.4], [9, 10], given=1), canvas) == []
    assert made.choose(seen([0.97, 0.98], [8, 13]), canvas) == [8, 13]  # behind what the net reads: the surest only
    assert made.choose(seen([0.98, 0.97], [8, 13]), canvas) == [8]


def test_what_the_net_reads() -> None:
    canvas = Canvas([0] * 8 + [MASK] * 6, MASK, start=8, end=14)
    assert features(seen([0.2, 0.3, 0.4], [9, 11, 13]), canvas, 4).tolist() == [1, 0.2, 1, 0.3]


def test_the_net_reads_log_odds_and_says_chances() -> None:
    read = log_odds(np.array([0.5, 0.75, 0.97, 0.99, 1.0, 0.0]))
    expected = [0, np.log(3) / 4, np.log(97 / 3) / 4, np.log(99) / 4, np.log(10001) / 4, -np.log(10001) / 4]
    assert read == pytest.approx(expected, abs=4e-3)
    said = FillNet(np.eye(3), np.zeros(3), np.eye(3), np.array([0.0, np.log(3), -900.0]))(np.full((1, 3), 0.5))
    assert said[0] == pytest.approx([0.5, 0.75, 0.0])


def test_gradients_are_those_of_differences() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in ((3, 5), (5,), (5, 3), (3,))]
    x, y, known = rng.random((6, 3)), (rng.random((6, 3)) > 0.5) * 1.0, rng.random((6, 3)) > 0.3
    gradients, _ = _gradients(arrays, x, y, known)
    for i, array in enumerate(arrays):
        for at in list(np.ndindex(*array.shape))[::3]:
            moved = [a.copy() for a in arrays]
            moved[i][at] += 1e-6
            up = _gradients(moved, x, y, known)[1]
            moved[i][at] -= 2e-6
            assert gradients[i][at] == pytest.approx((up - _gradients(moved, x, y, known)[1]) / 2e-6, abs=1e-6)


def test_training_learns_what_a_threshold_cannot_say() -> None:
    """A position is final if it and the one before are sure: the net reads both."""
    rng = np.random.default_rng(1)
    x = rng.random((4000, 4))
    y = ((x > 0.5) & (np.roll(x, 1, axis=1) > 0.5)).astype(float)
    y[:, 3] = np.nan  # labels that do not count
    net, loss = trained(x, y, steps=1500)
    held = rng.random((2000, 4))
    truth = (held > 0.5) & (np.roll(held, 1, axis=1) > 0.5)
    found = net(held) > 0.5
    assert (found == truth)[:, :3].mean() > 0.95
    best = max(((held > t) == truth)[:, :3].mean() for t in np.linspace(0, 1, 21))
    assert (found == truth)[:, :3].mean() > best + 0.05
    assert loss < 0.2


def test_runs_are_labelled_with_their_own_text() -> None:
    noted = Noted(4)
    canvas = Canvas([1, 2, MASK, MASK, MASK, MASK], MASK, start=2, end=6)
    assert noted.choose(seen([0.5, 0.9], [3, 4], [7, 8]), canvas) == [4]
    ((read, label),) = noted.examples([1, 2, 3, 7, 9, 5])
    assert read.tolist() == [1, 0.5, 0.9, 1]
    assert label.tolist()[1:3] == [1, 0]
    assert np.isnan(label[[0, 3]]).all()
    ((_, cut),) = noted.examples([1, 2, 3, 7])  # the text ended before
    assert np.isnan(cut[2])


def test_a_file_decodes_as_its_net(tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    identity(4, 4.0254).save(path)  # sigma above 0.96: p above 0.3
    facts, ids = DiffusionFacts(MASK, True, "causal", 4), list(np.random.default_rng(1).integers(0, EOS, 5))
    found = [
        decode(FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0), facts, ids, words, max_tokens=24)
        for words in (f"schedule=learned:file={path}", "schedule=threshold:p=0.3", "schedule=static")
    ]
    assert list(map(int, found[0][0])) == list(map(int, found[1][0]))
    assert found[0][1].passes == found[1][1].passes < found[2][1].passes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (None, "no such net"),
        ({"w1": np.eye(4)}, "no such net"),
        ({"w1": np.eye(4), "b1": np.zeros(3), "w2": np.eye(4), "b2": np.zeros(4)}, "do not fit together"),
        ({"w1": np.ones((4, 6)), "b1": np.zeros(4), "w2": np.ones((6, 4)), "b2": np.zeros(4)}, "do not fit together"),
        ({"w1": np.ones((4, 6)), "b1": np.zeros(6), "w2": np.ones((6, 4)), "b2": np.zeros(6)}, "do not fit together"),
        ({"w1": np.ones((4, 6)), "b1": np.zeros(6), "w2": np.ones((4, 6)), "b2": np.zeros(4)}, "do not fit together"),
        ({"w1": np.ones((5, 6)), "b1": np.zeros(6), "w2": np.ones((6, 5)), "b2": np.zeros(5)}, "is for blocks of 5"),
        ({"w1": np.eye(4) * np.nan, "b1": np.zeros(4), "w2": np.eye(4), "b2": np.zeros(4)}, "do not fit together"),
        ({"w1": np.eye(5), "b1": np.zeros(5), "w2": np.eye(5), "b2": np.zeros(5)}, "is for blocks of 5"),
    ],
)
def test_what_is_no_net_is_refused(arrays: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    if arrays is not None:
        np.savez(path, **arrays)
    with pytest.raises(UsageError, match=message):
        make(HOST, str(path))
