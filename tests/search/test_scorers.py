"""Scorers of texts by hand: likelihoods, functions, programs, tests in the sandbox, vectors of a bundle."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from search.laws import Letters

from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.search import _tests_guest as guest
from edgedec.search import testing
from edgedec.search.command import CommandScorer
from edgedec.search.encoding import ByVectors, mean_state
from edgedec.search.scoring import ByFunction, ByLikelihood
from edgedec.testing.fakes import random_reference


def test_likelihoods_of_texts() -> None:
    def value(mean: bool, logp: float, length: int) -> float:
        branch: Any = SimpleNamespace(logp=logp, length=length)
        return ByLikelihood(mean).score("", "", branch).value

    assert [value(True, -6.0, 4), value(False, -6.0, 4), value(True, -6.0, 0)] == [-1.5, -6.0, -6.0]


def test_what_a_function_raises_is_cut() -> None:
    def scorer(prompt: str, text: str) -> float:
        raise ValueError("ab\n " * 100)

    with pytest.raises(UsageError) as caught:
        ByFunction(scorer).score("", "", None)  # type: ignore[arg-type]
    assert str(caught.value) == "the scorer raised ValueError: " + ("ab " * 67)[:200]


def program(code: str) -> str:
    return json.dumps(sys.executable) + " -c " + json.dumps(code)


def test_a_line_of_a_command_has_an_end() -> None:
    scorer = CommandScorer(program("input(); print('[' + ' ' * (1 << 20) + '1]', flush=True); input()"), 60)
    try:
        with pytest.raises(UsageError, match="must be a line of JSON"):
            scorer.ask({})
    finally:
        scorer.close()
    scorer = CommandScorer(program("input(); print('[' + ' ' * (1 << 19) + '1]', flush=True); input()"), 60)
    try:
        assert scorer.ask({}) == [1]
    finally:
        scorer.close()


def test_of_a_commands_last_words_the_beginning_is_quoted() -> None:
    scorer = CommandScorer(program("import sys; sys.stderr.write('no\\n' + 'ab' * 300 + '\\n \\n'); sys.exit(2)"), 60)
    with pytest.raises(UsageError) as caught:
        scorer.ask({})
    assert str(caught.value).endswith(f"ended with status 2 before it answered ({'ab' * 100})")


def test_tests_say_how_many_pass_and_what_the_first_failure_is() -> None:
    def said(program: str, *tests: str) -> tuple[int, str]:
        reply, rest = guest.handle({"program": program, "tests": tests}, b"")
        assert rest == b""
        return reply["passed"], reply["said"]

    assert said("x = 2", "assert x == 2", "assert x > 1") == (2, "")
    assert said("x = 2", "assert x == 3, 'a'", "assert x == 2", "assert x == 4, 'b'") == (
        1,
        "assert x == 3, 'a': AssertionError a",
    )
    assert said("x = 1 / 0", "assert True") == (0, "ZeroDivisionError division by zero")
    assert said("raise ValueError('ab ' * 400)") == (0, ("ValueError " + "ab " * 70)[:200])
    long = "assert 0, 'c' " + " " * 90 + "# and so on"
    assert said("", long) == (0, f"{long[:100]}: AssertionError c")


def test_the_patience_with_a_program_grows_with_its_time() -> None:
    limits = testing._sandbox(2.0).limits
    assert (limits.seconds, limits.patience) == (2.0, 50.0)


# ── vectors ──


def test_the_vector_of_a_text_is_the_mean_of_its_states() -> None:
    runtime, ids = random_reference(seed=3), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    last, short = runtime.spec.n_blocks - 1, replace(runtime.capabilities, prefill_chunk=4)
    call = Call(Rows.chain(ids, 0), runtime.new_cache(16), outputs=Outputs(hidden=(last,)))
    mean = forward_one(runtime, call).hidden[last].astype(np.float64).mean(0)
    runtime.capabilities = short  # three calls
    assert mean_state(runtime, ids) == pytest.approx(mean / np.linalg.norm(mean), rel=1e-4, abs=1e-6)
    assert not mean_state(runtime, []).any()


def test_texts_are_scored_by_the_product_of_vectors() -> None:
    runtime: Any = random_reference(seed=3)
    scorer, branch = ByVectors(runtime, Letters()), Any  # type: ignore[arg-type]
    for n, (prompt, text) in enumerate([("abc", "bca"), ("abc", "ddd"), ("cb", "a")]):
        own, other = (mean_state(runtime, Letters().encode(one)) for one in (prompt, text))
        assert scorer.score(prompt, text, branch).value == pytest.approx(float(own @ other))  # type: ignore[arg-type]
        assert scorer.encoded == (2, 3, 5)[n], "a prompt is encoded once"
    most = runtime.spec.context_length
    scorer.score("a", "b" * (most + 5), branch)  # type: ignore[arg-type]
