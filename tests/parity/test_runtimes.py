"""Every architecture as a bundle, on every runtime: transformers' logits, and the same ones however it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

zoo = pytest.importorskip("zoo", reason="needs torch and transformers to build the models compared with")
import onnxruntime as ort  # noqa: E402
import torch  # noqa: E402

from edgedec.bundle.folder import Bundle  # noqa: E402
from edgedec.cache.host import Cache  # noqa: E402
from edgedec.export.exporter import ExportOptions, export  # noqa: E402
from edgedec.kernels.cpu.loader import why_not  # noqa: E402
from edgedec.runtime import Rows, Runtime, RuntimeOptions, logits_of, open_runtime  # noqa: E402
from edgedec.runtime.rows import Rows  # noqa: E402

KV = ("f32", "f16", "int8", "int4")
ENGINES = ("reference", "ort")
THREE = (*ENGINES, *(["native"] if why_not() is None else []))
PROMPT = [1, 7, 3, 99]
STEPS = 64
TOKENS = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77, 6, 12, 40, 100, 8, 21, 34, 55]
# 3 ─┬─ 9 ─┬─ 4 ── 8        two nodes carry the same token behind different parents, and there are two roots
#    │     └─ 5
#    └─ 4 ── 9 ── 7
# 6
TREE = ([3, 9, 4, 4, 5, 8, 9, 7, 6], [-1, 0, 0, 1, 1, 3, 2, 6, -1])
EXACT = 1e-4  # float32 sums in another order, for logits that spread by 1; the zoo's do by 1 to 2


@dataclass(frozen=True)
class Case:
    model: Any
    bundle: Bundle

    def expected(self, ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].numpy()

    def runtime(self, engine: str, kv: str = "f32") -> Runtime:
        return open_runtime(engine, self.bundle, RuntimeOptions(threads=1, kv=kv))


def _fit(config: dict[str, Any]) -> dict[str, Any]:
    """The zoo's odd sizes as ONNX Runtime's attention takes them: a multiple of 8 rotated pairs a head."""
    if config.get("rope_parameters", {}).get("rope_type") == "longrope":
        rope = config["rope_parameters"] | {"partial_rotary_factor": 0.5}
        rope |= {key: [*rope[key], 3.0, 12.0] for key in ("short_factor", "long_factor")}
        return config | {"hidden_size": 128, "rope_parameters": rope}
    if config.get("head_dim", 16) % 16:
        return config | {"head_dim": 32}
    return config if "head_dim" in config or "hidden_size" not in config else config | {"hidden_size": 64}


@pytest.fixture(scope="module", params=sorted(zoo.ZOO))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder, random = tmp_path_factory.mktemp(request.param), zoo._random
    with mock.patch.object(zoo, "_random", lambda a, b, config, seed: random(a, b, _fit(config), seed)):
        model = zoo.save(request.param, folder / "checkpoint")
    options = ExportOptions(weights="f32", kv=KV, check=False)
    return Case(model, export(str(folder / "checkpoint"), folder / "bundle", options))


@pytest.fixture(params=THREE)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def whole(runtime: Runtime, ids: list[int]) -> np.ndarray:
    """Logits [n, vocab] of all ids in one call."""
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


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


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=EXACT * max(1.0, float(expected.std())), rtol=0)


def test_greedy_decoding_is_that_of_transformers(case: Case, engine: str) -> None:
    """Each token is the likeliest of transformers behind those before it: the same text, step by step.

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
    expected = case.expected(ids)
    assert 0.3 < expected.std() < 5
    assert expected[len(PROMPT) - 1 : -1].argmax(axis=1).tolist() == ids[len(PROMPT) :]
    assert max((w or 0) for w in case.bundle.spec.windows) < len(ids)
    close(np.concatenate(logits), expected)


def test_one_call_and_many_agree(case: Case, engine: str) -> None:
    runtime = case.runtime(engine)
    expected = whole(runtime, TOKENS)
    for sizes in ([], [1, 5, 7], [len(TOKENS) - 1], [16, 8]):
        close(read(runtime, TOKENS, sizes)[0], expected)


def test_a_trees_nodes_are_the_ends_of_their_chains(case: Case, engine: str) -> None:
    runtime, before = case.runtime(engine), TOKENS[:13]
    tree = Rows.tree(*TREE, start=len(before))
    _, cache = read(runtime, before, [len(before)])
    found = logits_of(runtime, tree, cache)
    for row, logits in enumerate(found):
        close(logits, whole(runtime, [*before, *_path(tree, row)])[-1])
    grown = Rows.tree(TREE[0][:4], TREE[1][:4], len(before)).grown(TREE[0][4:], TREE[1][4:])
    cache.data[:, :, :, len(before) + 4 :] = 0  # what the rows below wrote above must be written again
    close(logits_of(runtime, grown, cache), found[4:])
    cache.commit([0, 2, 6])  # the branch 3 4 9
    following = logits_of(runtime, Rows.chain([11], cache.length), cache)
    close(following, whole(runtime, [*before, 3, 4, 9, 11])[-1:])


