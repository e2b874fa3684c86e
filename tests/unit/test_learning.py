"""What drafters learn goes into saved sessions, into the cache folder, and from fork to fork."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import Tables
from edgedec.errors import SessionError
from edgedec.sampling import Sampling

SPEC = "recycling:fixed=6+trigram"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> edgedec.Model:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    return edgedec.open("nano", threads=1, kv="int8")


def told(session: edgedec.Session, n: int = 60) -> list[int]:
    return list(session.tokens(session.model.tokenizer.encode("Once upon a time"), max_tokens=n, ignore_eos=True))


def states(session: edgedec.Session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in session._drafter.state().items()}


def test_a_saved_session_knows_what_its_drafters_knew(model: edgedec.Model, tmp_path: Path) -> None:
    first = model.session(speculate=SPEC)
    told(first)
    assert states(first)
    first.save(tmp_path / "s")
    second = model.session(speculate=SPEC)
    second.load(tmp_path / "s")
    assert states(second) == states(first)
    calls = [model.session(speculate=SPEC), second]
    told(calls[0]), told(calls[1])
    assert calls[1].stats.calls < calls[0].stats.calls
    other = model.session(speculate="off")
    other.load(tmp_path / "s")
    assert other.ids == first.ids


def test_a_fork_knows_it_too_and_learns_on_its_own(model: edgedec.Model) -> None:
    first = model.session(speculate=SPEC)
    told(first)
    before = states(first)
    twin = first.fork()
    assert states(twin) == before
    list(twin.tokens(max_tokens=30, ignore_eos=True))
    assert states(first) == before


@pytest.mark.parametrize("spec", [SPEC, "stand:fixed=6", "hydra:fixed=4"])
def test_sessions_hold_in_common_what_they_learn(model: edgedec.Model, spec: str) -> None:
    """Twenty sessions hold what one does, each knows what all have seen, and every text is what it is alone."""
    tables: Tables = {}
    sessions = [model.session(speculate=spec, context=256, tables=tables) for _ in range(20)]
    batch, texts = Batch(model.runtime), [list[int]() for _ in sessions]
    for i, (session, text) in enumerate(zip(sessions, texts)):
        ids = model.tokenizer.encode(f"Once upon a time {i % 5}")
        session.submit(batch, ids, lambda t, text=text: t is not None and text.append(int(t)), max_tokens=30)  # type: ignore[misc]
    batch.run()
    for i in range(5):
        alone = model.session(speculate="off")
        expected = list(alone.tokens(model.tokenizer.encode(f"Once upon a time {i}"), max_tokens=30))
        assert all(text == expected for text in texts[i::5])
    common = states(sessions[0])
    assert all(states(session).keys() == common.keys() for session in sessions)
    # But for records of a session's own drafts.
    learned = [key for key in common if not key.endswith(("claimed", "came")) and not key.startswith("governor.")]
    assert all(states(session)[key] == common[key] for session in sessions for key in learned)
    late = model.session(speculate=spec, tables=tables)
    told(late)
    assert late.stats.calls <= told_calls(model.session(speculate=spec))


def told_calls(session: edgedec.Session) -> int:
    told(session)
    return session.stats.calls


def test_a_loaded_session_leaves_alone_what_others_hold_in_common(model: edgedec.Model, tmp_path: Path) -> None:
    other = model.session(speculate=SPEC)
    told(other)
    other.save(tmp_path / "s")
    tables: Tables = {}
    first, second = (model.session(speculate=SPEC, tables=tables) for _ in range(2))
    told(first, 10)
    before = states(first)
    second.load(tmp_path / "s")
    assert states(second) == states(other)
    assert states(first) == before
    assert states(first.fork()) == before
    told(second)
    assert states(first) == before


def test_what_is_kept_is_taken_up_by_who_asks(model: edgedec.Model) -> None:
    first = model.session(speculate=SPEC)
    told(first)
    first.save_drafters()
    assert states(model.session(speculate=SPEC, learn=True)) == states(first)
    assert states(model.session(speculate=SPEC)) != states(first)
    assert model.session(speculate="recycling:fixed=5", learn=True).drafter_state_path() != first.drafter_state_path()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x00" * 400])
def test_a_damaged_file_of_what_was_kept_is_passed_over(model: edgedec.Model, damage: bytes) -> None:
    first = model.session(speculate=SPEC)
    told(first)
    first.save_drafters()
    first.drafter_state_path().write_bytes(damage)
    again = model.session(speculate=SPEC, learn=True)
    assert told(again) == told(model.session(speculate="off"))


def test_no_code_comes_out_of_what_was_kept(model: edgedec.Model) -> None:
    first = model.session(speculate=SPEC)
    first.save_drafters()
    with first.drafter_state_path().open("wb") as file:
        np.savez(file, **{"recycling.ids": np.array([print], dtype=object)})
    model.session(speculate=SPEC, learn=True)


def test_a_saved_session_whose_learned_part_is_cut_or_wrong_is_refused(model: edgedec.Model, tmp_path: Path) -> None:
    import hashlib
    import json

    first = model.session(speculate=SPEC)
    told(first, 20)
    first.save(tmp_path / "s")
    raw = (tmp_path / "s").read_bytes()

    def signed(body: bytes) -> bytes:
        return raw[:8] + hashlib.sha256(body).digest() + body

    body = raw[40:]
    size = int.from_bytes(body[:8], "little")
    wild = [signed(body[:-4]), signed(body + b"more")]
    for change in ({"shape": [-1, 8]}, {"dtype": "object"}, {"shape": [1 << 40, 8]}):
        damaged = json.loads(body[8 : 8 + size])
        learned = next(array for array in damaged["arrays"] if array["name"].startswith("learned."))
        assert {**learned, **change} != learned
        learned |= change
        text = json.dumps(damaged).encode()
        wild.append(signed(len(text).to_bytes(8, "little") + text + body[8 + size :]))
    for bad in wild:
        (tmp_path / "s").write_bytes(bad)
        with pytest.raises(SessionError):
            model.session(speculate=SPEC).load(tmp_path / "s")


def test_a_drawn_draft_goes_through_the_governor(model: edgedec.Model) -> None:
    """Rejection sampling: another text for the seed, the same each time, and drafts of a length that pays."""
    sampling = Sampling(temperature=0.8, seed=3)
    texts = []
    for _ in range(2):
        session = model.session(speculate="model:path=nano,verify=block,gamma=4,fixed=4")
        ids = model.tokenizer.encode("Once upon a time")
        texts.append(list(session.tokens(ids, max_tokens=60, sampling=sampling, ignore_eos=True)))
        assert session.stats.calls < 30  # the draft is the model itself
    assert texts[0] == texts[1]
    governed = model.session(speculate="model:path=nano,verify=block,gamma=4")
    list(governed.tokens(ids, max_tokens=60, sampling=sampling, ignore_eos=True))
    assert set(governed.report()["drafters"]) == {"model"}
