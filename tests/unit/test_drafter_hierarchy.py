"""Tree to sequence by a small model: the very sequence that it drafts step by step, in fewer of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut import first_layers
from drafting import SAMPLINGS, draft_of, left, run

import edgedec
from edgedec.decoding.context import Context
from edgedec.drafters import Draft
from edgedec.drafters.hierarchy import Hierarchy, _below, _worth
from edgedec.drafters.model import ModelDrafter
from edgedec.drafters.off import Off
from edgedec.drafters.recycling import Recycling
from edgedec.drafters.suffix import Suffix
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import CallResult, Outputs
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.calibration import Calibration
from edgedec.trees.merge import TreeMerger

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


def fake(seed: int = 0, spread: float = 6.0) -> FakeRuntime:
    return FakeRuntime(tiny_spec(context_length=256), seed=seed, spread=spread)


def hierarchy(runtime: FakeRuntime, gamma: int = 6) -> Hierarchy:
    return Hierarchy(runtime, 13, gamma, [("recycling", Recycling(13)), ("suffix", Suffix())])


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("seed", [0, 3])
def test_the_text_and_what_it_leaves_are_those_of_plain_decoding(seed: int, sampling: Any) -> None:
    plain, context, *_ = run(fake(), Off(), max_tokens=100, sampling=sampling, capacity=256)
    tokens, own, stats, _ = run(fake(), hierarchy(fake(seed)), max_tokens=100, sampling=sampling, capacity=256)
    assert tokens == plain
    assert left(own) == left(context)
    assert stats.proposed > 80
    if seed == 0 and not sampling.temperature:
        assert stats.calls == -(-100 // 7)


def test_the_seconds_of_a_step_are_a_mean_in_which_the_last_counts_a_tenth() -> None:
    """The first as it is, then of 0.4 and 0.2 seconds 0.38: of a step of the small model and of one on a tree."""

    class Timed:
        def __init__(self) -> None:
            self.grown, self.step_seconds, self.took = 0, 0.0, iter((0.4, 0.2))

        def grow(self, *_: object) -> Any:
            self.step_seconds = next(self.took)
            yield from ()
            return CallResult()

    one, other = hierarchy(fake()), hierarchy(fake())
    one._reader, other._reader = Timed(), Timed()  # type: ignore[assignment]
    for expected in (0.4, 0.38):
        assert list(one._step(5, -1, Outputs())) == list(other._step_tree(Draft.chain([5], [1.0]), -1)) == []
        assert (one._step_s, other._step_s) == (pytest.approx(expected), pytest.approx(expected))


@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_its_sequence_is_that_of_the_small_model_alone(gamma: int) -> None:
    """On texts that another model continues, so that much of what was drafted is refused."""
    rng = np.random.default_rng(0)
    drafter, alone = hierarchy(fake(5), gamma), ModelDrafter(fake(5), 13, gamma)
    ids = [3, 1, 4]
    for _ in range(30):
        context = Context(list(ids), len(ids), fake().new_cache(256))
        first, second = (draft_of(fake(5), d.propose(context, 99, 0.0)) for d in (drafter, alone))
        chain: list[int] = []
        node = -1
        while (node := next((i for i, above in enumerate(second.parents) if above == node), -1)) >= 0:
            chain.append(second.tokens[node])  # the first child is the likeliest
        assert list(first.tokens) == chain
        assert len(chain) == gamma
        ids += [*first.tokens[: int(rng.integers(0, gamma + 1))], int(rng.integers(0, 13))]
    assert drafter.drafted == 30 * gamma


def test_the_tree_below_a_token() -> None:
    merger = TreeMerger()
    merger.add(0, Draft([5, 6, 7, 8, 9], [-1, -1, 0, 1, 2], [0.5, 0.4, 0.9, 0.9, 0.9]), Calibration().estimates)
    assert _below(merger, 5, 8) == Draft([5, 7, 9], [-1, 0, 1])
    assert _below(merger, 5, 1) == Draft([5, 7], [-1, 0])
    assert _below(merger, 4, 8) == Draft([4], [-1])


@needs_native
def test_the_small_model_is_called_less_often(nano: Path, tmp_path: Path) -> None:
    small = first_layers(nano, tmp_path / "small", 4)
    model = edgedec.open("nano", engine="native", threads=1)
    live = model.session(speculate=f"hierarchy:path={small},gamma=8,fixed=8")
    off = model.session(speculate="off")
    for prompt in ("Once upon a time", "Tom and his robot wanted", "Sara was sad because", "Ben and Mia went"):
        ids = model.tokenizer.encode(prompt)
        assert list(live.tokens(ids, max_tokens=100)) == list(off.tokens(ids, max_tokens=100))
    report = live.report()["drafters"]["hierarchy"]
    assert report["accepted"] > 100
    assert report["steps"] < 0.65 * report["drafted"]  # `model` needs one for each token


@pytest.mark.parametrize("options", ["", "path=nano,inner=hydra", "path=nano,nodes=0"])
def test_a_wrong_spec_is_refused(nano: Path, options: str) -> None:
    with pytest.raises(UsageError, match="draft"):
        edgedec.open("nano").session(speculate=f"hierarchy:{options}".rstrip(":"))


def test_a_chain_ends_where_its_path_is_too_unlikely() -> None:
    """Paths of .5, .25 and .125."""
    assert [_worth([0.5, 0.5, 0.5], least) for least in (0.6, 0.5, 0.2, 0.125, 0.0)] == [0, 1, 2, 3, 3]
