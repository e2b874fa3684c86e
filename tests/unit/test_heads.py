"""Draft heads: graphs equal the plain arithmetic, bundles carry them, drafters with them change no token."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafting import draft_of
from loops import decode
from numpy.typing import NDArray

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.cache.rows import Rows
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, StepResult
from edgedec.drafters import FAMILY as DRAFTERS
from edgedec.drafters import Drafter, DrafterContext, make_drafter
from edgedec.drafters._networks.heads import HeadInterface, open_head
from edgedec.errors import BundleCorrupt, BundleUnsafe, UsageError
from edgedec.runtime import Call, CallResult, Outputs, forward_one
from edgedec.sampling import Sampling
from edgedec.testing.fakes import Limited
from edgedec.trees.grow import grow

pytest.importorskip("onnx", reason="heads are built with onnx")
from edgedec.export.heads import Arrays, Facts, arrays_of, build, expected, install
from edgedec.models.heads import FAMILY, architecture, hydra

WIDTH, DEPTH, TOP = 24, 3, 5
HEADS: dict[str, HeadInterface] = {name: DRAFTERS.file(name).HEAD for name in ("hydra", "medusa", "exit")}
Floats = NDArray[Any]


class NumpyOps:
    """The oracle: `models.heads.Ops` in float64."""

    def __init__(self, arrays: Arrays, eps: float) -> None:
        self.arrays, self.eps = arrays, eps

    def linear(self, x: Floats, name: str) -> Floats:
        return x @ self.arrays[name].astype(np.float64).T

    def norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.arrays[name]

    def silu(self, x: Floats) -> Floats:
        return x / (1 + np.exp(-x))

    def add(self, x: Floats, y: Floats) -> Floats:
        return x + y


def facts_of(bundle: Bundle, kind: str, **changes: Any) -> Facts:
    facts = Facts(kind, bundle.spec.hidden_size, WIDTH, DEPTH if kind != "exit" else 1, bundle.spec.norm_eps)
    return replace(facts, **{"top": 0 if kind == "exit" else TOP, "layer": int(kind == "exit")} | changes)


def arrays_for(facts: Facts, vocab: int, seed: int = 0, kept: int = 40) -> Arrays:
    rng = np.random.default_rng(seed)
    found: Arrays = {n: rng.standard_normal(s, np.float32) * 0.3 for n, s in expected(facts, kept).items()}
    if facts.top:
        found["readout"] = found["readout"] * 4
        found["vocab"] = np.sort(rng.choice(vocab, kept, replace=False))
    return found


def with_head(folder: Path, kind: str, **changes: Any) -> tuple[Bundle, Arrays, Facts]:
    bundle = Bundle.open(folder)
    facts = facts_of(bundle, kind, **changes)
    arrays = arrays_for(facts, bundle.spec.vocab_size)
    return install(bundle, build(kind, arrays, facts), arrays, facts), arrays, facts


def guesses(arrays: Arrays, facts: Facts, states: Floats) -> Floats:
    """states [..., H] -> log-probabilities [..., kept]."""
    ops = NumpyOps(arrays, facts.eps)
    logits = ops.linear(ops.norm(states, "final_norm"), "readout")
    if facts.softcap:
        logits = facts.softcap * np.tanh(logits / facts.softcap)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "bundle"))


# ---- graphs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_medusa_is_its_arithmetic(folder: Path, softcap: float) -> None:
    bundle, arrays, facts = with_head(folder, "medusa", softcap=softcap)
    hidden = np.random.default_rng(1).standard_normal((2, facts.hidden), np.float32)
    states = architecture("medusa").states(NumpyOps(arrays, facts.eps), hidden.astype(np.float64), (), DEPTH)
    expect = guesses(arrays, facts, np.stack(states, 1))
    ids, logprobs = open_head(bundle, HEADS["medusa"]).run(hidden)
    order = np.argsort(-expect, -1)[..., :TOP]
    assert ids.tolist() == arrays["vocab"][order].tolist()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expect, order, -1), atol=1e-4)


def test_hydra_is_its_arithmetic(folder: Path) -> None:
    bundle, arrays, facts = with_head(folder, "hydra")
    head, rng = open_head(bundle, HEADS["hydra"]), np.random.default_rng(1)
    state = rng.standard_normal((3, facts.hidden), np.float32)
    oracle: Floats = state.astype(np.float64)
    for _ in range(3):
        embedding = rng.standard_normal((3, facts.hidden), np.float32)
        state, ids, logprobs = head.run(state, embedding)
        oracle = hydra.step(NumpyOps(arrays, facts.eps), oracle, embedding.astype(np.float64))
        np.testing.assert_allclose(state, oracle, atol=1e-4)
        expect = guesses(arrays, facts, oracle)
        order = np.argsort(-expect, -1)[..., :TOP]
        assert ids.tolist() == arrays["vocab"][order].tolist()
        np.testing.assert_allclose(logprobs, np.take_along_axis(expect, order, -1), atol=1e-4)


def test_exit_is_its_arithmetic(folder: Path) -> None:
    bundle, arrays, facts = with_head(folder, "exit")
    hidden = np.random.default_rng(1).standard_normal((2, facts.hidden), np.float32)
    expect = architecture("exit").states(NumpyOps(arrays, facts.eps), hidden.astype(np.float64), (), 1)[0]
    np.testing.assert_allclose(open_head(bundle, HEADS["exit"]).run(hidden)[0], expect, atol=1e-4)
    assert bundle.manifest.heads["exit"].layer == 1


@pytest.mark.parametrize("kind", FAMILY.names())
def test_arrays_come_back(folder: Path, kind: str) -> None:
    bundle, arrays, facts = with_head(folder, kind)
    found, said = arrays_of(bundle.file(f"head_{kind}.onnx"))
    assert said == facts
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in arrays.items()}


@pytest.mark.parametrize("kind", FAMILY.names())
def test_int8_is_near(folder: Path, kind: str) -> None:
    bundle, arrays, facts = with_head(folder, kind, format="int8")
    found, said = arrays_of(bundle.file(f"head_{kind}.onnx"))
    assert said.format == "int8"
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert np.abs(found[name] - array).max() <= np.abs(array).max() / 127 * 0.51 + 1e-3, name
    again = build(kind, found, facts)  # what came back can be stored otherwise
    assert again.graph.name == f"head_{kind}"
    hidden = np.random.default_rng(1).standard_normal((1, facts.hidden), np.float32)
    head = open_head(bundle, HEADS[kind])
    if kind == "exit":
        expect = architecture("exit").states(NumpyOps(arrays, facts.eps), hidden.astype(np.float64), (), 1)[0]
        np.testing.assert_allclose(head.run(hidden)[0], expect, atol=0.1)
    else:
        ids = head.run(*[hidden] * len(HEADS[kind].inputs))[-2]
        assert set(ids.ravel().tolist()) <= set(arrays["vocab"].tolist())


def test_sessions_hold_a_head_in_common(folder: Path) -> None:
    """Its weights are there once, as long as anyone uses them, and many threads may run it."""
    bundle, *_, facts = with_head(folder, "hydra")
    head = open_head(bundle, HEADS["hydra"])
    assert open_head(Bundle.open(folder), HEADS["hydra"], 4) is head  # a small head takes one thread
    hidden = np.random.default_rng(1).standard_normal((3, facts.hidden), np.float32)
    expect = head.run(hidden, hidden)[2].tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert set(
            pool.map(lambda _: open_head(bundle, HEADS["hydra"]).run(hidden, hidden)[2].tobytes(), range(40))
        ) == {expect}
    other, *_ = with_head(folder, "hydra", format="int8")
    assert open_head(other, HEADS["hydra"]) is not head
    gone = weakref.ref(head)
    del head
    gc.collect()
    assert gone() is None


def test_wrong_arrays_are_refused(folder: Path) -> None:
    facts = facts_of(Bundle.open(folder), "hydra")
    arrays = arrays_for(facts, 200)
    for wrong in (arrays | {"down": arrays["down"][:-1]}, {n: a for n, a in arrays.items() if n != "readout"}):
        with pytest.raises(UsageError, match="not the expected"):
            build("hydra", wrong, facts)
    with pytest.raises(UsageError, match="no draft head 'eagle'"):
        build("eagle", arrays, facts)


# ---- bundles ----------------------------------------------------------------------------------------


def test_a_head_is_listed_and_hashed(folder: Path) -> None:
    before = Bundle.open(folder)
    assert not before.manifest.heads
    bundle, *_ = with_head(folder, "hydra")
    bundle, *_ = with_head(folder, "exit")
    assert sorted(bundle.manifest.heads) == ["exit", "hydra"]
    bundle.verify()
    assert bundle.digest != before.digest
    assert not [path for path in folder.iterdir() if "partial" in path.name]
    assert {path.name for path in folder.iterdir()} == {*bundle.manifest.files, MANIFEST}


def test_the_drafters_declare_what_the_kinds_do(folder: Path) -> None:
    """A new kind needs a file in models/heads and a drafter; nothing else names it."""
    assert {interface.kind for interface in HEADS.values()} == set(FAMILY.names())
    for kind in FAMILY.names():
        network = architecture(kind)
        assert HEADS[kind].inputs == network.FACTS.inputs
        guesses_ = ("ids", "logprobs") if network.FACTS.ahead else ()
        assert HEADS[kind].outputs == (*filter(None, [network.FACTS.state]), *guesses_)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("file", "elsewhere.onnx", "not among its files"),
        ("depth", 0, "depth"),
        ("depth", 65, "depth"),
        ("layer", 99, "layers"),
        ("layer", -1, "layers"),
        ("vocab", 1 << 20, "tokens"),
        ("top", 41, "tokens"),
        ("sweep", 1, "unknown key"),
    ],
)
def test_wrong_entries_are_refused(folder: Path, key: str, value: Any, message: str) -> None:
    with_head(folder, "hydra")
    data = json.loads((folder / MANIFEST).read_bytes())
    data["heads"]["hydra"][key] = value
    (folder / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(BundleCorrupt, match=message):
        Bundle.open(folder)


def test_a_damaged_head_is_named(folder: Path) -> None:
    bundle, *_ = with_head(folder, "hydra")
    path = bundle.file("head_hydra.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(len(whole) - 100))
    again = Bundle.open(folder)  # the size is right
    with pytest.raises(BundleCorrupt, match=r"head_hydra\.onnx"):
        again.verify()
    with pytest.raises(BundleCorrupt, match=r"head_hydra\.onnx"):
        open_head(again, HEADS["hydra"])
    with pytest.raises(BundleCorrupt, match=r"head_hydra\.onnx"):
        arrays_of(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(BundleCorrupt, match="the manifest says"):
        Bundle.open(folder)


def test_another_graph_in_its_place_is_refused(folder: Path) -> None:
    bundle, *_ = with_head(folder, "hydra")
    shutil.copy(folder / "head.onnx", bundle.file("head_hydra.onnx"))
    with pytest.raises(BundleUnsafe, match="is not one that a draft head may use"):
        open_head(bundle, HEADS["hydra"])
    with pytest.raises(BundleCorrupt, match="not a draft head"):
        arrays_of(bundle.file("head_hydra.onnx"))


def test_links_are_not_written_through(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    bundle = replace(Bundle.open(folder), path=linked)
    facts = facts_of(bundle, "exit")
    arrays = arrays_for(facts, 200)
    with pytest.raises(BundleUnsafe, match="a link out of the bundle"):
        install(bundle, build("exit", arrays, facts), arrays, facts)


# ---- drafters ---------------------------------------------------------------------------------------


def drafter_for(model: edgedec.Model, name: str, **options: str) -> Drafter:
    return make_drafter(name, DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), options)


def told(model: edgedec.Model, drafter: Drafter, ids: Sequence[int], sampling: Sampling) -> tuple[list[int], Stats]:
    context, stats = Context(list(ids), len(ids), model.runtime.new_cache(160)), Stats()
    context.rng = np.random.default_rng(7)
    return list(
        map(int, decode(model.runtime, context, GenerationConfig(sampling, max_tokens=60), drafter, stats=stats))
    ), stats


@pytest.mark.parametrize("name", ["medusa", "hydra"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.5, top_k=20)])
@pytest.mark.parametrize("nodes", [1, 6])
def test_drafting_changes_no_token(folder: Path, name: str, sampling: Sampling, nodes: int) -> None:
    with_head(folder, name)
    model = edgedec.open(folder, engine="reference")
    plain, _ = told(model, drafter_for(model, "off"), [3, 1, 4, 1, 5], sampling)
    drafted, stats = told(model, Limited(drafter_for(model, name), nodes), [3, 1, 4, 1, 5], sampling)
    assert drafted == plain
    assert nodes <= stats.proposed <= nodes * stats.calls


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_nothing_is_drafted_before_anything_is_known(folder: Path, name: str) -> None:
    with_head(folder, name)
    model = edgedec.open(folder, engine="reference")
    drafter = drafter_for(model, name)
    assert drafter.outputs == Outputs(hidden=(model.spec.n_blocks - 1,))
    context = Context([1, 2, 3, 9], 3, model.runtime.new_cache(16))
    assert not draft_of(model.runtime, drafter.propose(context, 8, 0.0)).tokens
    drafter.observe(seen(model, [2, 3], 1, [9]))
    draft = draft_of(model.runtime, drafter.propose(context, 8, 0.0))
    assert 1 <= len(draft.tokens) <= 8
    assert all(0 < p < 1 for p in draft.p)
    assert not draft_of(model.runtime, drafter.propose(context, 0, 0.0)).tokens
    assert not draft_of(model.runtime, drafter.propose(context, 8, 0.999)).tokens
    context.ids[-1] = 8  # the text ended earlier and went on otherwise
    assert not draft_of(model.runtime, drafter.propose(context, 8, 0.0)).tokens
    context.ids[-1] = 9
    drafter.reset()
    assert not draft_of(model.runtime, drafter.propose(context, 8, 0.0)).tokens


def seen(model: edgedec.Model, tokens: list[int], root: int, picked: list[int], seed: int = 0) -> StepResult:
    hidden = np.random.default_rng(seed).standard_normal((len(tokens), model.spec.hidden_size), np.float32)
    result = CallResult(hidden={model.spec.n_blocks - 1: hidden})
    return StepResult(Rows.chain(tokens, 0), root, list(range(len(picked))), picked, result, 0.0)


def state_of(model: edgedec.Model, step: StepResult, row: int) -> Floats:
    """The last hidden state [1, H] of a row of a call."""
    return step.result.hidden[model.spec.n_blocks - 1][row : row + 1]


def paths(draft: Any) -> dict[tuple[int, ...], float]:
    """Of each node its tokens from the root, and its own probability."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, draft.p, strict=True))


