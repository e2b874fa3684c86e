"""The best of some tokens are the best of all, the others left out: same tokens, same bytes, on every runtime."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

import edgedec
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Outputs, Readout, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.testing.fakes import FakeRuntime, tiny_spec

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
STATES = np.random.default_rng(5)


def _head(runtime: Runtime, hidden: np.ndarray, outputs: Outputs) -> object:
    ids = [0] * len(hidden)
    return forward_one(runtime, Call(Rows.chain(ids, 0), runtime.new_cache(len(ids)), (), hidden, outputs))


def _agree(runtime: Runtime, readout: Readout, rows: int, top: int = 4) -> None:
    """What `_head` gives of the readout is what a scan of all logits gives."""
    hidden = STATES.standard_normal((rows, runtime.spec.hidden_size), np.float32)
    logits = _head(runtime, hidden, Outputs(logits=True)).logits
    found = _head(runtime, hidden, Outputs(top=top, readout=readout))
    assert found.logits is None
    scores = logits[:, readout.ids]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    assert (found.ids == readout.ids[order]).all()
    assert found.scores.tobytes() == np.take_along_axis(scores, order, 1).tobytes()


@needs_native
@pytest.mark.parametrize("weights", ["int4", "int8", "f16", "f32"])
@pytest.mark.parametrize("layout", ["interleave16", "rows"])
@pytest.mark.parametrize("name", ["plain", "all"])
def test_a_readout_is_the_head_with_tokens_left_out(tmp_path: Path, weights: str, layout: str, name: str) -> None:
    spec = ODD[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), weights, layout=layout)
    runtime = open_runtime("native", bundle, RuntimeOptions(threads=2))
    tokens = np.random.default_rng(1).permutation(spec.vocab_size)
    for n in (1, 7, spec.vocab_size // 2, spec.vocab_size):
        for rows in (1, 3, 9):
            _agree(runtime, Readout(tokens[:n]), rows, min(4, n))


@needs_native
@pytest.mark.parametrize("engine", ["native", "reference", "ort"])
def test_nano(engine: str) -> None:
    runtime = edgedec.open("nano", engine=engine, threads=1).runtime
    _agree(runtime, Readout(range(3, 4000, 3)), 2, 8)


def test_calls_of_different_readouts_share_a_forward() -> None:
    runtime = edgedec.open("nano", threads=2).runtime
    hidden = STATES.standard_normal((2, runtime.spec.hidden_size), np.float32)
    some, others = Readout(range(0, 2000)), Readout(range(2000, 4096))
    wanted = [
        Outputs(top=3, readout=some),
        Outputs(top=3),
        Outputs(top=3, readout=others),
        Outputs(top=5, readout=some),
    ]
    calls = [Call(Rows.chain([0, 0], 0), runtime.new_cache(2), (), hidden, outputs) for outputs in wanted]
    together, alone = runtime.forward(calls), [_head(runtime, hidden, outputs) for outputs in wanted]
    for one, other in zip(together, alone, strict=True):
        assert (one.ids == other.ids).all()
        assert one.scores.tobytes() == other.scores.tobytes()
    assert together[0].ids.max() < 2000 <= together[2].ids.min()


@needs_native
def test_a_readout_that_is_gone_leaves_no_rows_there() -> None:
    runtime = edgedec.open("nano", engine="native").runtime
    readout = Readout([1, 2, 3])
    _agree(runtime, readout, 1, 2)
    before = len(runtime._packer._readouts)
    del readout
    gc.collect()
    assert len(runtime._packer._readouts) == before - 1


@pytest.mark.parametrize(
    "outputs",
    [
        Outputs(logits=True, top=1, readout=Readout([1])),
        Outputs(logsum=True, top=1, readout=Readout([1])),
        Outputs(hidden=(0,), readout=Readout([1])),
        Outputs(top=1, readout=Readout([])),
        Outputs(top=1, readout=Readout([5000])),
        Outputs(top=1, readout=Readout([-1])),
    ],
)
@pytest.mark.parametrize("fake", [True, False])
def test_what_a_readout_cannot_give_is_refused(outputs: Outputs, fake: bool) -> None:
    runtime = FakeRuntime(tiny_spec()) if fake else edgedec.open("nano").runtime
    with pytest.raises(UsageError, match="readout"):
        forward_one(runtime, Call(Rows.chain([0], 0), runtime.new_cache(4), outputs=outputs))


def test_outputs_joined_want_a_readout_only_if_both_do() -> None:
    some, others = Readout([1, 2]), Readout([3])
    assert (Outputs(top=2, readout=some) | Outputs(top=4, readout=some)).readout is some
    assert (Outputs(top=2, readout=some) | Outputs(hidden=(1,))).readout is some
    assert (Outputs(top=2, readout=some) | Outputs(top=1)).readout is None
    assert (Outputs(top=2, readout=some) | Outputs(top=1, readout=others)).readout is None
