"""The native engine beside the reference: every architecture, every weight format, sizes that fit nothing.

With float weights the two differ by the order of float32 sums. With int8 and int4 weights the engine also
rounds what is multiplied to int8, a scale for every 32 inputs: there the divergence is held small.

What is bitwise (rows, threads, instruction sets) is checked here on the models of the zoo with int4 weights, and at
length in `test_row_invariance.py` on random ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo_golden
from bundles import ODD, Read, random_weights, write_bundle

from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.export.checkpoint import open_checkpoint
from edgedec.kernels.cpu import loader
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
from edgedec.runtimes.reference import Reference
from edgedec.spec import KV_FORMATS, ModelSpec
from edgedec.spec.branches import feeds, may_enter
from edgedec.testing.conformance.compare import ends, may_run

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")
TORCH = all(map(find_spec, ("torch", "transformers")))
if TORCH:
    import zoo

EXACT = 1e-4  # float32 sums in another order, for logits that spread by 1
ROUNDED = 2e-2  # nats a row: weights and activations in 8 bits at the coarsest block
ROUTED = 4e-2  # the median of rows, in some layer of which another expert may be chosen
CARRIED = 0.15  # a row, by the states of models that are made of them
# Of what a block adds to a row, at most. A softmax and a recurrence magnify what their inputs lost; another expert than
# the reference's would add something else altogether.
BLOCK_ERROR = {"mlp": 0.05, "moe": 0.05} | dict.fromkeys(
    (
        *("altup", "attention", "channel_mix", "conv", "delta", "gmu", "latent", "laurel", "lookup", "rwkv7", "s6"),
        *("shared_attention", "ssm"),
    ),
    0.1,
)
TREE = ([3, 9, 4, 4, 5, 8, 9, 7, 6], [-1, 0, 0, 1, 1, 3, 2, 6, -1])
# Matrices, head, embedding, block.
FORMATS: dict[str, tuple[str, str | None, str | None, int]] = {
    "f32": ("f32", None, None, 32),
    "f16": ("f16", None, None, 32),
    "int8-16": ("int8", None, None, 16),
    "int8-256": ("int8", None, None, 256),
    "int4-16": ("int4", None, None, 16),
    "int4-32": ("int4", None, None, 32),
    "int4-64": ("int4", None, None, 64),
    "int4-128": ("int4", None, None, 128),
    "mixed": ("int4", "int8", "f16", 32),
    "int4-64-zeros": ("int4+zeros", None, None, 64),
    "int8-32-zeros": ("int8+zeros", "int4", "int4", 32),
    "int4-32-offsets": ("int4+offsets", None, None, 32),
    "int8-32-offsets": ("int8+offsets", "int4", "int4", 32),
    "int8-rows": ("int8+rows", None, None, 32),
}


def tokens(spec: ModelSpec, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, spec.vocab_size, n).tolist()


def read(runtime: Runtime, ids: list[int], capacity: int) -> Cache:
    """A cache with these tokens committed."""
    cache = runtime.new_cache(capacity)
    if ids:
        logits_of(runtime, Rows.chain(ids, 0), cache)
        cache.commit(range(len(ids)))
    assert cache.length == len(ids)
    return cache


def whole(runtime: Runtime, rows: Rows, before: Sequence[int] = ()) -> np.ndarray:
    """Logits of `rows` after a text."""
    return logits_of(runtime, rows, read(runtime, list(before), len(before) + len(rows)))


def sliced(runtime: Runtime, rows: Rows, blocks: Sequence[int], cache: Cache) -> np.ndarray:
    """Logits of `rows` after some blocks; embedding, blocks and head are a call each."""
    hidden = forward_one(runtime, Call(rows, cache, (), outputs=Outputs(hidden=(-1,)))).hidden[-1]
    if blocks:
        last = blocks[-1]
        hidden = forward_one(runtime, Call(rows, cache, blocks, hidden, Outputs(hidden=(last,)))).hidden[last]
    logits = forward_one(runtime, Call(rows, cache, (), hidden, ALL_LOGITS)).logits
    assert logits is not None
    return logits


def close(found: np.ndarray, expected: np.ndarray, times: float = 1.0) -> None:
    assert expected.std() > 0.05
    np.testing.assert_allclose(found, expected, atol=times * EXACT * max(1.0, float(expected.std())), rtol=0)


def divergence(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Nats, row by row."""
    wide = (x.astype(np.float64) for x in (expected, found))
    p, q = (x - np.logaddexp.reduce(x, axis=1)[:, None] for x in wide)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1))


