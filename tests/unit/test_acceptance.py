"""The acceptance head (SpecDec++): it learns, is kept, changes no text, and beats every fixed length."""

from __future__ import annotations

from copy import deepcopy
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut import first_layers
from drafting import run

import edgedec
from edgedec.drafters._models import acceptance
from edgedec.drafters._models.acceptance import AcceptanceHead
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import CallResult
from edgedec.testing.fakes import FakeRuntime, tiny_spec

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


def result(rng: np.random.Generator, kind: float) -> CallResult:
    """Outputs of a draft model whose first hidden channels say whether it is right."""
    state = rng.standard_normal((1, 96)).astype(np.float32)
    state[:, :8] = 2 * kind
    scores = np.sort(rng.standard_normal((1, 16)).astype(np.float32))[:, ::-1]
    return CallResult(ids=np.arange(16, dtype=np.int32)[None], scores=scores, hidden={3: state})


def test_it_learns_from_the_hidden_state_what_claims_do_not_say() -> None:
    head, rng = AcceptanceHead(96), np.random.default_rng(1)
    first = head.inputs(result(rng, 1.0), 0)
    assert head.chance(first, 0.6) == pytest.approx(0.6)  # nothing learned yet
    for node in range(1500):
        right = bool(rng.random() < 0.5)
        head.hold({node: (head.inputs(result(rng, 1.0 if right else -1.0), node % 4), 0.6)})
        head.learn(node, right)
    assert head.examples == 1500
    good, bad = (
        np.mean([head.chance(head.inputs(result(rng, kind), 1), 0.6) for _ in range(50)]) for kind in (1.0, -1.0)
    )
    assert good > 0.8
    assert bad < 0.3


