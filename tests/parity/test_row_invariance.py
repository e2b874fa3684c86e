"""A row's logits and its bytes in the cache are the same however it is run: bit for bit.

What everything is held to is `alone`: every row in a call of its own, on one thread, behind its own chain of
rows run likewise. Against it stand random trees and chains of 1 to 64 rows, grown or at once, several texts
in one call, blocks one at a time, two threads, every instruction set of this CPU, and texts that were
drafted, kept and cut before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.kernels.cpu import loader
from edgedec.runtime.core import forward
from edgedec.runtime.rows import Rows
from edgedec.spec import KV_FORMATS, ModelSpec

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

ROOM = 400
# One of each for an architecture, in turn: format, block.
FORMATS = (("int4", 32), ("int8", 16), ("f32", 32), ("int4", 128), ("f16", 32), ("int8", 64), ("int4", 16))


def _models() -> dict[str, ModelSpec]:
    """Every architecture of the zoo, with room for more than one chunk of keys; and the odd sizes."""
    found = {f"odd-{name}": spec for name, spec in ODD.items()}
    try:
        from checkpoints import LLAMA

        from edgedec.models import architecture, known
    except ImportError:
        return found
    for name in known():
        config = LLAMA | WIDE | CONFIGS.get(name, {}) | {"model_type": name, "max_position_embeddings": ROOM}
        if name == "gemma3":
            tied = {"tie_word_embeddings": True}
            config = {"model_type": name, "text_config": config | tied | {"model_type": "gemma3_text"}, **tied}
        found[name] = architecture(config).spec(config)
    return found


# Heads wide enough to have an int4 cache, of one group of 16 values and a part of another.
WIDE = {"hidden_size": 96, "head_dim": 24}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 20, "sliding_window": 9}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"head_dim": 52, "attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 258},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {"num_attention_heads": 6},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
    "gemma3": GEMMA,
    "gemma3_text": GEMMA,
    "phi3": {"sliding_window": 30, "original_max_position_embeddings": ROOM},
    "smollm3": {"no_rope_layer_interval": 2},
    "olmo2": {"num_key_value_heads": 4},
}
MODELS = _models()


class Alone:
    """One row a call, one thread."""

    def __init__(self, bundle: Bundle, kv: str) -> None:
        self.spec, self.kv = bundle.spec, kv
        self.runtime = native.NativeRuntime(bundle, kv, 1)
        rng = np.random.default_rng(3)
        self.ids = rng.integers(0, self.spec.vocab_size, 300).tolist()
        self._cache, self._logits = self.runtime.new_cache(ROOM), list[np.ndarray]()
        for token in self.ids:
            self._logits.append(self._step(self._cache, token))

    def _step(self, cache: Cache, token: int) -> np.ndarray:
        logits = forward(self.runtime, Rows.chain([token], cache.length), cache)
        cache.keep([0])
        return logits[0]

    def logits(self, length: int) -> np.ndarray:
        """Of the text's first tokens."""
        return np.array(self._logits[:length])

    def text(self, length: int) -> Cache:
        """The text's first tokens, cached."""
        twin = self._cache.fork()
        twin.truncate(length)
        return twin

    def rows(self, rows: Rows, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits [n, vocab] and cached bytes [n, ...] of every row of a tree behind the text."""
        caches, logits, stored = {-1: self.text(length)}, [], []
        for i, (token, parent) in enumerate(zip(rows.tokens.tolist(), rows.parents.tolist(), strict=True)):
            caches[i] = cache = caches[parent].fork()
            logits.append(self._step(cache, token))
            stored.append(cache.rows(cache.length - 1, cache.length)[:, :, :, 0].copy())
        return np.array(logits), np.array(stored)


def slots(cache: Cache, start: int, stop: int) -> np.ndarray:
    """[n, ...]: committed or, behind those, of the last call."""
    own = cache.n_shared
    found = cache.rows(start, stop) if start < own else cache.data[:, :, :, start - own : stop - own]
    return found.transpose(3, 0, 1, 2, 4)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.fixture(scope="module", params=list(MODELS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = MODELS[request.param]
    weights, block = FORMATS[list(MODELS).index(request.param) % len(FORMATS)]
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    return write_bundle(folder, spec, random_weights(spec, 1), weights, block=block)


@st.composite
def trees(draw: st.DrawFn, vocab: int) -> tuple[list[int], list[int], int]:
    """Tokens, parents, and how many of the rows an earlier call has run."""
    n = draw(st.sampled_from([1, 2, 7, 7, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    parents = [int(rng.integers(-1, i)) for i in range(n)]
    if draw(st.booleans()):
        parents = list(range(-1, n - 1))
    return rng.integers(0, vocab, n).tolist(), parents, draw(st.integers(0, n - 1))


LENGTHS = st.sampled_from([0, 1, 5, 31, 254, 255, 256, 257, 300])


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_row_is_the_same_in_any_company(bundle: Bundle, kv: str) -> None:
    alone, engines = Alone(bundle, kv), [native.NativeRuntime(bundle, kv, threads) for threads in (1, 2)]
    blocks = bundle.spec.blocks()
    texts = st.lists(st.tuples(LENGTHS, trees(bundle.spec.vocab_size)), min_size=1, max_size=3)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(texts=texts, two=st.booleans(), by_block=st.booleans())
    def check(texts: list, two: bool, by_block: bool) -> None:
        engine, parts, expected = engines[two], [], []
        for length, (ids, parents, first) in texts:
            cache, rows = alone.text(length), Rows.tree(ids, parents, length)
            logits, stored = alone.rows(rows, length)
            if first:
                begun = Rows.tree(ids[:first], parents[:first], length)
                same(forward(engine, begun, cache), logits[:first])
                rows = begun.grown(ids[first:], parents[first:])
            parts.append((rows, cache))
            expected.append((logits[first:], stored))
        if by_block:
            hidden = engine.embed(np.concatenate([rows.tokens[rows.first :] for rows, _ in parts]))
            for block in blocks:
                hidden = engine.run_batch(hidden, parts, [block])
            found = engine.head(hidden)
        else:
            found = engine.logits_batch(parts)
        same(found, np.concatenate([logits for logits, _ in expected]))
        for (rows, cache), (_, stored) in zip(parts, expected, strict=True):
            same(slots(cache, cache.length, cache.length + len(rows)), stored)
            same(slots(cache, 0, cache.length), slots(alone.text(cache.length), 0, cache.length))

    check()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_prefill_may_come_in_any_pieces(bundle: Bundle, kv: str) -> None:
    alone, engines = Alone(bundle, kv), [native.NativeRuntime(bundle, kv, threads) for threads in (1, 2)]
    n = len(alone.ids)
    for sizes in ([n], [256, 44], [7, 64, 200, 1, 28], [128, 128, 44], [299, 1]):
        for engine in engines:
            cache, found = engine.new_cache(ROOM), []
            for size in sizes:
                found.append(forward(engine, Rows.chain(alone.ids[cache.length :][:size], cache.length), cache))
                cache.keep(range(size))
            same(np.concatenate(found), alone.logits(n))
            same(slots(cache, 0, n), slots(alone.text(n), 0, n))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_text_drafted_and_cut_is_the_text(bundle: Bundle, kv: str) -> None:
    """Rounds of proposing a tree around the text, keeping what was right, and going back."""
    alone, engine = Alone(bundle, kv), native.NativeRuntime(bundle, kv, 2)
    rng, cache, n = np.random.default_rng(5), None, len(alone.ids)
    cache = engine.new_cache(ROOM)
    for _ in range(25):
        ids, parents, right = [], [], [-1]
        for i in range(min(int(rng.integers(1, 40)), n - cache.length)):
            parent = int(rng.choice([right[-1], rng.integers(-1, i)]))
            if parent == right[-1]:
                right.append(i)
                ids.append(alone.ids[cache.length + len(right) - 2])
            else:
                ids.append(int(rng.integers(0, bundle.spec.vocab_size)))
            parents.append(parent)
        if ids:
            logits = forward(engine, Rows.tree(ids, parents, cache.length), cache)
            kept = right[1 : 1 + int(rng.integers(0, len(right) + 1))]
            for at, row in enumerate(kept):
                same(logits[row], alone.logits(n)[cache.length + at])
            cache.keep(kept)
        if rng.random() < 0.3:
            cache.truncate(int(rng.integers(cache.length // 2, cache.length + 1)))
    assert cache.length > 20
    same(slots(cache, 0, cache.length), slots(alone.text(cache.length), 0, cache.length))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_every_instruction_set_gives_the_same_bytes(bundle: Bundle, kv: str) -> None:
    alone, ids = Alone(bundle, kv), np.random.default_rng(7).integers(0, bundle.spec.vocab_size, 33).tolist()
    expected, stored = alone.rows(Rows.chain(ids, 250), 250)
    isas = [name for name, runs in loader.isas().items() if runs]
    assert "scalar" in isas
    for isa in isas:
        engine, cache = native.NativeRuntime(bundle, kv, 1, isa=isa), alone.text(250)
        assert engine.isa == isa
        same(forward(engine, Rows.chain(ids, 250), cache), expected)
        same(slots(cache, 250, 283), stored)


def test_the_models_are_many() -> None:
    folder = Path(__file__).parents[2] / "models"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert len(MODELS) > 12
    assert {name.split("_")[0] for name in MODELS if not name.startswith("odd")} <= files
