"""The native engine beside the reference: every architecture, every weight format, sizes that fit nothing.

With float weights the two differ by the order of float32 sums. With int8 and int4 weights the engine also
rounds what is multiplied to int8, a scale for every 32 inputs: there the divergence is held small.
What is bitwise (rows, threads, instruction sets) is in `test_row_invariance.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, Read, random_weights, write_bundle

from edgedec.bundle.folder import Bundle
from edgedec.kernels.cpu import loader
from edgedec.runtime.core import Runtime, RuntimeOptions, forward, open_runtime
from edgedec.runtime.rows import Rows
from edgedec.runtimes.reference import Reference
from edgedec.spec import KV_FORMATS, ModelSpec

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

EXACT = 1e-4  # float32 sums in another order, for logits that spread by 1
ROUNDED = 2e-2  # nats a row: weights and activations in 8 bits at the coarsest block
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
}


def tokens(spec: ModelSpec, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, spec.vocab_size, n).tolist()


def whole(runtime: Runtime, rows: Rows, before: list[int] = []) -> np.ndarray:  # noqa: B006
    """Logits of `rows` after a text."""
    cache = runtime.new_cache(len(before) + len(rows))
    if before:
        forward(runtime, Rows.chain(before, 0), cache)
        cache.keep(range(len(before)))
    return forward(runtime, rows, cache)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.05
    np.testing.assert_allclose(found, expected, atol=EXACT * max(1.0, float(expected.std())), rtol=0)


def kl(expected: np.ndarray, found: np.ndarray) -> float:
    """Nats a row, averaged."""
    wide = (x.astype(np.float64) for x in (expected, found))
    p, q = (x - np.logaddexp.reduce(x, axis=1)[:, None] for x in wide)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def pair(bundle: Bundle, kv: str = "f32", threads: int = 1) -> tuple[Runtime, Runtime]:
    """The reference, with a float cache, and the engine."""
    native = open_runtime("native", bundle, RuntimeOptions(threads=threads, kv=kv))
    return open_runtime("reference", bundle, RuntimeOptions(kv="f32")), native


# -- the architectures


@pytest.fixture(scope="module")
def architecture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Read]:
    zoo = pytest.importorskip("zoo", reason="needs torch and transformers to build the models compared with")
    from edgedec.export.checkpoint import open_checkpoint
    from edgedec.models import architecture as of

    folder = tmp_path_factory.mktemp(request.param)
    zoo.save(request.param, folder)
    checkpoint = open_checkpoint(folder)
    model = of(checkpoint.config)
    spec = model.spec(checkpoint.config)
    sources = model.weights(spec)

    def read(name: str) -> np.ndarray:
        return checkpoint.read(sources[name], 0, checkpoint.shape(sources[name])[0])

    return spec, read


def _zoo() -> list[str]:
    try:
        import zoo
    except BaseException:  # pytest's own Skipped is no Exception
        return []
    return sorted(zoo.ZOO)


every_architecture = pytest.mark.parametrize("architecture", _zoo() or ["none"], indirect=True)


@every_architecture
def test_every_architecture_gives_the_references_logits(architecture: tuple[ModelSpec, Read], tmp_path: Path) -> None:
    spec, read = architecture
    bundle = write_bundle(tmp_path / "b", spec, read)
    reference, native = pair(bundle, threads=2)
    ids = tokens(spec, min(40, spec.context_length - 12))
    close(whole(native, Rows.chain(ids, 0)), whole(reference, Rows.chain(ids, 0)))
    tree = Rows.tree(*TREE, start=13)
    close(whole(native, tree, ids[:13]), whole(reference, tree, ids[:13]))
    assert max((w or 0) for w in spec.windows) < len(ids)


@every_architecture
def test_every_architecture_is_cut_as_the_reference_is(architecture: tuple[ModelSpec, Read], tmp_path: Path) -> None:
    """A layer skipped, an attention without its MLP, a block run twice, none at all."""
    spec, read = architecture
    blocks, rows = spec.blocks(), Rows.tree(*TREE, start=0)
    for slice_ in (blocks[2:], (blocks[0], *blocks[3:]), (*blocks[:4], *blocks[1:]), (1, 0), (0, 0, 3), ()):
        found = []
        for runtime in pair(write_bundle(tmp_path / "b", spec, read)):
            hidden = runtime.run(runtime.embed(rows.tokens), rows, runtime.new_cache(32), slice_)
            found.append(runtime.head(hidden))
        close(found[1], found[0])


@every_architecture
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_every_architecture_stays_near_when_quantized(
    architecture: tuple[ModelSpec, Read], weights: str, tmp_path: Path
) -> None:
    """Near to the reference on the same quantized weights, whose rounding is none of the engine's."""
    spec, read = architecture
    ids = tokens(spec, 30)
    found = {}
    for layout in ("rows", "lanes16"):
        bundle = write_bundle(tmp_path / layout, spec, read, weights, layout=layout)
        reference, native = pair(bundle)
        expected, found[layout] = whole(reference, Rows.chain(ids, 0)), whole(native, Rows.chain(ids, 0))
        assert 0 < kl(expected, found[layout]) < ROUNDED
    assert found["rows"].tobytes() == found["lanes16"].tobytes()