@pytest.mark.parametrize("nodes", [1, 2, 5, 12])
def test_hydra_grows_the_tree_that_looks_at_every_node(folder: Path, nodes: int) -> None:
    _, arrays, facts = with_head(folder, "hydra")
    model = edgedec.open(folder, engine="reference")
    drafter = drafter_for(model, "hydra", beam="64")
    about = seen(model, [2, 3], 1, [9])
    drafter.observe(about)
    draft = draft_of(model.runtime, drafter.propose(Context([1, 2, 3, 9], 3, model.runtime.new_cache(16)), nodes, 0.0))

    def followers(at: tuple[Floats, int, int]) -> list[tuple[int, float, tuple[Floats, int, int]]]:
        state, token, depth = at
        if depth == DEPTH:
            return []
        call = Call(Rows.chain([token], 0), model.runtime.new_cache(1), (), outputs=Outputs(hidden=(-1,)))
        embedding = forward_one(model.runtime, call).hidden[-1]
        after = hydra.step(NumpyOps(arrays, facts.eps), state, embedding.astype(np.float64))
        p = np.exp(guesses(arrays, facts, after))[0]
        best = np.argsort(-p)[:TOP]
        return [(int(arrays["vocab"][i]), float(p[i]), (after, int(arrays["vocab"][i]), depth + 1)) for i in best]

    expect = grow((state_of(model, about, 1).astype(np.float64), 9, 0), followers, nodes)
    found = paths(draft)
    assert found == pytest.approx(paths(expect), abs=1e-4)


