"""Nested drafts: a naive loop that reads the draft model anew for each token leaves it at the same sub-models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="bundles are written with onnx")
from checkpoints import write_llama

import edgedec
from edgedec import Sampling, UsageError
from edgedec.bundle import Bundle
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, ForwardOn
from edgedec.drafters import Draft, DrafterContext, make_drafter
from edgedec.drafters._models.nested_reader import NestedReader
from edgedec.drafters.nested import Nested, sub_models
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.testing.fake_runtime import tiny_spec

ENGINES = ("reference", *(["native"] if why_not() is None else []))
ENDS = (1, 2, 4)  # layers


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two targets and a draft, all with the same tokens."""
    folder, found = tmp_path_factory.mktemp("nested"), {}
    for name, seed, layers in (("large", 0, 3), ("other", 1, 2), ("draft", 2, 4)):
        source = write_llama(folder / f"{name}-hf", seed=seed, num_hidden_layers=layers)
        export(str(source), folder / name, ExportOptions(weights="f32", check=False, runtimes=()))
        found[name] = folder / name
    return found


def said(runtime: Runtime, ids: list[int], layers: int) -> tuple[int, float]:
    """The likeliest next token of the first layers, read at once, with norm and head; and its probability."""
    blocks = range(runtime.spec.span(0, layers).stop)
    result = forward_one(runtime, Call(Rows.chain(ids, 0), runtime.new_cache(128), blocks, None, Outputs(logits=True)))
    assert result.logits is not None
    z = result.logits[-1].astype(np.float64)
    p = np.exp(z - z.max())
    return int(z.argmax()), float(p.max() / p.sum())


def naive(runtime: Runtime, ids: list[int], threshold: float, limit: int) -> tuple[list[int], list[float], list[int]]:
    """The chain, its probabilities and the layers that gave each token."""
    path, chances, by = list[int](), list[float](), list[int]()
    while len(path) < limit:
        for layers in ENDS:
            token, p = said(runtime, [*ids, *path], layers)
            if p > threshold or layers == ENDS[-1]:
                break
        path, chances, by = [*path, token], [*chances, p], [*by, layers]
    return path, chances, by


