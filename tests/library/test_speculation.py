"""Drafts in libedgedec are lossless: the same tokens, and the same bytes of the cache, greedy and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clibrary import c, library_runs, opened

from edgedec.cache.snapshot import MAGIC
from edgedec.errors import SessionError
from edgedec.storage.arrays import read_arrays
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

# A text that comes again, so that there is something to copy.
TOLD = [12, 375, 278, 259, 350, 369, 444, 342, 14, 307, 440, 265, 335, 325, 299, 482, 266, 684, 489, 569, 14] * 3
DRAWN = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.05}


def saved(session: Any, file: Path) -> Any:
    """Text, random state and the bytes of the cache."""
    session.save(str(file))
    read = read_arrays(file, MAGIC, "a session", SessionError)
    return read.header, read.arrays["cache.state"].tobytes()


def compared(model: Any, drafting: Any, tmp_path: Path, prompt: list[int], **options: Any) -> Any:
    """The result of a generation with drafts, which was compared with one without."""
    plain = model.session()
    for session in (plain, drafting):
        session.generate(prompt, max_tokens=60, **{"seed": 1} | options)
    assert drafting.ids == plain.ids
    assert drafting.finish == plain.finish
    assert saved(drafting, tmp_path / "a") == saved(plain, tmp_path / "b")
    return drafting.result


@pytest.mark.parametrize("drafter", ["copy", "suffix", "recycling", "trigram", "auto"])
@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
@pytest.mark.parametrize("fixed", [0, 6])
def test_the_same_text(nano: Path, tmp_path: Path, drafter: str, kv: str, fixed: int) -> None:
    model = opened(nano, kv=kv.encode())
    drafting = model.session(speculate=drafter.encode(), draft=fixed)
    for options in ({}, DRAWN | {"seed": 7}, {"logprobs": 2, "min_tokens": 30}):
        result = compared(model, drafting, tmp_path, TOLD, **options)
        if fixed:
            assert result.drafted > 0
            assert result.generated > result.calls or drafter == "trigram", "some of them were right"


@pytest.mark.parametrize("name", [name for name in MODELS if library_runs(MODELS[name])])
def test_every_kind_of_block(name: str, tmp_path: Path) -> None:
    """Recurrent states and windows follow the accepted path of a tree."""
    write_bundle(tmp_path / "m", MODELS[name], random_weights(MODELS[name]))
    model = opened(tmp_path / "m", threads=2)
    drafted = accepted = 0
    for seed in range(3):
        session = model.session(speculate=b"auto", draft=5)
        result = compared(model, session, tmp_path, [7, 8, 9, 10] * 5, seed=seed, temperature=0.3 * seed)
        drafted, accepted = drafted + result.drafted, accepted + result.accepted
        twin = session.fork()
        assert twin.generate(None, max_tokens=10, temperature=0.5) == session.generate(
            None, max_tokens=10, temperature=0.5
        )
    assert drafted
    assert accepted


def test_ends_inside_of_drafts(nano: Path, tmp_path: Path) -> None:
    """Stop tokens, the callback, max_tokens and a sliding context within an accepted path."""
    model = opened(nano)
    whole = model.session().generate(TOLD, max_tokens=60)
    seen = 0
    for at in range(1, 40, 3):
        drafting = model.session(speculate=b"copy+recycling", draft=8)
        seen += compared(model, drafting, tmp_path, TOLD, stop_tokens=[whole[at]]).accepted
        plain, session = model.session(), model.session(speculate=b"copy+recycling", draft=8)
        for each in (plain, session):
            count = iter(range(99))
            each.generate(TOLD, lambda t, count=count, at=at: next(count) == at, seed=1)  # type: ignore[misc]
        assert saved(session, tmp_path / "a") == saved(plain, tmp_path / "b")
        short, other = (
            model.session(context=70, sinks=4),
            model.session(context=70, sinks=4, speculate=b"auto", draft=4),
        )
        told = [each.generate(TOLD, max_tokens=at + 20, ignore_eos=1) for each in (short, other)]
        assert told[0] == told[1]
        assert len(told[0]) == at + 20
        assert short.ids == other.ids
    assert seen > 20


def test_drafts_that_do_not_pay_end(nano: Path) -> None:
    """nano's calls are so short that few rows pay for long; the text is never held up by much."""
    model = opened(nano)
    session = model.session(speculate=b"auto")
    session.generate([5, 6], max_tokens=400, temperature=8.0, seed=1, ignore_eos=1)
    random_text = session.result
    assert random_text.drafted < 400
    session.generate(TOLD * 6, max_tokens=200, ignore_eos=1)
    assert session.result.drafted >= 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculate": b"eagle"}, "eagle"),
        ({"speculate": b"copy+"}, "speculate"),
        ({"speculate": b"copy", "draft": 65}, "draft"),
    ],
)
def test_names(nano: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(c.EdgedecFailure, match=words) as caught:
        opened(nano).session(**options)
    assert caught.value.status == "usage"