def test_medusa_guesses_are_of_the_row_that_came_true(folder: Path) -> None:
    with_head(folder, "medusa")
    model = edgedec.open(folder, engine="reference")
    drafter = drafter_for(model, "medusa")
    about = seen(model, [2, 3, 9], 1, [9, 4])
    drafter.observe(about)
    draft = draft_of(model.runtime, drafter.propose(Context([1, 2, 3, 9, 4], 3, model.runtime.new_cache(16)), 40, 0.0))
    ids, logprobs = open_head(model.bundle, HEADS["medusa"]).run(state_of(model, about, 2))
    for path, p in paths(draft).items():
        depth = len(path) - 1
        at = ids[0, depth].tolist().index(path[-1])
        assert p == pytest.approx(float(np.exp(logprobs[0, depth, at])))
    assert max(map(len, paths(draft))) == DEPTH


def test_depth_and_options(folder: Path) -> None:
    with_head(folder, "medusa")
    with_head(folder, "hydra")
    model = edgedec.open(folder, engine="reference")
    for name in ("medusa", "hydra"):
        drafter = drafter_for(model, name, depth="1")
        drafter.observe(seen(model, [2, 3], 1, [9]))
        draft = draft_of(model.runtime, drafter.propose(Context([1, 2, 3, 9], 3, model.runtime.new_cache(16)), 40, 0.0))
        assert set(draft.parents) == {-1}
        with pytest.raises(UsageError, match="depth=-1"):
            drafter_for(model, name, depth="-1")
    with pytest.raises(UsageError, match="beam=0"):
        drafter_for(model, "hydra", beam="0")


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_a_bundle_without_the_head_says_how_to_make_it(tiny: Path, name: str) -> None:
    model = edgedec.open(tiny, engine="reference")
    with pytest.raises(UsageError, match=f"edgedec train-heads .*DATA --kind {name}"):
        drafter_for(model, name)