class Counted:
    """Runs a generator's calls; `rows`: computed by each number of the first block."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.rows = runtime, Counter[int]()

    def __call__(self, steps: object) -> object:
        done = None
        try:
            while True:
                asked = steps.send(done)  # type: ignore[attr-defined]
                on, call = (asked.runtime, asked.call) if isinstance(asked, ForwardOn) else (self.runtime, asked)
                self.rows[0 if call.blocks is None else call.blocks[0]] += call.rows.count
                done = Completed(forward_one(on, call), call.rows.count, 0.0)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.4, 1.0])
def test_each_token_is_of_the_smallest_sub_model_that_is_sure(
    bundles: dict[str, Path], engine: str, threshold: float
) -> None:
    """Texts that grow by what was accepted of the drafts, by other tokens, and by much at once."""
    runtime = open_runtime(engine, Bundle.open(bundles["draft"]), RuntimeOptions(threads=1))
    ends = [runtime.spec.span(0, layers).stop for layers in ENDS]
    drafter, run, rng, ids = Nested(runtime, ends, threshold, 5), Counted(runtime), np.random.default_rng(3), [1, 7, 3]
    used = Counter[int]()
    for turn in range(9):
        context = Context(list(ids), len(ids), runtime.new_cache(8))
        draft = run(drafter.propose(context, 8, 0.0))
        assert isinstance(draft, Draft)
        path, chances, by = naive(runtime, ids, threshold, 5)
        assert list(draft.tokens) == path, turn
        np.testing.assert_allclose(draft.p, chances, atol=2e-4)
        used.update(by)
        accepted = int(rng.integers(0, 6))
        ids += [*path[:accepted], *map(int, rng.integers(3, 200, 40 if turn == 5 else 1))]
    report = drafter.report()["layers"]
    assert report == {str(layers): used[layers] for layers in ENDS}
    if 0 < threshold < 0.5:
        assert min(report.values()) > 0, "every sub-model was used"


def test_rows_run_through_deeper_layers_only_when_needed_and_once(bundles: dict[str, Path]) -> None:
    runtime = open_runtime("reference", Bundle.open(bundles["draft"]), RuntimeOptions(threads=1))
    ends = [runtime.spec.span(0, layers).stop for layers in ENDS]
    run, reader = Counted(runtime), NestedReader(runtime, ends)
    run(reader.read([1, 7, 3], 8))
    for token in (5, 6, 8):
        assert run(reader.climb([0.0, 0.0]))[2] == 0  # type: ignore[index]
        reader.add(token)
    assert dict(run.rows) == {0: 5}, "three of the text and two below"
    assert run(reader.climb([1.0, 0.0]))[2] == 1  # type: ignore[index]
    assert dict(run.rows) == {0: 6, ends[0]: 6}
    reader.add(9)
    assert run(reader.climb([1.0, 1.0]))[2] == 2  # type: ignore[index]
    assert dict(run.rows) == {0: 7, ends[0]: 7, ends[1]: 7}


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=8), seed=st.integers(0, 1 << 16)
)
def test_texts_that_go_back_and_forth(bundles: dict[str, Path], steps: list[tuple[int, bool]], seed: int) -> None:
    """Whatever the text was before, a draft is what the naive loop drafts."""
    runtime = open_runtime("reference", Bundle.open(bundles["draft"]), RuntimeOptions(threads=1))
    ends, rng, ids = [runtime.spec.span(0, layers).stop for layers in ENDS], np.random.default_rng(seed), [1, 2, 3]
    drafter, run = Nested(runtime, ends, 0.15, 2), Counted(runtime)
    for cut, back in steps:
        ids = ids[: max(2, len(ids) - cut)] if back else ids
        ids = [*ids, *map(int, rng.integers(3, 200, 1 + cut // 2))]
        draft = run(drafter.propose(Context(list(ids), len(ids), runtime.new_cache(8)), 3, 0.0))
        assert isinstance(draft, Draft)
        assert list(draft.tokens) == naive(runtime, ids, 0.15, 2)[0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_draft_serves_two_targets_and_changes_no_text(
    bundles: dict[str, Path], engine: str, sampling: Sampling
) -> None:
    for name in ("large", "other", "draft"):
        model, prompt = edgedec.open(bundles[name], engine=engine), [1, 7, 3, 99, 42]
        plain = [int(t) for t in model.session(speculate="off").tokens(prompt, max_tokens=40, sampling=sampling)]
        session = model.session(speculate=f"nested:path={bundles['draft']},fixed=4,layers=1-2,threshold=0.15")
        assert [int(t) for t in session.tokens(prompt, max_tokens=40, sampling=sampling)] == plain
        report = session.report()["drafters"]["nested"]
        assert report["proposed"] > 20
        if name == "draft" and not sampling.temperature:
            assert report["accepted"] > 5, "it drafts for itself"


def test_a_draft_ends_where_its_path_is_unlikely(bundles: dict[str, Path]) -> None:
    runtime = open_runtime("reference", Bundle.open(bundles["draft"]), RuntimeOptions(threads=1))
    ends, ids = [runtime.spec.span(0, layers).stop for layers in ENDS], [1, 7, 3]
    path, chances, _ = naive(runtime, ids, 0.15, 5)
    worth = np.cumprod(chances)
    for n in (1, 2, 3):
        drafter = Nested(runtime, ends, 0.15, 5)
        context = Context(list(ids), len(ids), runtime.new_cache(8))
        draft = Counted(runtime)(drafter.propose(context, 8, float(worth[n - 1]) * 0.999))
        assert isinstance(draft, Draft)
        assert list(draft.tokens) == path[:n]


def test_sub_models_by_layers() -> None:
    spec = tiny_spec(n_layers=4)
    assert sub_models(spec, "") == [spec.span(0, n).stop for n in (2, 3, 4)]
    assert sub_models(spec, "1") == [spec.span(0, n).stop for n in (1, 4)]
    for wrong in ("4", "0", "2-1", "1-1", "a"):
        with pytest.raises(UsageError, match=f"layers={wrong}"):
            sub_models(spec, wrong)


def test_what_it_cannot_draft_with_is_refused(bundles: dict[str, Path]) -> None:
    model = edgedec.open(bundles["large"], engine="reference")
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    with pytest.raises(UsageError, match="no draft model is in the bundle"):
        make_drafter("nested", host)
    with pytest.raises(UsageError, match="layers=9"):
        make_drafter("nested", host, {"path": str(bundles["draft"]), "layers": "9"})
