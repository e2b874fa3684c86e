"""What a single pass can and cannot do, in closed form (ParallelBench's case studies): a model that knows the answers
exactly writes a copy always, a random order of n names in n!/n^n of the cases, a random replacement in (1 - 1/n)^(n-1);
one token a pass is always right."""

from __future__ import annotations

from itertools import permutations
from math import factorial
from typing import Any

import pytest
from diffusion.texts import decode

from edgedec.bench.list_tasks import ListTask, written
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.testing.joint import JointRuntime

NAMES, NEW = ("Amy", "Ben", "Kim", "Tom"), "Zoe"
DRAWS, FEW = 1200, 100  # FEW: where every one is right


def answers(kind: str, n: int) -> tuple[ListTask, dict[tuple[int, ...], float]]:
    """A task, and all texts that answer it, each as likely; a name is the token of its place, the new one n."""
    given = tuple(range(n))
    found = {
        "copy": [given],
        "shuffle": list(permutations(given)),
        "replace_random": [(*given[:i], n, *given[i + 1 :]) for i in range(n)],
    }[kind]
    names = [*NAMES[:n], NEW]
    task = ListTask(kind, "", tuple(NAMES[:n]), tuple(names[t] for t in found[-1]))
    return task, dict.fromkeys(found, 1 / len(found))


def share(kind: str, n: int, words: str, draws: int = DRAWS) -> float:
    task, texts = answers(kind, n)
    runtime, facts = JointRuntime(texts, n + 3, n + 2), DiffusionFacts(n + 2, False, "causal", n)
    names, right = [*NAMES[:n], NEW, "nobody"], 0
    for seed in range(draws):
        told, counts, _ = decode(runtime, facts, [0], words, seed=seed, max_tokens=n, temperature=1.0)
        assert counts.passes == (1 if words == "steps=1" else n)
        text = written([names[int(token)] for token in told])
        right += task.right(text) or (kind == "shuffle" and text == written(task.given))
    return right / draws


LAWS: dict[str, Any] = {
    "copy": lambda n: 1.0,
    "shuffle": lambda n: factorial(n) / n**n,
    "replace_random": lambda n: (1 - 1 / n) ** (n - 1),
}


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("kind", LAWS)
def test_a_single_pass(kind: str, n: int) -> None:
    law = LAWS[kind](n)
    found = share(kind, n, "steps=1", FEW if law == 1 else DRAWS)
    assert abs(found - law) <= 3.5 * (law * (1 - law) / DRAWS) ** 0.5
    assert {("shuffle", 3): 0.2222, ("shuffle", 4): 0.0938, ("replace_random", 3): 0.4444}.get(
        (kind, n), round(law, 4)
    ) == round(law, 4)


@pytest.mark.parametrize("kind", LAWS)
def test_one_token_a_pass_is_always_right(kind: str) -> None:
    assert share(kind, 3, "schedule=static", FEW) == 1.0
