"""Every architecture as a bundle, on every runtime: transformers' logits, and the same ones however it is run.

Where torch is not installed the models are those of `zoo_golden`, beside what transformers once made of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zoo_golden
from onnx_sessions import session as session_of
from zoo_golden import PROMPT, STEPS, TOKENS

from edgedec.bundle import Bundle
from edgedec.cache import Cache, HostCache
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.onnx import whole_model_reason
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import (
    ALL_LOGITS,
    Call,
    Outputs,
    Rows,
    Runtime,
    RuntimeOptions,
    forward_one,
    logits_of,
    open_runtime,
)
from edgedec.spec.branches import may_enter
from edgedec.spec.newer import ENTRY, NO_GRAPHS, QK_NORM, SLOPES, newer
from edgedec.testing.conformance.compare import ends, may_run

TORCH = all(map(find_spec, ("torch", "transformers")))
if TORCH:
    import torch
    import zoo

KV = ("f32", "f16", "int8", "int4")
ENGINES = ("reference", "ort")
THREE = (*ENGINES, *(["native"] if why_not() is None else []))
# Kinds of blocks that an engine does not have.
LACKED = {"ort": {"altup", "channel_mix", "gmu", "laurel", "lookup", "rwkv7", "s6"}}
# 3 ─┬─ 9 ─┬─ 4 ── 8        two nodes carry the same token after different parents, and there are two roots
#    │     └─ 5
#    └─ 4 ── 9 ── 7
# 6
TREE = ([3, 9, 4, 4, 5, 8, 9, 7, 6], [-1, 0, 0, 1, 1, 3, 2, 6, -1])
EXACT = 1e-4  # float32 sums in another order, for logits that spread by 1; the zoo's do by 1 to 2


@dataclass(frozen=True, eq=False)
class Case:
    """model: of transformers; None: golden has what it made of TOKENS. Tests share the runtimes, and what is compared
    with another's, by `made`."""

    model: Any
    bundle: Bundle
    golden: zoo_golden.Golden | None = None
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def once(self, make: Callable[..., Any], *args: Any) -> Any:
        """What `make` gives for the case and these arguments, made by the first test that asks."""
        if (make, *args) not in self.made:
            self.made[(make, *args)] = make(self, *args)
        return self.made[(make, *args)]

    def expected(self, ids: list[int]) -> np.ndarray:
        if self.golden is not None:
            assert ids == TOKENS
            return self.golden.logits
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].numpy()

    def masked(self, ids: list[int], rows: Rows, before: int) -> np.ndarray:
        """Logits of `rows` after `before` tokens, by transformers with a mask for every row."""
        n = len(ids)
        sees = np.tri(n, dtype=bool)
        sees[before:] = rows.mask(np.arange(before))
        bias = torch.where(torch.tensor(sees), 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            return self.model(torch.tensor([ids]), attention_mask=bias).logits[0, before:].numpy()

    def runtime(self, engine: str, kv: str = "f32") -> Runtime:
        if lacking := sorted(LACKED.get(engine, set()) & set(self.bundle.spec.kinds)):
            with pytest.raises(RuntimeUnavailable, match=lacking[0]):
                open_runtime(engine, self.bundle, RuntimeOptions(threads=1, kv=kv))
            pytest.skip(f"{engine} has no {lacking[0]}, and says so")
        if engine == "ort" and (others := [fact for fact in newer(self.bundle.spec) if fact in NO_GRAPHS]):
            with pytest.raises(RuntimeUnavailable, match=f"has no {others[0]}"):
                open_runtime(engine, self.bundle, RuntimeOptions(threads=1, kv=kv))
            pytest.skip(f"ort has no {others[0]}")
        if engine == "ort" and "latent" in self.bundle.spec.kinds:
            with pytest.raises(RuntimeUnavailable, match="has no latent blocks, which this model needs"):
                open_runtime(engine, self.bundle, RuntimeOptions(threads=1, kv=kv))
            pytest.skip("ort has no latent blocks")
        return self.once(opened, engine, kv)

    def whole(self, engine: str, ids: Sequence[int]) -> np.ndarray:
        """Logits [n, vocab] of all ids in one call."""
        return self.once(whole_of, engine, tuple(ids))


def opened(case: Case, engine: str, kv: str) -> Runtime:
    return open_runtime(engine, case.bundle, RuntimeOptions(threads=1, kv=kv))


def whole_of(case: Case, engine: str, ids: tuple[int, ...]) -> np.ndarray:
    runtime = case.runtime(engine)
    return logits_of(runtime, Rows.chain(list(ids), 0), runtime.new_cache(len(ids)))


@pytest.fixture(scope="module", params=sorted(zoo.ZOO) if TORCH else zoo_golden.few())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    if not TORCH:
        return golden_case(request.param, folder)
    random = zoo._random
    with mock.patch.object(zoo, "_random", lambda a, b, config, seed: random(a, b, zoo_golden.fitted(config), seed)):
        model = zoo.save(request.param, folder / "checkpoint")
    return Case(model, exported(folder, request.param))


def golden_case(name: str, folder: Path) -> Case:
    golden = zoo_golden.golden(name)
    zoo_golden.write(folder / "checkpoint", golden.config, golden.tensors)
    return Case(None, exported(folder, name), golden)


def exported(folder: Path, name: str) -> Bundle:
    # LongRoPE's other set of factors, and texts that cross the length: test_long_ropes.py.
    context = {"phi3_longrope": 32, "phimoe": 72}.get(name)
    options = ExportOptions(weights="f32", kv=KV, check=False, context=context)
    return export(str(folder / "checkpoint"), folder / "bundle", options)


@pytest.fixture(params=THREE)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(runtime: Runtime, ids: list[int], sizes: list[int]) -> tuple[np.ndarray, Cache]:
    """The same in calls of these sizes, then one at a time."""
    cache, parts = runtime.new_cache(len(ids) + 16), []
    sizes = [*sizes, *[1] * (len(ids) - sum(sizes))]
    for size in sizes:
        parts.append(logits_of(runtime, Rows.chain(ids[cache.length :][:size], cache.length), cache))
        cache.commit(range(size))
    return np.concatenate(parts), cache


def kl(expected: np.ndarray, found: np.ndarray) -> float:
    """Nats a row, averaged."""
    wide = (x.astype(np.float64) for x in (expected, found))
    p, q = (x - np.logaddexp.reduce(x, axis=1)[:, None] for x in wide)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def close(found: np.ndarray, expected: np.ndarray, times: int = 1) -> None:
    atol = times * EXACT * max(1.0, float(expected.std()))
    np.testing.assert_allclose(found, expected, atol=atol, rtol=0)


def test_greedy_decoding_is_that_of_transformers(case: Case, engine: str) -> None:
    """Each token is the likeliest of transformers after those before it: the same text, step by step.

    All windows of the zoo are exceeded on the way.
    """
    runtime, ids = case.runtime(engine), list(PROMPT)
    steps = min(STEPS, case.bundle.spec.context_length - len(ids))
    cache = runtime.new_cache(len(ids) + steps)
    logits = [logits_of(runtime, Rows.chain(ids, 0), cache)]
    cache.commit(range(len(ids)))
    for _ in range(steps):
        ids.append(int(logits[-1][-1].argmax()))
        logits.append(logits_of(runtime, Rows.chain(ids[-1:], cache.length), cache))
        cache.commit([0])
    assert max(((w or 0) for w, _ in case.bundle.spec.windows), default=0) < len(ids)
    if case.golden is not None:
        assert ids == case.golden.text[: len(ids)]
        close(case.whole(engine, TOKENS), case.golden.logits)
        return
    expected = case.expected(ids)
    assert 0.3 < expected.std() < 5
    assert expected[len(PROMPT) - 1 : -1].argmax(axis=1).tolist() == ids[len(PROMPT) :]
    close(np.concatenate(logits), expected)


@pytest.mark.skipif(not TORCH, reason="needs torch and transformers")
@pytest.mark.parametrize("name", zoo_golden.names())
def test_golden_logits_and_texts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    golden = zoo_golden.golden(name)
    folder = zoo_golden.write(tmp_path / "checkpoint", golden.config, golden.tensors)
    close(zoo_golden.logits_of_transformers(folder, TOKENS), golden.logits)
    assert zoo_golden.text_of_transformers(folder) == golden.text
    assert sorted({*zoo_golden.names(), "mimo"}) == sorted(zoo.ZOO)


def test_one_call_and_many_agree(case: Case, engine: str) -> None:
    runtime = case.runtime(engine)
    expected = case.whole(engine, TOKENS)
    for sizes in ([], [1, 5, 7], [len(TOKENS) - 1], [16, 8]):
        close(read(runtime, TOKENS, sizes)[0], expected)


def test_a_trees_nodes_are_the_ends_of_their_chains(case: Case, engine: str) -> None:
    runtime, before = case.runtime(engine), TOKENS[:13]
    tree = Rows.tree(*TREE, start=len(before))
    _, cache = read(runtime, before, [len(before)])
    found = logits_of(runtime, tree, cache)
    for row, logits in enumerate(found):
        close(logits, case.whole(engine, [*before, *_path(tree, row)])[-1])
    grown = Rows.tree(TREE[0][:4], TREE[1][:4], len(before)).extend(TREE[0][4:], TREE[1][4:])
    if isinstance(cache, HostCache):
        for b in case.bundle.spec.attention:
            cache.data(b)[:, :, len(before) + 4 :] = 0  # what the rows below wrote above must be written again
    close(logits_of(runtime, grown, cache), found[4:])
    cache.commit([0, 2, 6])  # the branch 3 4 9
    following = logits_of(runtime, Rows.chain([11], cache.length), cache)
    close(following, case.whole(engine, [*before, 3, 4, 9, 11])[-1:])


def _path(tree: Rows, row: int) -> list[int]:
    parent = int(tree.parents[row])
    return [*(_path(tree, parent) if parent >= 0 else []), int(tree.tokens[row])]


def sliced(runtime: Runtime, cache: Cache, rows: Rows, cut: list[Sequence[int]]) -> np.ndarray:
    """Logits of all rows after these slices of the stack, one call each; the head is a call of its own."""
    hidden = forward_one(runtime, Call(rows, cache, (), outputs=Outputs(hidden=(-1,)))).hidden[-1]
    for piece in cut:
        call = Call(rows, cache, piece, hidden, Outputs(hidden=(piece[-1],)))
        hidden = forward_one(runtime, call).hidden[piece[-1]]
    logits = forward_one(runtime, Call(rows, cache, (), hidden, ALL_LOGITS)).logits
    assert logits is not None
    return logits


def test_the_stack_may_be_cut_anywhere(case: Case, engine: str) -> None:
    runtime, spec = case.runtime(engine), case.bundle.spec
    blocks = spec.span()
    expected = case.whole(engine, TOKENS)
    layer_cuts = [[blocks[: spec.span(0, at)[-1] + 1], spec.span(at)] for at in range(1, spec.n_layers)]
    starts = [b for b in blocks if may_enter(spec, b)]  # blocks side by side stay together
    for b in sorted(set(blocks) - set(ends(spec))):
        with pytest.raises(UsageError):
            sliced(runtime, runtime.new_cache(len(TOKENS)), Rows.chain(TOKENS, 0), [blocks[: b + 1], blocks[b + 1 :]])
    block_cuts = [[blocks[:at], blocks[at:]] for at in starts[1:]]
    each = [blocks[a:z] for a, z in itertools.pairwise((*starts, len(blocks)))]
    for cut in (*layer_cuts, *block_cuts, each, [blocks]):
        cache = runtime.new_cache(len(TOKENS))
        close(sliced(runtime, cache, Rows.chain(TOKENS, 0), cut), expected)


def test_a_tree_may_come_first(case: Case, engine: str) -> None:
    """Drafts may be verified together with a prompt that is not cached yet."""
    runtime, tree = case.runtime(engine), Rows.tree(*TREE, start=0)
    found = logits_of(runtime, tree, runtime.new_cache(len(tree)))
    for row, logits in enumerate(found):
        close(logits, case.whole(engine, _path(tree, row))[-1], times=4)  # random weights magnify rounding


def test_blocks_may_be_left_out(case: Case, engine: str) -> None:
    """A layer skipped, an attention without its MLP: the runtimes agree on any blocks in order.

    To four times EXACT: in random weights a block left out magnifies rounding (one float32 rounding of each product of
    the reference moves mamba_tied's logits by 1.4 times EXACT).
    """
    blocks, before = case.bundle.spec.span(), TOKENS[:13]
    rows = Rows.tree(*TREE, start=len(before))
    everything = case.once(logits_after, "reference", tuple(before))
    for slice_ in (blocks[2:], (blocks[0], *blocks[3:]), (*blocks[:2], *blocks[3:]), (1,), (0, 3)):
        spec = case.bundle.spec
        # The state after a branch is what the block beside it reads, and inside streams states have more values.
        inside = spec.width(slice_[0] - 1) != spec.hidden_size
        if spec.blocks[slice_[-1]].branch or not may_run(spec, slice_) or inside:
            with pytest.raises(UsageError):
                sliced(case.runtime(engine), case.runtime(engine).new_cache(16), rows, [slice_])
            continue
        found = [case.once(left_out, name, tuple(slice_)) for name in ("reference", engine)]
        close(*found, times=4)
        assert np.abs(found[1] - everything).max() > 100 * EXACT


def left_out(case: Case, engine: str, slice_: tuple[int, ...]) -> np.ndarray:
    """Logits of the tree after some text, of these blocks alone."""
    runtime, before = case.runtime(engine), TOKENS[:13]
    _, cache = read(runtime, before, [len(before)])
    return sliced(runtime, cache, Rows.tree(*TREE, start=len(before)), [slice_])


def test_fewer_rows_from_a_block_on(case: Case, engine: str) -> None:
    """Three of nine prompt rows go on after the first layer: the same logits as on the reference, now, for the text
    after them, and when the cache was forked, or saved and loaded."""
    if case.bundle.spec.owners:
        pytest.skip("blocks that read what others keep run on the same rows")
    found = {name: case.once(of_fewer_rows, name) for name in ("reference", engine)}
    for mine, theirs in zip(found[engine], found["reference"], strict=True):
        close(mine, theirs)
    close(found[engine][2], found[engine][1])
    close(found[engine][3], found[engine][1])
    assert np.abs(found[engine][1] - case.whole(engine, [*TOKENS[:9], 5, 6, 7])[-3:]).max() > 1e-3


def of_fewer_rows(case: Case, engine: str) -> list[np.ndarray]:
    """Logits of the three rows; of a tree after them, on the cache, a fork and one that was saved and loaded."""
    spec, runtime = case.bundle.spec, case.runtime(engine)
    first, rest, kept = spec.span(0, 1), spec.span(1), [0, 3, 8]
    cache, rows = runtime.new_cache(64), Rows.chain(TOKENS[:9], 0)
    low = forward_one(runtime, Call(rows, cache, first, outputs=Outputs(hidden=(first[-1],)))).hidden[first[-1]]
    high = forward_one(runtime, Call(rows.select(kept), cache, rest, low[kept], ALL_LOGITS)).logits
    assert high is not None
    cache.commit(range(9))
    assert cache.length == 9
    assert {b: cache.slots(b) for b in spec.attention} == {b: 9 if b in first else 3 for b in spec.attention}
    loaded = runtime.new_cache(64)
    loaded.load(cache.save())
    copies = [cache, cache.fork(), loaded]
    return [high, *(logits_of(runtime, Rows.tree([5, 6, 7], [-1, 0, 0], 9), copy) for copy in copies)]


def test_dropped_slots_are_not_seen(case: Case, engine: str) -> None:
    if not case.bundle.spec.attention:
        pytest.skip("a model without attention has no slots")
    found = [case.once(with_dropped_slots, name) for name in ("reference", engine)]
    close(*found)
    assert np.abs(found[1] - case.once(logits_after, engine, tuple(TOKENS[:13]))).max() > 1e-4


def with_dropped_slots(case: Case, engine: str) -> np.ndarray:
    """Logits of the tree after a text whose last block lost slots."""
    runtime = case.runtime(engine)
    _, cache = read(runtime, TOKENS[:13], [13])
    block = list(case.bundle.spec.attention)[-1]
    cache.drop(block, [1, 2, 11])
    assert cache.slots(block) == 10
    assert cache.positions(block).tolist() == [0, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    return logits_of(runtime, Rows.tree(*TREE, 13), cache)


def logits_after(case: Case, engine: str, ids: tuple[int, ...]) -> np.ndarray:
    """Of the tree, after these tokens."""
    runtime = case.runtime(engine)
    _, cache = read(runtime, list(ids), [len(ids)])
    return logits_of(runtime, Rows.tree(*TREE, len(ids)), cache)


def test_rows_in_groups_see_each_other(case: Case, engine: str) -> None:
    """Two groups and a row of none, after some text and before any; held against transformers with a mask where every
    layer sees everything, else against the reference."""
    spec = case.bundle.spec
    if spec.recurrent:
        pytest.skip("a recurrent block has no rows that see each other")
    for before in (TOKENS[:5], []):
        n, rows = len(before), grouped(len(before))
        found = [case.once(of_groups, name, tuple(before)) for name in ("reference", engine)]
        close(found[1], found[0])
        ids = [*before, *rows.tokens.tolist()]
        plain = case.whole(engine, ids)[n:]
        assert np.abs(found[1][0] - plain[0]).max() > 1e-3, "row 0 looks forward"
        # transformers makes learned positions and BLOOM's ALiBi of the mask; MPT's raises the scores of later keys.
        sloped = any(block.slopes for block in spec.attention.values())
        if spec.windows == ((None, 0),) and case.model is not None and spec.entry is None and not sloped:
            close(found[1], case.masked(ids, rows, n))


def grouped(start: int) -> Rows:
    groups = np.array([0, -1, 0, 1, 1, 1])
    return Rows(np.array([9, 8, 7, 6, 5, 4]), np.arange(start, start + 6), np.arange(-1, 5), groups=groups)


def of_groups(case: Case, engine: str, before: tuple[int, ...]) -> np.ndarray:
    runtime = case.runtime(engine)
    cache = read(runtime, list(before), [len(before)])[1] if before else runtime.new_cache(32)
    return logits_of(runtime, grouped(len(before)), cache)


def test_attention_sums(case: Case, engine: str) -> None:
    """Every row pays 1 for each query head of a KV head, less what goes to a score of no token."""
    spec, found = case.bundle.spec, [case.once(paid, name) for name in ("reference", engine)]
    assert set(found[0]) == set(found[1]) == set(spec.attention)
    for b, block in spec.attention.items():
        assert found[1][b].shape == (block.n_kv_heads, 9 + len(TREE[0]))
        np.testing.assert_allclose(found[1][b], found[0][b], atol=1e-4)
        sums, whole = found[1][b].sum(axis=1), 9 * block.n_heads / block.n_kv_heads
        if block.sink_logit:
            assert (sums < whole - 1e-3).all()
        else:
            np.testing.assert_allclose(sums, whole, rtol=1e-4)


def paid(case: Case, engine: str) -> dict[int, np.ndarray]:
    """What the tree's rows pay to each slot, by block."""
    runtime = case.runtime(engine)
    _, cache = read(runtime, TOKENS[:9], [9])
    return forward_one(runtime, Call(Rows.tree(*TREE, 9), cache, outputs=Outputs(attention=True))).attention


def test_embeddings_in_place_of_tokens(case: Case, engine: str) -> None:
    runtime, rows = case.runtime(engine), Rows.chain(TOKENS, 0)
    embedded = forward_one(runtime, Call(rows, runtime.new_cache(64), (), outputs=Outputs(hidden=(-1,)))).hidden[-1]
    if case.bundle.spec.lookups:
        with pytest.raises(UsageError, match="embeddings of layers"):
            logits_of(runtime, Rows.embedded(embedded, 0), runtime.new_cache(64))
        return
    found = logits_of(runtime, Rows.embedded(embedded, 0), runtime.new_cache(64))
    close(found, case.whole(engine, TOKENS))


def test_the_whole_model_graph_gives_the_same_last_row(case: Case) -> None:
    """`model.onnx` in plain ONNX Runtime, as onnxruntime-genai drives it: windows are in the graph itself."""
    spec, artifacts = case.bundle.spec, case.bundle.manifest.artifacts
    if LACKED["ort"] & set(spec.kinds):
        assert not artifacts
        return
    plain = whole_model_reason(spec) is None
    assert plain or set(spec.kinds) != {"attention", "mlp"} or set(newer(spec)) & {ENTRY, SLOPES, QK_NORM, *NO_GRAPHS}
    if "ort" not in artifacts:
        pytest.skip("ort has no latent blocks")
    assert ("model.onnx" in artifacts["ort"].files, "genai" in artifacts) == (plain, plain)
    if not plain:
        return
    session = session_of(str(case.bundle.file("model.onnx")))
    expected = case.expected(TOKENS)
    names = [f"{i}.{part}" for i in range(len(spec.attention)) for part in ("key", "value")]
    block = spec.attention[0]
    past = [np.zeros((1, block.n_kv_heads, 0, block.head_dim), np.float32) for _ in names]
    for start, stop in ((0, 17), (17, 18), (18, 19), *((at, at + 1) for at in range(19, len(TOKENS)))):
        feeds = {f"past_key_values.{name}": array for name, array in zip(names, past, strict=True)}
        feeds |= {"input_ids": np.array([TOKENS[start:stop]]), "attention_mask": np.ones((1, stop), np.int64)}
        outputs = ["logits", *(f"present.{name}" for name in names)]
        logits, *past = session.run(outputs, feeds)
        close(logits[0, -1], expected[stop - 1])


def test_the_embed_graph_is_the_runtimes_embedding(case: Case) -> None:
    if LACKED["ort"] & set(case.bundle.spec.kinds):
        pytest.skip("it has no graphs")
    if "ort" not in case.bundle.manifest.artifacts:
        pytest.skip("ort has no latent blocks")
    session = session_of(str(case.bundle.file("embed.onnx")))
    feeds = {"input_ids": np.array([TOKENS]), "position_ids": np.arange(len(TOKENS))[None]}
    found = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0][0]
    for engine in THREE:
        runtime = case.runtime(engine)
        call = Call(Rows.chain(TOKENS, 0), runtime.new_cache(32), (), outputs=Outputs(hidden=(-1,)))
        hidden = forward_one(runtime, call).hidden[-1]
        np.testing.assert_allclose(hidden, found, rtol=0, atol=1e-5 if case.bundle.spec.entry else 0)  # a norm's sum


@pytest.mark.parametrize("kv", ["f16", "int8", "int4"])
def test_small_caches_hold_the_same_on_both_runtimes(case: Case, kv: str) -> None:
    """A value within float32 noise of a rounding border may fall on either side, and the difference spreads
    through the layers above; so what is stored is compared by share, and the logits by divergence."""
    if not case.bundle.spec.attention:
        pytest.skip("a model without attention has no slots")
    (expected, theirs), (found, ours) = (read(case.runtime(engine, kv), TOKENS, [5, 8]) for engine in ENGINES)
    stored = [
        np.concatenate([a.ravel() for name, a in cache.save().items() if name.startswith("kv.")])
        for cache in (theirs, ours)
    ]
    same = np.isclose(*(values.astype(np.float32) for values in stored), rtol=2e-3, atol=2e-3)
    assert same.mean() > 0.97, same.mean()
    assert kl(expected, found) < 5e-5, kl(expected, found)
    assert kl(case.whole("reference", TOKENS), expected) > 1e-11  # the format was not just ignored
