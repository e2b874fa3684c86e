"""`--spec block`: masks below the verified tokens draft, and the text stays that of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.call_rows import with_prompts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import PromptRows
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.drafters.block import BlockDrafter
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.runtime import Rows
from edgedec.speculation.costs import Costs
from edgedec.speculation.prompting import PromptingGovernor
from edgedec.testing.joint import JointRuntime

pytest.importorskip("onnx", reason="exporting needs onnx")
from diffusion.checkpoint import exported


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> edgedec.Model:
    return edgedec.open(exported(tmp_path_factory.mktemp("drafting"), block=6), threads=1)


def text(model: edgedec.Model, prompt: str, speculate: str, **options: Any) -> tuple[list[int], edgedec.Session]:
    session = model.session(diffusion="off", speculate=speculate)
    ids = model.tokenizer.encode(prompt)
    given = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True} | options
    return list(map(int, session.tokens(ids, **given))), session


def test_masks_are_a_group_below_their_token() -> None:
    rows = Rows.tree([7, 1, 2], [-1, 0, 1], 10)
    ran = with_prompts(rows, 0, PromptRows((1, 2, -1), tokens=(9, 9, 9), groups=(0, 0, 1)))
    assert ran.tokens.tolist() == [7, 1, 2, 9, 9, 9]
    assert ran.positions.tolist() == [10, 11, 12, 13, 14, 11]
    assert ran.visible().astype(int)[3:].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 1]]
    assert ran.embeddings is None


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding(model: edgedec.Model, options: dict[str, Any]) -> None:
    ran = 0
    for prompt in ("the thing", "in on", "a then"):
        drafted, session = text(model, prompt, "block:fixed=5", **options)
        assert drafted == text(model, prompt, "off", **options)[0]
        ran += session.stats.proposed
    assert ran > 20


def test_a_model_that_knows_what_follows_takes_few_calls() -> None:
    """Of one text the masks guess all that follows: each call brings the next token and a block of guesses."""
    length = 24
    tokens = tuple(int(t) for t in np.random.default_rng(2).integers(0, 6, length))
    facts, runtime = DiffusionFacts(7, True, "causal", 4), JointRuntime({tokens: 1.0}, 8, 7, shift=True)
    drafter = BlockDrafter(DrafterContext(runtime, None, lambda: None), facts, 3, 24)  # type: ignore[arg-type]
    governor = PromptingGovernor([("block", drafter)], lambda: Costs({1: 1e-3, 32: 1.2e-3}), 8)
    context, stats = Context([0], 1, runtime.new_cache(64)), Stats()
    config = GenerationConfig(max_tokens=length)
    loop = decode_loop(context, config, governor, stats, capabilities=runtime.capabilities)
    assert list(map(int, run_loop(runtime, loop))) == list(tokens)
    assert stats.accepted >= length / 2
    plain = Context([0], 1, runtime.new_cache(64))
    expected = run_loop(runtime, decode_loop(plain, config, Off(), capabilities=runtime.capabilities))
    assert list(map(int, expected)) == list(tokens)
    assert stats.calls <= length / 2


@pytest.mark.parametrize(
    ("facts", "words", "message"),
    [
        ({"context": "block"}, "block", "no diffusion model with causal context and shift"),
        ({"shift": False}, "block", "no diffusion model with causal context and shift"),
        ({"block": 6}, "block:length=6", "blocks of 6 tokens have 5 masks"),
        ({"block": 1}, "block", "blocks of 1 tokens have 0 masks"),
    ],
)
def test_bundles_without_such_a_model_are_refused(
    facts: dict[str, Any], words: str, message: str, tmp_path: Path
) -> None:
    opened = edgedec.open(exported(tmp_path, **facts), threads=1)
    name, _, rest = words.partition(":")
    options = dict(part.split("=") for part in rest.split(",") if part)
    with pytest.raises(UsageError, match=message):
        make_drafter(name, DrafterContext(opened.runtime, opened.bundle, lambda: opened.tokenizer), options)
    with pytest.raises(UsageError, match="no diffusion model"):
        edgedec.open("nano").session(speculate="block")
