"""The parts that fusions are made of, by hand: second texts and their room, mixtures, hidden Markov models, formats."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusing import INF, PROMPT, Marked, companion, law

import edgedec
from edgedec.decoding.context import Context
from edgedec.errors import UsageError
from edgedec.fusion import MOST, _base, _companion, _pivots, cfg, check_fusion, search, train_hmm, value
from edgedec.fusion._base import OfCandidates, WithCompanion, likeliest, log_softmax, mixed
from edgedec.fusion._calibration import _rows
from edgedec.fusion._hmm import HMM, likelihood, train
from edgedec.fusion._hmm_training import _text
from edgedec.fusion._pivots import Pivots
from edgedec.fusion._prompt_gaps import _gaps
from edgedec.fusion._reward import command_reward
from edgedec.fusion._source import Source
from edgedec.fusion.format import Formatted, make
from edgedec.runtime import logits_of
from edgedec.runtime.call import Rows
from edgedec.testing.fakes import FakeRuntime, tiny_spec


@pytest.mark.parametrize("module", [_base, _companion, _pivots])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# ── the second text ──


def context_of(made: int, prompt: int = 5, room: int = 32) -> Context:
    return Context([*range(1, prompt + made + 1)], prompt, FakeRuntime().new_cache(room))


@pytest.mark.parametrize(
    ("of", "text", "capacity"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7], 48),
        ({"last": 2}, [4, 5, 6, 7], 48),
        ({"last": 9}, [1, 2, 3, 4, 5, 6, 7], 48),
        ({"prompt": (9, 8, 7)}, [9, 8, 7, 6, 7], 35),
        ({"prompt": (9,) * 20}, [9] * 20 + [6, 7], 48),
        ({"own": False}, [1, 2, 3, 4, 5, 6, 7], 32),
        ({"own": False, "prompt": (9, 8, 7)}, [9, 8, 7, 6, 7], 32),
    ],
)
def test_the_tokens_of_a_second_text_and_how_many_it_may_have(of: Any, text: list[int], capacity: int) -> None:
    """A prompt of 5 tokens and 2 after it, in a cache of 32; the model's longest context is 48."""
    on, context = FakeRuntime(tiny_spec(context_length=48)), context_of(2)
    source = Source(on, **of)
    if "prompt" not in of and source.own:
        capacity = 32  # no more than the text itself
    assert source.text(context) == text
    assert source.length(context) == len(text)
    assert source.capacity(context) == capacity
    one = companion(source)
    assert one.left(context) == one.room(context) == capacity - len(text)


def test_no_room_is_no_negative_one() -> None:
    one = companion(Source(FakeRuntime(tiny_spec(context_length=32)), prompt=(1,) * 20))
    assert (one.left(context_of(15)), one.room(context_of(15))) == (-3, 0)


def test_an_idle_companion_takes_no_room_and_candidates_leave_none_for_drafts() -> None:
    on, context = FakeRuntime(tiny_spec(context_length=32)), context_of(2)
    for kind, room in ((WithCompanion, 32 - 7), (OfCandidates, 0)):
        made: Any = kind(companion(Source(on)))
        assert (made.room(context), made.held(9)) == (room, 9)
        made.idle = True
        assert (made.room(context), made.held(9)) == (32, 0)


def test_the_adapter_of_a_second_text() -> None:
    context, own, other = context_of(1), Marked(), Marked()
    context.adapter = own  # type: ignore[assignment]
    source = Source(FakeRuntime(), adapter=other)  # type: ignore[arg-type]
    assert source.adapter_of(context) is own
    assert Source(FakeRuntime(), adapter=other, follows_adapter=False).adapter_of(context) is other  # type: ignore[arg-type]


# ── mixtures ──


def test_the_likeliest_that_are_allowed() -> None:
    row = np.array([1.0, 3.0, -INF, 3.0, 2.0], np.float32)
    assert likeliest(row, 3) == [1, 3, 4]
    assert likeliest(row, 5) == [1, 3, 4, 0]


