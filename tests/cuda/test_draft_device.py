"""A draft runs where its target does."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.bundle import Bundle
from edgedec.drafters import DrafterContext
from edgedec.drafters._models.opening import draft_runtime
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.runtime import Runtime, RuntimeOptions, open_runtime, opened_with
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")


def drafting(runtime: Runtime, bundle: Bundle, device: str = "") -> RuntimeOptions:
    """What a draft of the same bundle is opened with."""

    def tokenizer() -> None:
        raise AssertionError

    draft = draft_runtime(DrafterContext(runtime, bundle, tokenizer), bundle, device=device)  # type: ignore[arg-type]
    return opened_with(draft)


def test_a_draft_is_on_the_target_s_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEDEC_CUDA", raising=False)
    monkeypatch.setenv("EDGEDEC_OPENCL", "no such device")
    bundle = write_bundle(tmp_path / "bundle", MODELS["plain"], random_weights(MODELS["plain"]), "int4")
    options = RuntimeOptions(threads=1, device="cuda:emulated", device_cache=64 << 20)
    target = open_runtime("cuda", bundle, options)
    found = drafting(target, bundle)
    assert (found.device, found.device_cache) == ("cuda:emulated", 64 << 20)
    beside = drafting(target, bundle, "cpu")
    assert (beside.device, beside.device_cache) == ("cpu", 0)
    auto = open_runtime("paired", bundle, RuntimeOptions(threads=1, device="auto"))  # the CPU alone
    assert drafting(auto, bundle).device == "cpu"