def kl(expected: np.ndarray, found: np.ndarray) -> float:
    """Nats a row, averaged."""
    return float(divergence(expected, found).mean())


def pair(bundle: Bundle, kv: str = "f32", threads: int = 1) -> tuple[Runtime, Runtime]:
    """The reference, with a float cache, and the engine."""
    engine = open_runtime("native", bundle, RuntimeOptions(threads=threads, kv=kv))
    return open_runtime("reference", bundle, RuntimeOptions(kv="f32")), engine


# -- the architectures


@pytest.fixture(scope="module")
def architecture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Read]:
    golden = zoo_golden.golden(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "checkpoint"
    return opened(zoo_golden.write(folder, golden.config, golden.tensors))


@pytest.fixture(scope="module")
def initial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Read]:
    """Of the zoo's odd sizes; where torch is not installed, of those of `zoo_golden`, less wild: limits of rounding are
    of such weights."""
    folder = tmp_path_factory.mktemp(request.param) / "checkpoint"
    if TORCH:
        zoo.save(request.param, folder)
        return opened(folder)
    golden = zoo_golden.golden(request.param)
    return opened(zoo_golden.write(folder, golden.config, golden.tensors, wild=0.5))


def opened(folder: Path) -> tuple[ModelSpec, Read]:
    """The spec of a checkpoint, and what reads a tensor of it."""
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec()
    sources = checkpoint.weights(spec)

    @functools.cache
    def weight(name: str) -> np.ndarray:
        return checkpoint.read(sources[name], 0, checkpoint.shape(sources[name])[0])

    return spec, weight


every_architecture = pytest.mark.parametrize("architecture", zoo_golden.names(), indirect=True)
every_initial = pytest.mark.parametrize("initial", sorted(zoo.ZOO) if TORCH else zoo_golden.names(), indirect=True)


@every_initial
def test_every_architecture_gives_the_references_logits(initial: tuple[ModelSpec, Read], tmp_path: Path) -> None:
    spec, weight = initial
    bundle = write_bundle(tmp_path / "b", spec, weight)
    reference, engine = pair(bundle, threads=2)
    ids, times = tokens(spec, min(40, spec.context_length - 12)), 1.2 if spec.recurrent else 1.0
    close(whole(engine, Rows.chain(ids, 0)), whole(reference, Rows.chain(ids, 0)), times)
    tree = Rows.tree(*TREE, start=13)
    close(whole(engine, tree, ids[:13]), whole(reference, tree, ids[:13]), times)
    assert max(((w or 0) for w, _ in spec.windows), default=0) < len(ids)


@every_initial
def test_every_architecture_is_cut_as_the_reference_is(initial: tuple[ModelSpec, Read], tmp_path: Path) -> None:
    """A layer skipped, an attention without its MLP, a block alone, none at all; a block twice is refused by both."""
    spec, weight = initial
    runtimes = pair(write_bundle(tmp_path / "b", spec, weight))
    blocks, rows = spec.span(), Rows.tree(*TREE, start=0)
    first, rest = spec.span(0, 1), spec.span(1)
    layers = (rest, (*first, *spec.span(2)))
    for slice_ in (*layers, blocks[2:], (blocks[0], *blocks[3:]), (*blocks[:2], *blocks[3:]), (1,), (0, 3), ()):
        # The state after a branch is what the block beside it reads, and inside streams states have more values.
        inside = slice_ and spec.width(slice_[0] - 1) != spec.hidden_size
        if slice_ and (spec.blocks[slice_[-1]].branch or not may_run(spec, slice_) or inside):
            for runtime in runtimes:
                with pytest.raises(UsageError):
                    sliced(runtime, rows, slice_, runtime.new_cache(32))
            continue
        expected, found = (sliced(runtime, rows, slice_, runtime.new_cache(32)) for runtime in runtimes)
        # Zamba2's shared blocks, after others than in the model, magnify rounding more.
        close(found, expected, times=2 if any(block.with_embedding for block in spec.attention.values()) else 1)
    for slice_ in ((*blocks[:3], *blocks[1:]), (1, 0), (0, 0, 3)):
        for runtime in runtimes:
            with pytest.raises(UsageError):
                sliced(runtime, rows, slice_, runtime.new_cache(32))


