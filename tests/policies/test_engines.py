"""The slots that policies choose on every engine: reference, native, and the GPU engines where they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scripted import Text

from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.kernels.opencl import driver
from edgedec.runtime import Call, CallResult, Runtime, RuntimeOptions, open_runtime
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

# The emulated device takes seconds for each: these alone, unless there is time.
ON_GPUS = ("d2o:budget=0.3,every=16,observe=5", "subwords:by=mean,keep=0.7", "quest:budget=200,recent=64,dense=1")
pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
SPEC = MODELS["plain"]
IDS = np.random.default_rng(4).integers(0, 101, 320).tolist()
EVICTING = [
    "streaming:budget=40,every=16",
    "h2o:budget=0.3,every=16,observe=5",
    "h2o:budget=0.3,every=16,observe=5,heads=apart",
    "snapkv:budget=0.3,every=16,observe=5",
    "snapkv:budget=0.3,heads=apart",
    "pyramidkv:budget=0.3,slope=1.5",
    "prefixkv:budget=0.3",
    "d2o:budget=0.3,every=16,observe=5",
    "fastkv:budget=0.3,rate=0.5,layer=2",
    "lazyllm:keep=0.3,stages=2,every=16,observe=5,window=4",
    "subwords:by=mean,keep=0.7",
]
VIEWING = [
    "quest:budget=200,recent=64,dense=1",
    "lserve:budget=200,recent=64,sinks=4",
    "tca:budget=0.6,recent=64,every=32,mass=0.8",
    "deltallm:budget=0.4,recent=64,sinks=4",
    "anchor:theta=1,recent=64,sinks=4",
    "actqkv:budget=300,recent=64,every=32,window=4",
    "sentencekv:budget=300,recent=64,every=32,window=4,longest=9,disk=off",
]


class Watched:
    """A runtime; `seen`: by call with views and by block which slots were paid anything [kv_heads, slots]."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.seen = runtime, list[dict[int, np.ndarray]]()
        self.spec, self.capabilities, self.new_cache = runtime.spec, runtime.capabilities, runtime.new_cache

    def forward(self, calls: Any) -> list[CallResult]:
        found = self._runtime.forward([call._replace(outputs=_paid(call)) for call in calls])
        for call, result in zip(calls, found, strict=True):
            if call.views:
                self.seen.append({b: result.attention[b] > 0 for b in call.views})
            if not call.outputs.attention:
                result.attention = {}
        return found


def _paid(call: Call) -> Any:
    return call.outputs._replace(attention=True) if call.views else call.outputs


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Runtime]]:
    """All engines that run here, on one model of random weights."""
    bundle = write_bundle(tmp_path_factory.mktemp("plain") / "plain", SPEC, random_weights(SPEC, 3), "f32")
    reasons = {"cuda": emulated.why_not(), "opencl": driver.why_not()}
    names = ["reference", "native", *(name for name, why in reasons.items() if why is None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDEC_CUDA", "emulated")
        yield {name: open_runtime(name, bundle, RuntimeOptions(threads=1, kv="f32")) for name in names}


def running(runtimes: dict[str, Runtime], words: str) -> Iterator[tuple[str, Runtime]]:
    """The engines that a policy is compared on; the reference first."""
    for name, runtime in runtimes.items():
        can = runtime.capabilities.drop_by_head or "apart" not in words
        if can and (name in ("reference", "native") or words in ON_GPUS or "EDGEDEC_SLOW_TESTS" in os.environ):
            yield name, runtime


@pytest.mark.parametrize("words", EVICTING)
def test_what_stays_is_the_same(runtimes: dict[str, Runtime], words: str) -> None:
    found = {}
    for name, runtime in running(runtimes, words):
        text = Text(runtime, words, 380).read(IDS[:200])
        for token in IDS[200:217]:
            text.step(1, token)
        found[name] = text
    first = found.pop("reference")
    assert sum(map(len, first.kept())) < 0.8 * 217 * len(SPEC.attention)
    assert found
    for name, text in found.items():
        assert text.kept() == first.kept(), name
        for b in SPEC.attention:
            np.testing.assert_allclose(text.cache.keys(b), first.cache.keys(b), atol=2e-3, err_msg=name)


@pytest.mark.parametrize("words", VIEWING)
def test_what_is_seen_is_the_same(runtimes: dict[str, Runtime], words: str) -> None:
    found = {}
    for name, runtime in running(runtimes, words):
        watched = Watched(runtime)
        Text(watched, words, 380).read(IDS[:300], 100).step(3)
        found[name] = watched.seen
    first = found.pop("reference")
    assert first
    assert any(not mask.all() for seen in first for mask in seen.values()), "everything is seen"
    for name, seen in found.items():
        assert len(seen) == len(first)
        for one, other in zip(seen, first, strict=True):
            assert {b: mask.tolist() for b, mask in one.items()} == {b: m.tolist() for b, m in other.items()}, name
