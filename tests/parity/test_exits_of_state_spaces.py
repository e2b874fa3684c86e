"""Drafting with a part of models that have recurrent blocks (DYNAMAX): tokens leave early inside a draft, the states
that the blocks after the exit would have are caught up by the verifying call, and the text stays what it was."""

from __future__ import annotations

from typing import Any

import pytest
from bundles import KINDS, random_weights, write_bundle
from drafting import SAMPLINGS, host, run, saved

from edgedec.drafters import make_drafter
from edgedec.drafters._slices import shadows
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Runtime, open_runtime

RECURRENT = ("state spaces", "selective state spaces", "state spaces beside attention", "delta rules")
ENGINES = ("reference", *(["native"] if loader.why_not() is None else []))


@pytest.fixture(scope="module", params=[(kind, engine) for kind in RECURRENT for engine in ENGINES], ids="-".join)
def runtime(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    kind, engine = request.param
    bundle = write_bundle(tmp_path_factory.mktemp("toys") / "toy", KINDS[kind], random_weights(KINDS[kind]))
    return open_runtime(engine, bundle)


@pytest.fixture(autouse=True)
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost what their multiply-adds say."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)
    monkeypatch.setattr(shadows, "_SHARE", 1e9)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("options", [{"width": 1, "length": 3}, {"width": 3, "length": 2}])
def test_tokens_that_leave_early_change_nothing(runtime: Runtime, options: dict[str, int], sampling: str) -> None:
    text, plain, _, _ = run(runtime, Off(), sampling=SAMPLINGS[sampling], max_tokens=90)
    drafter = make_drafter("exit", host(runtime), {"layer": 1, **options})
    found, context, stats, _ = run(runtime, drafter, sampling=SAMPLINGS[sampling], max_tokens=90)
    assert found == text
    assert stats.proposed > stats.accepted > 0, "right and wrong guesses ran"
    assert stats.calls < len(text)
    if runtime.capabilities.batch_invariant:
        assert saved(context.cache) == saved(plain.cache), "the states after the exit are caught up"