@every_initial
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_every_architecture_stays_near_when_quantized(
    initial: tuple[ModelSpec, Read], weights: str, tmp_path: Path
) -> None:
    """Near to the reference on the same quantized weights, whose rounding is none of the engine's.

    With experts some rows are near to a tie of two of them, and rounding below may choose the other: there only most
    rows are near. That the choice is right where the rows are the same is in the test after this one. States carry the
    rounding of all rows before on, and norms that of blocks that feed others: models of them are further off as a
    whole, and as near as others block by block.
    """
    spec, weight = initial
    carried = not spec.attention or {"delta", "rwkv7", "s6"} & set(spec.kinds) or any(map(feeds, spec.blocks))
    ids, experts = tokens(spec, 30), "moe" in spec.kinds
    limit = CARRIED if carried else ROUTED if experts else ROUNDED
    found = {}
    for layout in ("rows", "interleave16"):
        bundle = write_bundle(tmp_path / layout, spec, weight, weights, layout=layout)
        reference, engine = pair(bundle)
        expected, found[layout] = whole(reference, Rows.chain(ids, 0)), whole(engine, Rows.chain(ids, 0))
        by_row = divergence(expected, found[layout])
        assert 0 < (np.median(by_row) if experts else by_row.mean()) < limit
    assert found["rows"].tobytes() == found["interleave16"].tobytes()


@every_initial
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_every_block_stays_near_when_quantized(initial: tuple[ModelSpec, Read], weights: str, tmp_path: Path) -> None:
    """What a block adds to the reference's state before it, in every row, the choice of experts included.

    Errors are in parts of what the block adds to the row; those of Mamba-1 add next to nothing to some rows, which are
    compared with what they add to the median one."""
    spec, weight = initial
    reference, engine = pair(write_bundle(tmp_path / "b", spec, weight, weights))
    rows = Rows.chain(tokens(spec, 30), 0)
    starts = [b for b in range(spec.n_blocks) if may_enter(spec, b)]
    blocks = (-1, *ends(spec))
    states = forward_one(reference, Call(rows, reference.new_cache(32), outputs=Outputs(hidden=blocks))).hidden
    cache = engine.new_cache(32)
    for first, end in itertools.pairwise((*starts, spec.n_blocks)):  # blocks side by side run together
        before, after, last = states[first - 1], states[end - 1], end - 1
        found = forward_one(engine, Call(rows, cache, range(first, end), before, Outputs(hidden=(last,)))).hidden[last]
        kinds = {block.kind for block in spec.blocks[first:end]}
        entered = max(0, after.shape[1] - before.shape[1])  # streams, of which there were none
        added = np.linalg.norm(after - np.pad(before, ((0, 0), (0, entered)))[:, : after.shape[1]], axis=1)
        added = np.maximum(added, np.median(added) if "s6" in kinds else 0)
        error = np.linalg.norm(found - after, axis=1) / added
        limit = max(BLOCK_ERROR[kind] for kind in kinds)
        assert 0 < np.quantile(error, 0.9) < limit, (first, error.round(4))
        # A norm of heads whose values nearly cancel, and a step of a state, make one row's rounding much of its result.
        assert error.max() < (6 * limit if kinds & {"delta", "rwkv7", "s6", "ssm"} else limit), (first, error.round(4))


# -- the same bytes, however it is run


