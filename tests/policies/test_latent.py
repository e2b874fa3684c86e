"""Cache augmentation (Liu et al. 2024): entries of no token, by trained rows, at the end of a prompt or later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import CAN, Scripted, Text, policy_of, run, spec_of

from edgedec.bundle.coprocessor import Coprocessor, save_coprocessor
from edgedec.errors import SessionError, UsageError
from edgedec.policies import PolicyHost, TextSize
from edgedec.policies.latent import Latent

SPEC = spec_of()
SOFT = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
ADAPTER: Any = object()
# What the scripted states [position, 3] become: over their root mean square, times this.
OUT = np.array([[0, 1], [2, 0]], np.float32)


def text(n: int = 2, after: int = 0, room: int = 600, coprocessor: bool = True) -> Text:
    made = Text(Scripted(SPEC), "snapkv", room)
    maker = Coprocessor(SOFT, OUT, ADAPTER, "") if coprocessor else None
    made.policy = Latent(PolicyHost(SPEC, CAN), maker, n, after, "file")
    made.policy.words = "latent"
    return made


def test_entries_by_hand() -> None:
    """20 tokens in chunks of 8; the first two trained rows, all at position 19, read; of their last states [19, 3]
    over 13.6 the matrix makes [.22, 2.79], which two more rows are; these are attached."""
    one = text().read(20, 8)
    calls = one.runtime.calls  # type: ignore[attr-defined]
    assert [len(call.rows) for call in calls] == [8, 8, 4, 2, 2]
    soft, made = calls[3:]
    assert soft.rows.embeddings.tolist() == [[1, 2], [3, 4]]
    assert soft.rows.positions.tolist() == made.rows.positions.tolist() == [19, 19]
    assert (soft.adapter is ADAPTER, made.adapter) == (True, None)
    assert soft.outputs.hidden == (3,)
    size = np.sqrt((19**2 + 3**2) / 2)
    np.testing.assert_allclose(made.rows.embeddings, [[3 / size, 2 * 19 / size]] * 2, rtol=1e-5)
    assert (one.cache.length, one.cache.slots(0)) == (20, 22)
    assert one.kept()[0] == [*range(20), 19, 19]
    assert one.step(3).kept()[0] == [*range(20), 19, 19, 20, 21, 22]
    assert one.policy.report(one.cache)["latents"] == 2


def test_later_entries() -> None:
    """Three generated tokens first: rows 20 to 22, then the entries at the position of the last."""
    one = text(after=3).read(20)
    assert one.kept()[0] == list(range(20))
    assert [one.policy.room(length) for length in (20, 21, 22, 23)] == [2, 1, 0, 0]
    assert one.policy.report(one.cache)["latents"] == 0
    assert one.step(2).kept()[0] == list(range(22))
    assert one.step(1).kept()[0] == [*range(23), 22, 22]
    assert one.policy.room(23) == 1 << 30
    assert one.step(2).kept()[0] == [*range(23), 22, 22, 23, 24]


def test_entries_of_an_earlier_prompt_are_dropped() -> None:
    one = text().read(20).step(2)
    one.read(9)
    assert one.kept()[0] == [*range(32), 31, 31], "22 tokens and what waited, then 9"
    assert one.policy.state()["latent"].tolist() == [-1, 32, 32]


def test_short_texts_and_full_caches_have_none() -> None:
    assert text().read(7).kept()[0] == list(range(7))
    assert text().read(8).kept()[0] == [*range(8), 7, 7]
    assert text(room=22).read(20).kept()[0] == [*range(20), 19, 19]
    full = text(room=21).read(20)
    assert full.kept()[0] == list(range(20))
    assert full.policy.state()["latent"].tolist() == [-1, -1, -1]
    none = text(coprocessor=False).read(20).step(1)
    assert none.kept()[0] == list(range(21))
    report = none.policy.report(none.cache)
    assert (report["absent"], report["lossy"]) == ("file", False)
    there = text().policy.report(none.cache)
    assert ("absent" in there, there["lossy"]) == (False, True)


def test_peak_counts_entries() -> None:
    size = TextSize(0, 0, 20, 100, 128)
    assert text(3).policy.peak(size) == 103
    assert text(3, coprocessor=False).policy.peak(size) == 100


def test_trimmed_texts() -> None:
    one = text(after=3).read(20).step(4)
    assert one.policy.state()["latent"].tolist() == [-1, 23, 23]
    one.cache.truncate(23)
    one.policy.trim(one.cache)
    assert one.policy.state()["latent"].tolist() == [-1, 23, 23]
    one.cache.truncate(22)
    one.policy.trim(one.cache)
    assert one.policy.state()["latent"].tolist() == [-1, -1, -1]


def test_states() -> None:
    one = text().read(20)
    state = one.policy.state()
    assert state["latent"].tolist() == [-1, 20, 20]
    again = text().policy
    again.restore(state, one.cache)
    assert again.state()["latent"].tolist() == [-1, 20, 20]
    waiting = text(after=3).read(20)
    again.restore(waiting.policy.state(), waiting.cache)
    assert again.state()["latent"].tolist() == [23, -1, -1]
    run(one.runtime, again.work(waiting.cache, None))  # type: ignore[attr-defined]
    assert waiting.cache.slots(0) == 20, "not due"
    for wrong in (
        [-1, 21, 20],
        [-1, 20, 21],
        [-1, -1, 20],
        [-2, 20, 20],
        [-1, 20],
    ):
        with pytest.raises(SessionError, match="not of cache policy"):
            again.restore({"latent": np.array(wrong)}, one.cache)
    for also in (
        {"latent": np.array([-1.0, 20, 20])},
        {},
        {"latent": np.array([-1, 20, 20]), "other": np.zeros(1)},
        {"latent": np.array([-1, -1, -1], np.int32)},
    ):
        with pytest.raises(SessionError, match="not of cache policy"):
            again.restore(also, one.cache)
    again.restore({"latent": np.array([-1, 0, 0])}, one.cache)
    for block in SPEC.attention:  # every block has to hold the entries
        less = one.cache.fork()
        less.drop(block, [0])
        with pytest.raises(SessionError, match="not of cache policy"):
            again.restore(state, less)
    one.policy.reset()
    assert one.policy.state()["latent"].tolist() == [-1, -1, -1]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "it.coprocessor"
    save_coprocessor(path, SPEC, SOFT, OUT, {})
    policy = policy_of(f"latent:path={path},n=3", SPEC)
    assert isinstance(policy, Latent)
    assert policy._coprocessor is not None
    with pytest.raises(UsageError, match=r"n=4: .* was trained for 3 entries"):
        policy_of(f"latent:path={path},n=4", SPEC)
    with pytest.raises(UsageError, match="no such file"):
        policy_of(f"latent:path={tmp_path}/none", SPEC)
    absent = policy_of("latent", SPEC)
    assert isinstance(absent, Latent)
    assert absent._coprocessor is None
