"""Guidance by another prompt, token for token that of Hugging Face's generate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusing import OTHER, PROMPT, companion, law, run

from edgedec.fusion._source import Source
from edgedec.fusion.cfg import Guidance
from edgedec.testing.fakes import FakeRuntime


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("negative", [None, OTHER])
def test_the_guidance_of_hugging_face(negative: tuple[int, ...] | None, scale: float) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    on = FakeRuntime()

    class Out(SimpleNamespace):
        def get(self, name: str, default: Any) -> Any:
            return default

    def model(input_ids: Any, **unused: Any) -> Any:
        return Out(logits=torch.from_numpy(law(on, input_ids[0].tolist()))[None, None])

    unconditional = None if negative is None else torch.tensor([negative])
    guide = theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, unconditional, use_cache=False)
    ids = list(PROMPT)
    for _ in range(24):
        scores = guide(torch.tensor([ids]), torch.from_numpy(law(on, ids))[None])
        ids.append(int(scores.argmax()))
    source = Source(on, last=1) if negative is None else Source(on, prompt=negative)
    made = Guidance(companion(source), scale)
    assert run(on, [made]) == ids[len(PROMPT) :]


def test_the_scores_of_hugging_face() -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(0)
    for size in (13, 3000):
        own, other = (rng.normal(0, 4, size).astype(np.float32) for _ in range(2))

        class Out(SimpleNamespace):
            def get(self, name: str, default: Any) -> Any:
                return default

        def model(input_ids: Any, given: Any = other, **unused: Any) -> Any:
            return Out(logits=torch.from_numpy(given)[None, None])

        guide = theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.7, model)
        expected = torch.softmax(guide(torch.tensor([[1]]), torch.from_numpy(own)[None]), -1)[0].double().numpy()
        made = Guidance(companion(Source(FakeRuntime())), 1.7)
        made.companion.logits = lambda path, given=other: given  # type: ignore[method-assign, misc]
        found = made.process(own, (), {}).astype(np.float64)
        p = np.exp(found - found.max())
        assert np.abs(p / p.sum() - expected).max() < 1e-6