@pytest.fixture(scope="module")
def quantized(architecture: tuple[ModelSpec, Read], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec, weight = architecture
    return write_bundle(tmp_path_factory.mktemp("int4") / "b", spec, weight, "int4")


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


def same_cache(found: Cache, expected: Cache) -> None:
    """Positions, keys, values and recurrent states."""
    mine, theirs = found.save(), expected.save()
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        same(mine[name], array)


def one_by_one(runtime: Runtime, ids: list[int]) -> tuple[np.ndarray, Cache]:
    """Logits of a text whose every token is a call, and its cache."""
    cache, found = runtime.new_cache(len(ids) + 16), []
    for token in ids:
        found.append(logits_of(runtime, Rows.chain([token], cache.length), cache))
        cache.commit([0])
    return np.concatenate(found), cache


def path(rows: Rows, row: int) -> list[int]:
    """From a root down to a row."""
    parent = int(rows.parents[row])
    return [*(path(rows, parent) if parent >= 0 else []), row]


@every_architecture
def test_a_trees_rows_are_the_ends_of_their_chains(quantized: Bundle) -> None:
    """At once and grown, before any text and after some; what is committed of it is the chain's."""
    engine = native.NativeRuntime(quantized, "f16", 2)
    for n in (0, 13):
        before = tokens(quantized.spec, n)
        tree, text = Rows.tree(*TREE, start=n), read(engine, before, 40)
        whole_tree, grown = text.fork(), text.fork()
        found = logits_of(engine, tree, whole_tree)
        begun = Rows.tree(TREE[0][:4], TREE[1][:4], n)
        same(logits_of(engine, begun, grown), found[:4])
        same(logits_of(engine, begun.extend(TREE[0][4:], TREE[1][4:]), grown), found[4:])
        for row in range(len(tree)):
            ids = [*before, *tree.tokens[path(tree, row)].tolist()]
            logits, alone = one_by_one(engine, ids)
            same(found[row], logits[-1])
        for cache in (whole_tree, grown):
            cache.commit(path(tree, row))
            same_cache(cache, alone)
        assert len({logits.tobytes() for logits in found}) == len(tree), "rows differ"


@every_architecture
def test_threads_companions_and_slices_change_no_byte(quantized: Bundle) -> None:
    """1 to 3 threads; alone, in pieces, with two other texts in one forward, and a layer at a time."""
    spec = quantized.spec
    texts = [tokens(spec, n, seed=n) for n in (1, 17, 30)]
    slow = native.NativeRuntime(quantized, "f16", 1)
    expected = [one_by_one(slow, ids)[0] for ids in texts]
    for threads in (1, 2, 3):
        engine = native.NativeRuntime(quantized, "f16", threads)
        calls = [Call(Rows.chain(ids, 0), engine.new_cache(40), outputs=ALL_LOGITS) for ids in texts]
        for result, logits in zip(engine.forward(calls), expected, strict=True):
            same(result.logits, logits)
        for ids, logits in zip(texts, expected, strict=True):
            same(whole(engine, Rows.chain(ids, 0)), logits)
            same(by_layer(engine, Rows.chain(ids, 0)), logits)
        same(whole(engine, Rows.chain(texts[2][11:], 11), texts[2][:11]), expected[2][11:])


def by_layer(runtime: Runtime, rows: Rows) -> np.ndarray:
    """Logits of `rows`, a call for each layer of the model."""
    spec, cache = runtime.spec, runtime.new_cache(len(rows))
    hidden = forward_one(runtime, Call(rows, cache, (), outputs=Outputs(hidden=(-1,)))).hidden[-1]
    for layer in range(spec.n_layers):
        blocks = spec.span(layer, layer + 1)
        call = Call(rows, cache, blocks, hidden, Outputs(hidden=(blocks[-1],)))
        hidden = forward_one(runtime, call).hidden[blocks[-1]]
    logits = forward_one(runtime, Call(rows, cache, (), hidden, ALL_LOGITS)).logits
    assert logits is not None
    return logits


@every_architecture
def test_every_instruction_set_gives_the_same_bytes(quantized: Bundle) -> None:
    spec, found = quantized.spec, dict[str, tuple[np.ndarray, Cache]]()
    ids = tokens(spec, min(29, spec.context_length - 12))
    isas = [name for name, runs in loader.isas().items() if runs]
    for isa in isas:
        engine = native.NativeRuntime(quantized, "f16", 2, isa=isa)
        assert engine.isa == isa
        cache = engine.new_cache(40)
        logits = logits_of(engine, Rows.chain(ids, 0), cache)
        cache.commit(range(len(ids)))
        tree = logits_of(engine, Rows.tree(*TREE, start=len(ids)), cache)
        cache.commit([0, 2, 6])
        found[isa] = np.concatenate([logits, tree]), cache
    expected, text = found["scalar"]
    assert expected.std() > 0.05
    for logits, cache in found.values():
        same(logits, expected)
        same_cache(cache, text)


# -- sizes and formats


@pytest.fixture(params=list(ODD))
def odd(request: pytest.FixtureRequest) -> ModelSpec:
    return ODD[request.param]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Bundle]:
    def write(spec: ModelSpec, fmt: str, layout: str = "interleave16") -> Bundle:
        weights, head, embed, block = FORMATS[fmt]
        if spec.tied:
            head = embed = None
        return write_bundle(
            tmp_path / f"{fmt}-{layout}",
            spec,
            random_weights(spec),
            weights,
            head=head,
            embed=embed,
            block=block,
            layout=layout,
        )

    return write


