"""Biases of sequences, bad words, forced tokens, tokens that do not begin a text, a growing wish to end: in the loop,
with drafts and forks, and in every door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fusing import INF, PROMPT, law, naive, run
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.decoding.config import GenerationConfig, parse_options
from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.placed import Places, SequenceBias
from edgedec.errors import UsageError
from edgedec.sampling import Sampling, probs
from edgedec.sampling.places import decayed, longest, only, sequence_biased, without
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, RandomDrafter
from edgedec.text.breakers import word_tokens

WARM = Sampling(temperature=1.0)
Ids = Sequence[int]


def slow_bias(row: Any, ids: Ids, sequences: Any) -> Any:
    row = row.copy()
    for tokens, bias in sequences:
        if [*ids, tokens[-1]][-len(tokens) :] == list(tokens):
            row[tokens[-1]] += np.float32(bias)
    return row


def test_the_worked_example_of_sequences() -> None:
    found = sequence_biased(np.zeros(6, np.float32), [1, 2], [((3,), 1), ((2, 4), 5), ((1, 4), 7)])
    assert found.tolist() == [0, 0, 0, 1, 5, 0]
    assert longest([((3,), 1), ((2, 4), 5), ((1, 4, 2), 7)]) == 2
    assert longest([]) == 0


def test_sequences_are_the_slow_ones() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 3, rng.integers(0, 6)).tolist()
        sequences = [
            (tuple(rng.integers(0, 3, rng.integers(1, 5)).tolist()), float(rng.choice([-INF, -2.0, 0.5, 3.0])))
            for _ in range(4)
        ]
        row = rng.normal(0, 1, 3).astype(np.float32)
        assert sequence_biased(row, ids, sequences) == pytest.approx(slow_bias(row, ids, sequences), abs=1e-6)


def test_tokens_outside_the_vocabulary_change_nothing() -> None:
    row = np.zeros(3, np.float32)
    assert sequence_biased(row, [9], [((9, 7), 5.0)]) is row
    assert without(row, np.array([2, 5])).tolist() == [0, 0, -INF]
    assert decayed(row - 1, np.array([1, 5]), 4, 3, 2.0).tolist() == [-1, 0, -1]


def test_the_wish_to_end() -> None:
    row = np.array([-2.0, 3.0, -INF, 1.0], np.float32)
    ends = np.array([0, 1, 2])
    assert decayed(row, ends, 4, 4, 1.5) is row
    assert decayed(row, ends, 6, 4, 1.5).tolist() == [-2 + 2 * 1.25, 3 + 3 * 1.25, -INF, 1]
    assert np.isfinite(decayed(row, ends, 5000, 4, 1.5)[:2]).all()


def test_nothing_but_some_tokens() -> None:
    assert only(np.arange(4, dtype=np.float32), [2]).tolist() == [-INF, -INF, 0, -INF]


SETTINGS: dict[str, dict[str, Any]] = {
    "sequences": {"sequence_bias": [[[5, 2], -INF], [[2], 2.0], [[2, 2], -3.0], [[12, 8, 1], 9.0]]},
    "forced": {"forced_tokens": [4, 4, 7]},
    "last": {"forced_eos_token_id": 9},
    "not first": {"begin_suppress_tokens": [2, 0]},
    "all": {
        "sequence_bias": {(4, 1): 4.0},
        "forced_tokens": (4,),
        "forced_eos_token_id": 3,
        "begin_suppress_tokens": (4,),
    },
}


def slow(on: FakeRuntime, config: GenerationConfig, new: list[int]) -> Any:
    ids, n = [*PROMPT, *new], len(new)
    row = slow_bias(law(on, ids), ids, config.sequence_bias)
    row = np.array(row)
    forced = config.forced_tokens[n : n + 1] or (
        (config.forced_eos_token_id,) if n == 23 and config.forced_eos_token_id is not None else ()
    )
    if forced:
        row[:] = -INF
        row[forced[0]] = 0
    elif n == 0:
        row[list(config.begin_suppress_tokens)] = -INF
    return probs(row, config.sampling, ids, len(PROMPT))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(temperature=0.8, repetition_penalty=1.3, top_k=5)])
def test_a_text_is_that_of_the_rule_with_any_draft(name: str, sampling: Sampling) -> None:
    on, more = FakeRuntime(), SETTINGS[name]
    config = GenerationConfig(sampling, **more)
    wanted = naive(lambda new: slow(on, config, new), sampling.temperature == 0)
    assert run(on, (), sampling=sampling, **more) == wanted != run(on, (), sampling=sampling)
    whole = [*PROMPT, *wanted]
    for drafter in (PerfectDrafter(whole), PerfectDrafter(whole, decoys=2), RandomDrafter(1)):
        assert run(on, (), drafter, sampling, **more) == wanted


def test_a_short_text_before_a_long_sequence() -> None:
    on = FakeRuntime()
    context = Context([1, 2], 2, on.new_cache(8))
    made = SequenceBias(GenerationConfig(sequence_bias=(((1, 2, 3, 4, 5, 6), 1.0), ((1, 2, 7), 2.0))), context)
    assert made.process(np.zeros(9, np.float32), [], {}).tolist() == [0] * 7 + [2, 0]
    assert made.process(np.zeros(9, np.float32), [3, 4, 5], {}).tolist() == [0] * 6 + [1, 0, 0]


def test_a_text_a_little_shorter_than_the_longest_sequence() -> None:
    context = Context([1, 2, 3, 4], 4, FakeRuntime().new_cache(8))
    made = SequenceBias(GenerationConfig(sequence_bias=(((1, 2, 3, 4, 5, 6), 1.0), ((2, 3, 4, 7), 2.0))), context)
    assert made.process(np.zeros(9, np.float32), [], {})[7] == 2
    assert made.process(np.zeros(9, np.float32), [5], {})[6] == 1


def test_places_are_counted_by_path_and_fork() -> None:
    made: LogitsProcessor = Places(GenerationConfig(forced_tokens=(1, 2, 3)), frozenset())
    row = np.zeros(5, np.float32)
    assert [int(made.process(row, [0] * n, {}).argmax()) for n in range(3)] == [1, 2, 3]
    assert made.process(row, [0] * 3, {}) is row
    made.accept(1)
    twin = made.fork()
    twin.accept(2)
    assert [int(one.process(row, [], {}).argmax()) for one in (made, twin)] == [2, 3]
    made.reset()
    assert made.process(row, [], {}).argmax() == 1


def test_ends_grow_likelier_in_the_loop() -> None:
    on, ends = FakeRuntime(), frozenset({2, 6})
    config = GenerationConfig(WARM, exponential_decay_length_penalty=(3, 1.4), max_tokens=30)
    made = Places(config, ends)
    for n in range(8):
        row = law(on, [*PROMPT, *[1] * n])
        found = made.process(row, [1] * n, {})
        gain = 1.4 ** (n - 3) - 1 if n > 3 else 0
        expected = [x + (abs(x) * gain if t in ends else 0) for t, x in enumerate(row.tolist())]
        assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_bias": [[[], 1.0]]}, "sequence_bias: .*needs token ids"),
        ({"sequence_bias": [[[-1], 1.0]]}, "sequence_bias: .*needs token ids"),
        ({"sequence_bias": [[[1], INF]]}, "sequence_bias: .*a bias below inf"),
        ({"sequence_bias": [[[1], float("nan")]]}, "sequence_bias: .*a bias below inf"),
        ({"sequence_bias": [[1, 2]]}, r"sequence_bias: .*must be a list such as"),
        ({"bad_words": ["a", " "]}, "bad_words: .*a list of words"),
        ({"bad_words": [3]}, "bad_words: .*a list of words"),
        ({"exponential_decay_length_penalty": [3]}, r"exponential_decay_length_penalty: \[3\] is out of range"),
        ({"exponential_decay_length_penalty": [-1, 2]}, "allowed: .*from 0 on"),
        ({"exponential_decay_length_penalty": [1.5, 2]}, "allowed: .*whole number"),
        ({"exponential_decay_length_penalty": [1, 0]}, "one above 0"),
    ],
)
def test_settings_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_bias": 5}, "must be a list such as"),
        ({"sequence_bias": [[5, 1.0]]}, "must be a list of tokens, not int"),
        ({"sequence_bias": [[[5], "x"]]}, "must be a number"),
        ({"forced_tokens": 5}, "must be a list of tokens, not int"),
        ({"forced_tokens": [1.5]}, "must be a whole number"),
        ({"exponential_decay_length_penalty": 2}, "must be a list of numbers, not int"),
    ],
)
def test_values_of_other_types(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(options)


def test_a_greedy_text_with_such_rules_reads_more_than_the_largest_logit() -> None:
    assert GenerationConfig().takes_largest
    for more in SETTINGS.values():
        assert not GenerationConfig(**more).takes_largest
    for more in ({"bad_words": "x"}, {"exponential_decay_length_penalty": [1, 1.1]}):
        assert not GenerationConfig(**more).takes_largest


# --- a model ---


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def text(model: edgedec.Model, **options: Any) -> str:
    return "".join(model.session(context=128).generate("Once upon a time", max_tokens=24, **options))


def test_bad_words_do_not_come(model: edgedec.Model) -> None:
    assert "girl" in (plain := text(model))
    assert " named" in plain
    found = text(model, bad_words=["girl", " named Lily"])
    assert "girl" not in found
    assert "named Lily" not in found
    assert "named" in text(model, bad_words=[" named Lily"])  # only its last token is forbidden, after the others
    tokenizer = model.tokenizer
    assert set(word_tokens(tokenizer, [" girl"])) == {
        tuple(tokenizer.encode(word, around=False)) for word in ("girl", " girl")
    }


def test_the_doors(model: edgedec.Model, nano: Path) -> None:
    tokens = model.tokenizer.encode(" a dog", around=False)
    options = {
        "bad_words": ["girl"],
        "forced_tokens": tokens,
        "sequence_bias": [[tokens[-1:], -5.0]],
        "begin_suppress_tokens": [3],
        "exponential_decay_length_penalty": [4, 1.01],
        "forced_eos_token_id": tokens[0],
    }
    wanted = text(model, **options)
    assert wanted.startswith(" a dog")
    assert wanted.endswith(model.tokenizer.decode(tokens[:1]))
    flags = ["--bad-word", "girl", *[x for t in tokens for x in ("--forced-token", str(t))]]
    flags += ["--sequence-bias", json.dumps(options["sequence_bias"]), "--begin-suppress-token", "3"]
    flags += ["--exponential-decay-length-penalty", "[4, 1.01]", "--forced-eos-token-id", str(tokens[0])]
    common = ["run", "-m", str(nano), "-p", "Once upon a time", "-n", "24", "--no-echo", "--temp", "0", "-t", "1"]
    assert CliRunner().invoke(app, [*common, *flags]).stdout.removesuffix("\n") == wanted
    with serving(model) as (place, _):
        body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, **options}
        answer = httpx.post(f"{place}/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["text"] == wanted
        for wrong in ({"sequence_bias": [[[], 1]]}, {"sequence_bias": [[1, 2]]}, {"forced_tokens": "x"}):
            assert httpx.post(f"{place}/v1/completions", json=body | wrong, timeout=60).status_code == 400
