"""Fusions that choose among a few candidates: contrastive search and guidance by a value, against naive ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusing import PROMPT, Marked, companion, law, naive, run

from edgedec.errors import UsageError
from edgedec.fusion._reward import command_reward
from edgedec.fusion._source import Source
from edgedec.fusion.search import Unlike
from edgedec.fusion.value import Value
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.sampling import Probs, Sampling, distribution
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, random_reference

WARM = Sampling(temperature=0.8)


def softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def of_scores(scores: dict[int, float], vocab: int, sampling: Sampling) -> Probs:
    row = np.full(vocab, -np.inf, np.float32)
    row[list(scores)] = list(scores.values())
    return distribution(row, sampling)


# --- contrastive search ---


def states(on: Any, ids: Sequence[int]) -> Any:
    last = on.spec.n_blocks - 1
    call = Call(Rows.chain(list(ids), 0), on.new_cache(128), outputs=Outputs(hidden=(last,)))
    found = forward_one(on, call).hidden[last]
    return 3 * found / np.linalg.norm(found * SCALE, axis=1, keepdims=True) * SCALE


SCALE = np.linspace(0.5, 2, 16).astype(np.float32)


def norm(x: Any) -> Any:
    return x * SCALE


def slow_search(on: Any, new: list[int], alpha: float, k: int) -> dict[int, float]:
    ids = [*PROMPT, *new]
    p = softmax(law(on, ids))
    found = {}
    for token in np.argsort(-p, kind="stable")[:k].tolist():
        unit = states(on, [*ids, token])
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        found[token] = float((1 - alpha) * p[token] - alpha * (unit[:-1] @ unit[-1]).max())
    return found


@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), (0.3, 2), (0.9, 13)])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "drawn"])
def test_contrastive_search_is_the_naive_one(alpha: float, k: int, sampling: Sampling) -> None:
    on = random_reference()
    last = on.spec.n_blocks - 1

    def made() -> Unlike:
        return Unlike(companion(Source(on, extra=k)), alpha, k, last, norm)

    wanted = naive(lambda new: of_scores(slow_search(on, new, alpha, k), 13, sampling), sampling.temperature == 0, n=16)
    one = made()
    assert run(on, [one], sampling=sampling, n=16) == wanted
    assert run(on, [made()], PerfectDrafter([*PROMPT, *wanted]), sampling, n=16) == wanted  # and no draft is used
    if sampling.temperature == 0:
        assert wanted != run(on, (), n=16)
    one.reset()
    assert run(on, [one], sampling=sampling, n=16) == wanted
    twin = one.fork()
    twin.reset()
    assert run(on, [twin], sampling=sampling, n=16) == wanted


def test_without_a_penalty_it_is_plain() -> None:
    on, plain = FakeRuntime(), FakeRuntime()
    made = Unlike(companion(Source(on)), 0.0, 4, on.spec.n_blocks - 1, norm)
    assert run(on, [made], sampling=WARM) == run(plain, (), sampling=WARM)
    assert on.rows == plain.rows
    drafter = PerfectDrafter([*PROMPT, *run(plain, ())])
    assert run(on, [made], drafter) == run(plain, ())


# --- a value ---


def reward(texts: Sequence[Sequence[int]]) -> list[float]:
    """Likes even tokens, the late ones most."""
    return [sum((i + 1) * (1 if token % 2 == 0 else -1) for i, token in enumerate(ids[5:])) / 20 for ids in texts]


def other_reward(texts: Sequence[Sequence[int]]) -> list[float]:
    return [sum(token > 6 for token in ids) / len(ids) for ids in texts]


def slow_value(on: FakeRuntime, base: Any, new: list[int], k: int, n: int, both: bool, ends: set[int]) -> Any:
    ids = [*PROMPT, *new]
    z, found = law(on, ids), {}
    for token in np.argsort(-z, kind="stable")[:k].tolist():
        text = [*ids, token]
        for _ in range(n):
            if text[-1] in ends:
                break
            text.append(int(base(text).argmax()))
        (r,), (r1,) = reward([text]), other_reward([text])
        found[token] = float(z[token] + 2.0 * (r * np.exp((r - r1) / 2) if both else r))
    return found


@pytest.mark.parametrize("both", [False, True], ids=["direct", "indirect"])
@pytest.mark.parametrize(("k", "n"), [(10, 3), (4, 0), (13, 5)])
@pytest.mark.parametrize("base", ["own", "adapter", "bundle"])
def test_a_value_is_the_naive_one(base: str, k: int, n: int, both: bool) -> None:
    on, second, ends = FakeRuntime(), FakeRuntime(seed=9), {4, 11}
    sources: dict[str, Any] = {
        "own": (Source(on, extra=100), lambda ids: law(on, ids)),
        "adapter": (
            Source(on, adapter=Marked(), follows_adapter=False, extra=100),
            lambda ids: law(on, ids, Marked()),
        ),
        "bundle": (Source(second, own=False, extra=100), lambda ids: law(second, ids)),
    }
    source, after = sources[base]
    rewards = [reward, other_reward] if both else [reward]

    def wanted_of(sampling: Sampling) -> list[int]:
        return naive(
            lambda new: of_scores(slow_value(on, after, new, k, n, both, ends), 13, sampling),
            sampling.temperature == 0,
            n=8,
        )

    for sampling in (Sampling(), WARM):
        wanted = wanted_of(sampling)
        found = run(on, [Value(companion(source), rewards, 2.0, k, n, frozenset(ends))], sampling=sampling, n=8)
        assert found == wanted
        assert found != run(on, (), sampling=sampling, n=8)


def test_a_value_raises_the_reward_and_its_rows_run_together() -> None:
    on = FakeRuntime()
    made = Value(companion(Source(on, extra=100)), [reward], 5.0, 10, 4)
    on.forwards.clear()
    run(on, [made], n=6)
    assert on.forwards == [2, 1, 1, 1, 1] * 6
    strong = Value(companion(Source(on, extra=100)), [reward], 1000.0, 13, 0)
    assert {token % 2 for token in run(on, [strong])} == {0} < {token % 2 for token in run(on, ())}


def test_rollouts_end_with_the_context() -> None:
    on = FakeRuntime()
    made = Value(companion(Source(on, extra=200)), [reward], 5.0, 4, 20)
    assert len(run(on, [made], n=29, prompt=[1] * 100)) == 29


def test_a_weight_of_nothing_is_plain() -> None:
    on, plain = FakeRuntime(), FakeRuntime()
    idle = Value(companion(Source(on)), [reward], 0.0, 10, 20)
    assert run(on, [idle], sampling=WARM) == run(plain, (), sampling=WARM)
    assert on.rows == plain.rows


@pytest.mark.parametrize("values", [[1.0], [float("nan")] * 4, [float("inf")] * 4, [1.0, float("nan"), 2.0, 3.0]])
def test_a_reward_that_answers_nonsense_is_named(values: list[float]) -> None:
    on = FakeRuntime()
    with pytest.raises(UsageError, match=r"fuse value: the reward gave .*need a finite number for each text"):
        run(on, [Value(companion(Source(on, extra=50)), [lambda texts: values], 1.0, 4, 1)])


# --- a program as reward ---


def program(tmp_path: Path, text: str) -> str:
    (tmp_path / "reward.py").write_text(text, "utf-8")
    return f"'{sys.executable}' '{tmp_path / 'reward.py'}'"


def test_a_program_gets_lines_and_gives_numbers(tmp_path: Path) -> None:
    words = program(tmp_path, "import sys, json\nfor line in sys.stdin: print(len(json.loads(line)['text']))\n")
    assert command_reward(words, 60, "x")(["abc", "d\ne", ""]) == [3.0, 3.0, 0.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print(1)", "need 2 lines, a number on each"),
        ("print('one'); print('two')", "printed 'one.*need 2 lines"),
        ("raise SystemExit('it broke')", "exit status 1 it broke"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ],
)
def test_a_program_that_fails_is_named(tmp_path: Path, text: str, message: str) -> None:
    seconds = 1 if "sleep" in text else 60
    with pytest.raises(UsageError, match=f"fuse value: command .*{message}"):
        command_reward(program(tmp_path, text), seconds, "fuse value")(["a", "b"])


@pytest.mark.parametrize("words", ["", "'open", "/no/such/program"])
def test_a_program_that_is_none(words: str) -> None:
    with pytest.raises(UsageError, match="fuse value: command"):
        command_reward(words, 60, "fuse value")(["a"])