# -- sizes and formats


@pytest.fixture(params=list(ODD))
def odd(request: pytest.FixtureRequest) -> ModelSpec:
    return ODD[request.param]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Bundle]:
    def write(spec: ModelSpec, fmt: str, layout: str = "lanes16") -> Bundle:
        weights, head, embed, block = FORMATS[fmt]
        if spec.tied:
            head = embed = None
        read = random_weights(spec)
        return write_bundle(
            tmp_path / f"{fmt}-{layout}", spec, read, weights, head=head, embed=embed, block=block, layout=layout
        )

    return write


@pytest.mark.parametrize("fmt", FORMATS)
def test_odd_sizes(odd: ModelSpec, fmt: str, write: Callable[..., Bundle]) -> None:
    reference, native = pair(write(odd, fmt), threads=2)
    ids = tokens(odd, 45)
    expected, found = (whole(runtime, Rows.chain(ids, 0)) for runtime in (reference, native))
    if fmt in ("f32", "f16"):
        close(found, expected)
    else:
        assert kl(expected, found) < ROUNDED
        assert found.tobytes() == whole(pair(write(odd, fmt, "rows"))[1], Rows.chain(ids, 0)).tobytes()


def test_a_text_of_several_chunks(odd: ModelSpec, write: Callable[..., Bundle]) -> None:
    """Attention is summed 256 keys at a time; windows end before, on and after a border."""
    reference, native = pair(write(odd, "f32"), threads=2)
    ids = tokens(odd, 530)
    expected = whole(reference, Rows.chain(ids, 0))
    close(whole(native, Rows.chain(ids, 0)), expected)
    cut = [ids[:256], ids[256:511], ids[511:512], ids[512:]]
    cache, found = native.new_cache(530), []
    for part in cut:
        found.append(forward(native, Rows.chain(part, cache.length), cache))
        cache.keep(range(len(part)))
    close(np.concatenate(found), expected)


# What a cache format costs: nats a row beside a float cache; and what its rows hold of the values, relatively.
KV_COST = {"f32": 1e-8, "f16": 1e-5, "int8": 2e-3, "int4": 0.2}


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_cache_formats_cost_what_they_may(odd: ModelSpec, kv: str, write: Callable[..., Bundle]) -> None:
    reference, native = pair(write(odd, "f32"), kv)
    ids = tokens(odd, 60)
    expected, found = (whole(runtime, Rows.chain(ids, 0)) for runtime in (reference, native))
    assert kl(expected, found) < KV_COST[kv]
    if kv != "f32" and odd.hidden_size > 1:
        assert not np.array_equal(found, whole(pair(write(odd, "f32"))[1], Rows.chain(ids, 0)))


def test_embedding_rows_are_the_bundles(odd: ModelSpec, write: Callable[..., Bundle]) -> None:
    every = np.arange(odd.vocab_size)
    for fmt in FORMATS:
        for layout in ("rows", "lanes16"):
            bundle = write(odd, fmt, layout)
            expected = bundle.rows("embed") * np.float32(odd.embed_scale)
            np.testing.assert_array_equal(pair(bundle)[1].embed(every), expected)


def test_the_reference_reads_what_was_written(write: Callable[..., Bundle]) -> None:
    """The bundles above hold the weights they were made of: or both runtimes would be wrong alike."""
    spec = ODD["plain"]
    read = random_weights(spec)
    direct: Any = Reference(spec, lambda name, start, stop: read(name)[start:stop])
    ids = tokens(spec, 20)
    close(whole(pair(write(spec, "f32"))[0], Rows.chain(ids, 0)), whole(direct, Rows.chain(ids, 0)))
