"""The acceptance head (SpecDec++): it learns, is kept, changes no text, and beats every fixed length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cut import first_layers
from drafting import run

import edgedec
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


def test_what_it_learned_is_kept_and_that_of_another_model_refused() -> None:
    head, rng = AcceptanceHead(96), np.random.default_rng(1)
    for _ in range(200):
        head.hold({0: (head.inputs(result(rng, 1.0), 0), 0.5)})
        head.learn(0, accepted=True)
    twin = AcceptanceHead(96)
    twin.restore(head.state())
    x = head.inputs(result(rng, 1.0), 2)
    assert twin.chance(x, 0.5) == head.chance(x, 0.5) > 0.6
    for broken in ({}, {**head.state(), "accept.w2": np.zeros(3)}, {**head.state(), "accept.b1": np.full(32, np.nan)}):
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