def test_log_probabilities_at_a_temperature() -> None:
    row = np.log(np.array([0.5, 0.25, 0.25])).astype(np.float32)
    assert np.exp(log_softmax(row)) == pytest.approx([0.5, 0.25, 0.25])
    assert np.exp(log_softmax(row, 0.5)) == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert np.exp(log_softmax(row + 900)) == pytest.approx([0.5, 0.25, 0.25], rel=1e-4)


def test_what_one_of_two_forbids_is_as_in_the_first() -> None:
    own, other = np.array([-1.0, -INF, -2.0]), np.array([-3.0, -1.0, -INF])
    assert mixed(own, other, 2.0, -0.5).tolist() == [-0.5, -INF, -2.0]


def test_gaps_of_tokens_that_a_model_forbids_count_nothing() -> None:
    one, other = np.log([[0.5, 0.5, 1e-9]] * 3), np.log([[0.25, 0.5, 0.25]] * 3)
    other[2, 0] = -INF
    pair = one.astype(np.float32), other.astype(np.float32)
    assert _gaps(pair, [0, 1, 0]) == pytest.approx([np.log(2), 0, 0], abs=1e-6)


# ── words and makers ──


def test_so_many_fusions_are_allowed() -> None:
    assert MOST == 4
    check_fusion("+".join(["cfg"] * 4))
    with pytest.raises(UsageError, match="fuse: 5; at most 4"):
        check_fusion("+".join(["cfg"] * 5))


def host(**more: Any) -> Any:
    on = FakeRuntime()
    tokenizer = SimpleNamespace(
        encode=lambda text, around=True: [ord(c) - 97 for c in text],
        decode=lambda ids: "".join(chr(97 + i) for i in ids),
    )
    return SimpleNamespace(runtime=on, tokenizer=tokenizer, eos=frozenset({12}), spec=on.spec, **more)


def test_the_texts_of_makers() -> None:
    assert cfg.make(host()).companion.source.last == 1
    asked = cfg.make(host(), negative="cab").companion.source
    assert (asked.prompt, asked.last) == ((2, 0, 1), 0)
    made = value.make(host(), command="true", top_k=3, tokens=4)
    assert made.companion.source.extra == 3 * 5, "each token and its text"


def test_the_rows_of_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LastNorm", lambda bundle: lambda states: states)
    made = search.make(host(bundle=None), top_k=5)
    assert made.companion.source.extra == 5
    assert made._last == FakeRuntime().spec.n_blocks - 1


def test_of_a_reward_that_fails_the_last_line_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("import sys; sys.stderr.write('first\\n' + 'ab' * 200 + '\\n'); sys.exit(3)")
    with pytest.raises(UsageError) as caught:
        command_reward(f"'{sys.executable}' '{tmp_path / 'fail.py'}'", 60, "x")(["a"])
    assert str(caught.value).endswith("exit status 3 " + "ab" * 100)


# ── formats ──


def hmm(vocab: int = 13) -> HMM:
    rng = np.random.default_rng(0)
    return HMM(*(rng.dirichlet(np.ones(n), *size) for n, size in ((2, ()), (2, (2,)), (vocab, (2,)))))


@pytest.mark.parametrize(
    ("pattern", "start", "end"), [("ab*c", True, True), ("*ab*c*", False, False), ("ab*c*", True, False)]
)
def test_stars_are_free_text(tmp_path: Path, pattern: str, start: bool, end: bool) -> None:
    hmm().save(tmp_path / "a.hmm")
    made = make(host(), str(tmp_path / "a.hmm"), pattern, within=3)
    wanted = Pivots([(0, 1), (2,)], start, end, frozenset({12}))
    states = range(-1, wanted.done + 1)
    assert [made._pivots.edges(state) for state in states] == [wanted.edges(state) for state in states]
    with pytest.raises(UsageError, match="within=2: the fixed texts alone have 3 tokens"):
        make(host(), str(tmp_path / "a.hmm"), pattern, within=2)
    endless = host()
    endless.eos = frozenset()
    if end:
        with pytest.raises(UsageError, match="no end token to end with"):
            make(endless, str(tmp_path / "a.hmm"), pattern, within=3)
    else:
        make(endless, str(tmp_path / "a.hmm"), pattern, within=3)