@pytest.mark.parametrize("fmt", FORMATS)
def test_odd_sizes(odd: ModelSpec, fmt: str, write: Callable[..., Bundle]) -> None:
    reference, engine = pair(write(odd, fmt), threads=2)
    ids = tokens(odd, 45)
    expected, found = (whole(runtime, Rows.chain(ids, 0)) for runtime in (reference, engine))
    if fmt in ("f32", "f16"):
        close(found, expected)
    else:
        assert kl(expected, found) < ROUNDED
        assert found.tobytes() == whole(pair(write(odd, fmt, "rows"))[1], Rows.chain(ids, 0)).tobytes()


def test_a_text_of_several_chunks(odd: ModelSpec, write: Callable[..., Bundle]) -> None:
    """Attention is summed 256 keys at a time; windows end before, on and after a border."""
    reference, engine = pair(write(odd, "f32"), threads=2)
    ids = tokens(odd, 530)
    expected, found = in_pieces(reference, ids, [256, 256, 18]), []
    for sizes in ([256, 256, 18], [256, 255, 1, 18], [200, 60, 256, 14]):
        found.append(in_pieces(engine, ids, sizes))
        close(found[-1], expected)
        same(found[-1], found[0])


def in_pieces(runtime: Runtime, ids: list[int], sizes: list[int]) -> np.ndarray:
    """Logits of a text in calls of these sizes."""
    cache, found = runtime.new_cache(len(ids)), []
    for size in sizes:
        found.append(logits_of(runtime, Rows.chain(ids[cache.length :][:size], cache.length), cache))
        cache.commit(range(size))
    assert cache.length == len(ids)
    return np.concatenate(found)


# What a cache format costs: nats a row beside a float cache; and what its rows hold of the values, relatively.
KV_COST = {"f32": 1e-8, "f16": 1e-5, "int8": 2e-3, "int4": 0.2}


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_cache_formats_cost_what_they_may(odd: ModelSpec, kv: str, write: Callable[..., Bundle]) -> None:
    reference, engine = pair(write(odd, "f32"), kv)
    ids = tokens(odd, 60)
    expected, found = (whole(runtime, Rows.chain(ids, 0)) for runtime in (reference, engine))
    assert kl(expected, found) < KV_COST[kv]
    if kv != "f32" and odd.hidden_size > 1:
        assert not np.array_equal(found, whole(pair(write(odd, "f32"))[1], Rows.chain(ids, 0)))


def embedded(runtime: Runtime, ids: np.ndarray) -> np.ndarray:
    """Embedding rows of these tokens, in calls that the runtime takes."""
    most, found = runtime.capabilities.largest_call, []
    for start in range(0, len(ids), most):
        rows = Rows.chain(ids[start : start + most].tolist(), 0)
        call = Call(rows, runtime.new_cache(len(rows)), (), outputs=Outputs(hidden=(-1,)))
        found.append(forward_one(runtime, call).hidden[-1])
    return np.concatenate(found)


def test_embedding_rows_are_the_bundles(odd: ModelSpec, write: Callable[..., Bundle]) -> None:
    every = np.arange(odd.vocab_size)
    for fmt in FORMATS:
        for layout in ("rows", "interleave16"):
            bundle = write(odd, fmt, layout)
            expected = bundle.rows("embed") * np.float32(odd.embed_scale)
            np.testing.assert_array_equal(embedded(pair(bundle)[1], every), expected)


def test_the_reference_reads_what_was_written(write: Callable[..., Bundle]) -> None:
    """The bundles above hold the weights they were made of: or both runtimes would be wrong alike."""
    spec = ODD["plain"]
    weight = random_weights(spec)
    direct: Any = Reference(spec, lambda name, start, stop: weight(name)[start:stop])
    ids = tokens(spec, 20)
    close(whole(pair(write(spec, "f32"))[0], Rows.chain(ids, 0)), whole(direct, Rows.chain(ids, 0)))