def test_what_it_reads_of_a_row() -> None:
    """64 numbers of a projection of the state over its root mean square; the two best, the log of the best, its lead,
    the entropy and an eighth of the last log, of a softmax of the scores; one of ten depths."""
    head, rng = AcceptanceHead(6), np.random.default_rng(4)
    state, scores = rng.standard_normal((2, 6)).astype(np.float32) * 3, [2.5, 1.0, 0.5, -50.0]
    given = CallResult(scores=np.array([scores], np.float32), hidden={3: state})
    total = sum(exp(x) for x in scores)
    p = [exp(x) / total for x in scores]
    logs = [log(max(x, 1e-9)) for x in p]
    shape = [p[0], p[1], logs[0], 1.5, -sum(x * y for x, y in zip(p, logs, strict=True)), logs[3] / 8]
    for depth, place in ((0, 0), (3, 3), (9, 9), (25, 9)):
        found = head.inputs(given, depth)
        assert found.shape == (80,)
        assert found[64:70] == pytest.approx(shape, rel=1e-5)
        assert found[70:].tolist() == [float(i == place) for i in range(10)]
        projected = np.random.default_rng(0).standard_normal((6, 64)) / 6**0.5
        assert found[:64] == pytest.approx(state[1] @ projected / np.sqrt(np.mean(state[1] ** 2)), rel=1e-3, abs=1e-5)
    alone = head.inputs(CallResult(scores=np.ones((1, 1), np.float32), hidden={3: state}), 2)
    assert alone[64:].tolist() == [0.0] * 6 + [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


Example = tuple[Any, float, bool]


def slopes(w: dict[str, Any], some: list[Example]) -> dict[str, Any]:
    """The gradient of the mean cross-entropy by differences: each weight is moved a little, both ways."""
    x, claims = np.array([e[0] for e in some], np.float64), np.array([log(e[1] / (1 - e[1])) for e in some])
    right = np.array([e[2] for e in some])
    before = x @ w["w1"].T + w["b1"]
    score, h = claims + np.tanh(before) @ w["w2"], 1e-5

    def loss(moved: Any) -> Any:
        """moved [examples, weights ...]: how much the score moves."""
        at = score.reshape(-1, *[1] * (moved.ndim - 1)) + moved
        return np.logaddexp(0, np.where(right.reshape(at.shape[:1] + (1,) * (at.ndim - 1)), -at, at)).mean(0)

    def by(moves: Any) -> Any:
        return (loss(moves(h)) - loss(moves(-h))) / (2 * h)

    hidden = np.tanh(before)
    return {
        "w1": by(
            lambda h: w["w2"][None, :, None] * (np.tanh(before[:, :, None] + h * x[:, None, :]) - hidden[:, :, None])
        ),
        "b1": by(lambda h: w["w2"] * (np.tanh(before + h) - hidden)),
        "w2": by(lambda h: h * hidden),
    }


def test_it_learns_by_adam_from_batches_of_the_latest_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW (rates 0.001, 0.9, 0.99, decay 0.1) on 64 of the latest examples, after every second one from the 64th on;
    of 70 examples the first four have made room for the last."""
    monkeypatch.setattr(acceptance, "_KEPT", 66)
    head, rng = AcceptanceHead(6), np.random.default_rng(2)
    w = {name[7:]: np.array(array, np.float64) for name, array in head.state().items()}
    draws, kept, steps = deepcopy(head._rng), dict[int, Example](), 0
    moments = {name: [np.zeros_like(array), np.zeros_like(array)] for name, array in w.items()}
    for i in range(70):
        example = rng.standard_normal(80).astype(np.float32), float(rng.uniform(0.1, 0.9)), bool(rng.integers(0, 2))
        head.hold({7: (example[0], example[1]), 8: (example[0] * 0, 0.5)})
        head.learn(7, example[2])
        head.learn(7, not example[2])  # learned from once
        head.learn(9, True)
        kept[i % 66] = example
        if i + 1 < 64 or i % 2 == 0:
            continue
        steps += 1
        some = [kept[j] for j in draws.integers(0, min(i + 1, 66), 64).tolist()]
        for name, slope in slopes(w, some).items():
            mean, square = moments[name] = [
                moments[name][0] * 0.9 + 0.1 * slope,
                moments[name][1] * 0.99 + 0.01 * slope**2,
            ]
            rate = 0.001 * np.sqrt(1 - 0.99**steps) / (1 - 0.9**steps)  # as in section 2 of Adam's paper
            w[name] = w[name] - rate * mean / (np.sqrt(square) + 1e-8) - 0.001 * 0.1 * w[name]
    assert head.examples == 70
    assert steps == 4
    for name, array in head.state().items():
        assert np.abs(array - w[name[7:]]).max() < 2e-5, name
    assert np.abs(w["w2"]).min() > 1e-4
    x = rng.standard_normal(80).astype(np.float32)
    score = log(0.3 / 0.7) + w["w2"] @ np.tanh(w["w1"] @ x + w["b1"])
    assert head.chance(x, 0.3) == pytest.approx(1 / (1 + exp(-score)), rel=1e-4)


def test_no_token_is_sure() -> None:
    """Claims and chances lie between 0.01 and 0.99."""
    head = AcceptanceHead(6)
    assert head.state()["accept.w1"].std() == pytest.approx(80**-0.5, rel=0.05)  # inputs of 1 give activations of 1
    x = np.zeros(80, np.float32)
    assert [head.chance(x, claim) for claim in (0.0, 0.005, 0.02, 0.98, 1.0)] == pytest.approx(
        [0.01, 0.01, 0.02, 0.98, 0.99]
    )
    state: dict[str, Any] = head.state()
    head.restore(state | {"accept.b1": np.ones(32, np.float32), "accept.w2": np.full(32, 9, np.float32)})
    assert head.chance(x, 0.5) == 0.99
    head.restore(state | {"accept.b1": np.ones(32, np.float32), "accept.w2": np.full(32, -9, np.float32)})
    assert head.chance(x, 0.5) == 0.01


def test_what_it_learned_is_kept_and_that_of_another_model_refused() -> None:
    head, rng = AcceptanceHead(96), np.random.default_rng(1)
    for _ in range(200):
        head.hold({0: (head.inputs(result(rng, 1.0), 0), 0.5)})
        head.learn(0, accepted=True)
    twin = AcceptanceHead(96)
    twin.restore(head.state())
    x = head.inputs(result(rng, 1.0), 2)
    assert twin.chance(x, 0.5) == head.chance(x, 0.5) > 0.6
    for broken in (
        {},
        {**head.state(), "accept.w2": np.zeros(3)},
        {**head.state(), "accept.b1": np.array([np.nan, *[0] * 31])},
    ):
        with pytest.raises(UsageError, match=r"accept\."):
            twin.restore(broken)


def test_the_text_is_that_of_plain_decoding() -> None:
    from edgedec.drafters.model import ModelDrafter

    def fake(seed: int = 0) -> FakeRuntime:
        return FakeRuntime(tiny_spec(context_length=256), seed=seed, spread=6.0)

    drafter = ModelDrafter(fake(), 13, 5, accept="head", stop=0.9)
    tokens, _, stats, _ = run(fake(), drafter, max_tokens=120)
    assert tokens == run(fake(), Off(), max_tokens=120)[0]
    assert stats.accepted > 10
    assert drafter.report()["examples"] > 60


STEP = 0.15  # of the cost of a call


@needs_native
def test_it_beats_every_fixed_length(nano: Path, tmp_path: Path) -> None:
    """On nano with its first layers as draft model: tokens for the cost of a call, a step of the draft model costing
    0.15 of one, on prompts that come after those it learned from."""
    small = first_layers(nano, tmp_path / "small", 4)
    model = edgedec.open("nano", engine="native", threads=1)
    who, what = ("a girl", "a dog", "a bird", "Tom", "Lily"), ("found a", "went to", "was very", "saw")
    learned = [
        f"{start} {a} {b}" for start in ("Once upon a time", "One day,", "In a big house") for a in who for b in what
    ]
    held = [
        "Tom and his robot wanted to bake",
        "Sara was sad because",
        "Ben and Mia went to the park.",
        "The rabbit was",
    ]

    def worth(options: str, lessons: int = 0) -> float:
        live, tokens, calls = model.session(speculate=f"model:path={small},fixed=10,{options}"), 0, 0
        for prompt in learned[:lessons]:
            list(live.tokens(model.tokenizer.encode(prompt), max_tokens=100, ignore_eos=True))
        before = live.report()["drafters"]["model"]["steps"]
        for prompt in held:
            list(live.tokens(model.tokenizer.encode(prompt), max_tokens=100, ignore_eos=True))
            tokens, calls = tokens + live.stats.generated, calls + live.stats.calls
        return tokens / (calls + STEP * (live.report()["drafters"]["model"]["steps"] - before))

    fixed = [worth(f"gamma={n}") for n in range(1, 5)]
    assert worth("gamma=10,stop=0.5,accept=head", 60) > 1.03 * max(fixed)


@pytest.mark.parametrize("options", ["accept=x", "stop=1", "stop=-0.1"])
def test_a_wrong_option_is_refused(nano: Path, options: str) -> None:
    with pytest.raises(UsageError, match=r"accept=|stop="):
        edgedec.open("nano").session(speculate=f"model:path=nano,{options}")