def _path(tree: Rows, row: int) -> list[int]:
    parent = int(tree.parents[row])
    return [*(_path(tree, parent) if parent >= 0 else []), int(tree.tokens[row])]


def test_the_stack_may_be_cut_anywhere(case: Case, engine: str) -> None:
    runtime, blocks = case.runtime(engine), case.bundle.spec.blocks()
    expected = whole(runtime, TOKENS)
    layer_cuts = [[blocks[:at], blocks[at:]] for at in range(2, len(blocks), 2)]
    block_cuts = [[blocks[:at], blocks[at:]] for at in range(1, len(blocks))]
    for cut in (*layer_cuts, *block_cuts, [(block,) for block in blocks], [blocks]):
        rows, cache = Rows.chain(TOKENS, 0), runtime.new_cache(len(TOKENS))
        hidden = runtime.embed(rows.tokens)
        for piece in cut:
            hidden = runtime.run(hidden, rows, cache, piece)
        close(runtime.head(hidden), expected)


def test_a_tree_may_come_first(case: Case, engine: str) -> None:
    """Drafts may be verified together with a prompt that is not cached yet."""
    runtime, tree = case.runtime(engine), Rows.tree(*TREE, start=0)
    found = logits_of(runtime, tree, runtime.new_cache(len(tree)))
    for row, logits in enumerate(found):
        close(logits, whole(runtime, _path(tree, row))[-1])


def test_blocks_may_be_left_out_and_repeated(case: Case) -> None:
    """A layer skipped, an attention without its MLP, a block run twice: the runtimes agree on any sequence."""
    blocks, before = case.bundle.spec.blocks(), TOKENS[:13]
    rows = Rows.tree(*TREE, start=len(before))
    for slice_ in (blocks[2:], (blocks[0], *blocks[3:]), (*blocks[:4], *blocks[1:]), (1, 0), (0, 0, 3), ()):
        found = []
        for engine in ENGINES:
            runtime = case.runtime(engine)
            _, cache = read(runtime, before, [len(before)])
            found.append(runtime.head(runtime.run(runtime.embed(rows.tokens), rows, cache, slice_)))
        close(*found)


def test_the_whole_model_graph_gives_the_same_last_row(case: Case) -> None:
    """`model.onnx` in plain ONNX Runtime, as onnxruntime-genai drives it: windows are in the graph itself."""
    spec, graphs = case.bundle.spec, case.bundle.manifest.graphs
    session = ort.InferenceSession(str(case.bundle.file(graphs.model)), providers=["CPUExecutionProvider"])
    expected = case.expected(TOKENS)
    names = [f"{i}.{part}" for i in range(spec.n_layers) for part in ("key", "value")]
    past = [np.zeros((1, spec.n_kv_heads, 0, spec.head_dim), np.float32) for _ in names]
    for start, stop in ((0, 17), (17, 18), (18, 19), *((at, at + 1) for at in range(19, len(TOKENS)))):
        feeds = {f"past_key_values.{name}": array for name, array in zip(names, past, strict=True)}
        feeds |= {"input_ids": np.array([TOKENS[start:stop]]), "attention_mask": np.ones((1, stop), np.int64)}
        outputs = ["logits", *(f"present.{name}" for name in names)]
        logits, *past = session.run(outputs, feeds)
        close(logits[0, -1], expected[stop - 1])


def test_the_embed_graph_is_the_runtimes_embed(case: Case) -> None:
    path = case.bundle.file(case.bundle.manifest.graphs.embed)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(None, {"input_ids": np.array([TOKENS])})[0][0]
    for engine in THREE:
        np.testing.assert_array_equal(case.runtime(engine).embed(np.array(TOKENS)), found)


@pytest.mark.parametrize("kv", ["f16", "int8", "int4"])
def test_small_caches_hold_the_same_on_both_runtimes(case: Case, kv: str) -> None:
    """A value within float32 noise of a rounding border may fall on either side, and the difference spreads
    through the layers above; so what is stored is compared by share, and the logits by divergence."""
    (expected, theirs), (found, ours) = (read(case.runtime(engine, kv), TOKENS, [5, 8]) for engine in ENGINES)
    same = np.isclose(theirs.save().astype(np.float32), ours.save().astype(np.float32), rtol=2e-3, atol=2e-3)
    assert same.mean() > 0.97, same.mean()
    assert kl(expected, found) < 5e-5, kl(expected, found)
    assert kl(whole(case.runtime("reference"), TOKENS), expected) > 1e-9  # the format was not just ignored