def test_a_format_that_cannot_come_out_any_more_changes_nothing() -> None:
    row = np.zeros(13, np.float32)
    made = Formatted(hmm(), Pivots([(7, 8)], False, False, frozenset()), 3)
    assert np.flatnonzero(np.isfinite(made.process(row, [1], {}))).tolist() == [7], "with two tokens left"
    assert made.process(row, [1, 2], {}) is row, "one is left: nothing is possible"
    assert made.process(row, [1, 2, 7], {}) is row, "none is left"
    assert made.process(row, [1, 7, 8], {}) is row, "it is there, and the text is free"
    begins = Formatted(hmm(), Pivots([(7, 8)], True, False, frozenset()), 3)
    assert begins.process(row, [1], {}) is row, "another token began the text"
    ends = Formatted(hmm(), Pivots([(7, 8)], False, True, frozenset({12})), 3)
    assert np.flatnonzero(np.isfinite(ends.process(row, [1, 7, 8], {}))).tolist() == [12]


# ── hidden Markov models ──


def test_one_round_of_training_by_hand() -> None:
    """With one state a token's probability is its share, and .001 is added to each count."""
    made = train([[0, 0, 1], []], 3, states=1, rounds=1)
    shares = np.array([2.001, 1.001, 0.001]) / 3.003
    assert made.emits[0] == pytest.approx(shares, rel=1e-12)
    assert (made.first.tolist(), made.moves.tolist()) == ([1.0], [[1.0]])
    assert likelihood(made, [[0, 1], [2]]) == pytest.approx(np.log(shares).sum() / 3)
    assert likelihood(made, [[]]) == 0


def test_a_token_that_no_state_has_moves_the_state_alone() -> None:
    made = HMM(np.array([0.25, 0.75]), np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert made.after(None, 0).tolist() == [0.25, 0.75]
    assert made.after(None, 1).tolist() == [0.25, 0.75]
    assert made.after(np.array([0.5, 0.5]), 1).tolist() == [0.25, 0.75]
    sure = HMM(np.array([0.25, 0.75]), made.moves, np.array([[0.9, 0.1], [0.3, 0.7]]))
    assert sure.after(None, 0).tolist() == pytest.approx([0.5, 0.5])


def test_a_file_with_a_negative_number_is_refused(tmp_path: Path) -> None:
    made = hmm(4)
    made.moves[1, 0] *= -1
    made.save(tmp_path / "a.hmm")
    with pytest.raises(UsageError, match="no probabilities"):
        HMM.load(tmp_path / "a.hmm", 4)


def test_a_model_is_trained_on_texts_at_temperature_1_after_each_prompt_in_turn(nano: Path, tmp_path: Path) -> None:
    model = edgedec.open(nano, threads=1)
    prompts = [model.tokenizer.encode(text) for text in ("Once upon", "The dog")]
    texts = [_text(model, prompts[i % 2], 6, 3 + i) for i in range(3)]
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    for i, text in enumerate(texts):
        drawn = model.session(speculate="off").tokens(prompts[i % 2], seed=3 + i, ignore_eos=True, **options)
        assert text == [*prompts[i % 2], *drawn]
    value = train_hmm(
        model, tmp_path / "a.hmm", ["Once upon", "The dog"], texts=3, tokens=6, states=2, rounds=2, seed=3
    )
    made, wanted = HMM.load(tmp_path / "a.hmm", model.spec.vocab_size), train(texts, model.spec.vocab_size, 2, 2, 3)
    assert np.array_equal(made.emits, wanted.emits)
    assert value == likelihood(wanted, texts)


def test_calibration_reads_a_text_in_parts() -> None:
    on, ids = FakeRuntime(prefill_chunk=4), [*PROMPT, 9, 2, 6, 5, 3, 5]
    logits, right = _rows(SimpleNamespace(runtime=on, spec=on.spec), ids)  # type: ignore[arg-type]
    whole = FakeRuntime()
    wanted = logits_of(whole, Rows.chain(ids, 0), whole.new_cache(64))[:-1]
    assert np.array_equal(logits, wanted)
    assert right.tolist() == [int(law(whole, ids[: i + 1]).argmax()) == ids[i + 1] for i in range(len(ids) - 1)]
    assert on.calls == 3
