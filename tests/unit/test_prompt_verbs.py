"""A session's verbs, and sessions side by side: the text is what was written down, as one would write it by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec import constraints
from edgedec.errors import UsageError
from edgedec.prompting import gen_each
from edgedec.verbs import written

START = "Once upon a time there was a"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def text_of(session: edgedec.Session) -> str:
    return session.model.tokenizer.decode(session.ids)


def test_verbs_one_after_the_other(model: edgedec.Model) -> None:
    session = model.session().extend(START)
    kind = session.select([" rock", " little girl", " of"])
    rest = session.extend(" who").gen(6, temperature=0)
    assert kind == " little girl"
    assert text_of(session) == START + kind + " who" + rest
    by_hand = model.session()
    ids = model.tokenizer.encode(START)
    for part in (kind, " who"):
        ids += model.tokenizer.encode(part, around=False)
    assert rest == "".join(by_hand.generate(ids, max_tokens=6, temperature=0))


def test_extending_begins_a_text_once(model: edgedec.Model) -> None:
    encode = model.tokenizer.encode
    session = model.session().extend("Once").extend(" upon").extend([5, 6])
    assert session.ids == [*encode("Once"), *encode(" upon", around=False), 5, 6]
    assert encode("Once") != encode("Once", around=False)  # nano's texts begin with a token of their own


def test_a_stop_string_is_no_part_of_the_text(model: edgedec.Model) -> None:
    """Neither are tokens that begin it: the next verb may go on with something else."""
    session = model.session().extend(START)
    whole = "".join(session.fork().generate(None, max_tokens=30, temperature=0))
    for stop in (".", whole[9:12], whole[-6:-3]):
        fork = session.fork()
        told = fork.gen(30, stop, temperature=0)
        assert told == whole[: whole.index(stop)]
        assert text_of(fork) == START + told
        assert fork.finish_reason == "stop"
        fork.extend("!")
        assert text_of(fork) == START + told + "!"
        assert fork.score(" He") == model.session().extend(fork.ids).score(" He")


def test_without_a_stop_string_all_tokens_stay(model: edgedec.Model) -> None:
    session = model.session().extend(START)
    before = len(session.ids)
    session.gen(7, stop="no such text", temperature=0)
    assert len(session.ids) == before + 7


def test_what_was_written_is_spelt_anew_at_a_cut_token(model: edgedec.Model) -> None:
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    before, made = encode("A"), encode(" big red house by the sea", around=False)
    for text in (" big red house", " big red ho", "", " big red house by the sea", " big"):
        kept = written(model.tokenizer, before, made, text)
        assert decode([*before, *kept]) == decode(before) + text
        same = next((i for i, (a, b) in enumerate(zip(kept, made, strict=False)) if a != b), len(kept))
        assert len(decode(made[:same])) <= len(text)
        assert decode(made[: same + 1]) != text[: len(decode(made[: same + 1]))] or same == len(kept)


def test_scores_of_text(model: edgedec.Model) -> None:
    session = model.session().extend(START)
    assert session.score(" little girl") == session.score(model.tokenizer.encode(" little girl", around=False))
    assert sum(session.score(" little")) > sum(session.score(" rock"))


def test_sessions_side_by_side_write_what_each_would_alone(model: edgedec.Model) -> None:
    root = model.session().extend(START)
    forks = [root.fork().extend(word) for word in (" dog", " cat who", " man", " big")]
    alone = [fork.fork().gen(20, ".", temperature=0) for fork in forks]
    assert gen_each(forks, 20, ".", temperature=0) == alone
    assert len(set(alone)) > 1
    for fork, text in zip(forks, alone, strict=True):
        assert text_of(fork).endswith(text)
        assert "." not in text_of(fork)
        assert fork.finish_reason == "stop"


def test_seeds_side_by_side_are_in_a_row(model: edgedec.Model) -> None:
    root = model.session().extend(START)
    alone = [root.fork().gen(8, temperature=1.0, seed=3 + i) for i in range(3)]
    assert gen_each([root.fork() for _ in range(3)], 8, temperature=1.0, seed=3) == alone
    assert len(set(alone)) > 1


def test_a_constraint_side_by_side_is_one_for_each(model: edgedec.Model) -> None:
    span = constraints.span(model, "a red house and a blue sea")
    root = model.session().extend(START)
    texts = gen_each([root.fork().extend(word) for word in (" red", " blue")], 5, temperature=0, constraint=span)
    assert all(text in "a red house and a blue sea" for text in texts)


def test_sessions_of_two_models_are_refused(model: edgedec.Model, nano: Path) -> None:
    other = edgedec.open(nano, threads=1)
    with pytest.raises(UsageError, match="sessions of several models"):
        gen_each([model.session().extend("a"), other.session().extend("a")], 4)
    assert gen_each([], 4) == []
    with pytest.raises(UsageError, match="nothing to continue"):
        gen_each([model.session()], 4)
