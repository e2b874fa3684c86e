"""A row's logits and what it leaves in the cache are the same however it is run: bit for bit.

What everything is held to is `alone`: every row in a call of its own, on one thread, after its own chain of rows run
likewise. Compared with it: random trees and chains of 1 to 64 rows, grown or at once, several texts in one forward,
blocks one at a time, two threads, every instruction set of this CPU, and texts that were drafted, committed, cut and
forked before. Kinds of blocks: attention, mlp, experts, state spaces, delta rules, short
convolutions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from bundles import KINDS, ODD, random_weights, write_bundle
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.kernels.cpu import loader
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, logits_of
from edgedec.spec import KV_FORMATS, ModelSpec
from edgedec.spec.branches import may_enter
from edgedec.spec.newer import NEWER, newer
from edgedec.testing.conformance.models import MODELS as CONFORMANCE

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

ROOM = 400
# One of each for an architecture, in turn: format, block.
FORMATS = (
    *(("int4", 32), ("int8", 16), ("int4+zeros", 64), ("f32", 32), ("int4", 128), ("f16", 32), ("int8", 64)),
    *(("int8+zeros", 32), ("int4", 16), ("int4+zeros", 32), ("int4+offsets", 32), ("int8+offsets", 32)),
    ("int8+rows", 32),
)


def _models() -> dict[str, ModelSpec]:
    """Every architecture, with room for more than one chunk of keys; the odd sizes; every kind of block."""
    found = {f"odd-{name}": spec for name, spec in ODD.items()}
    found |= {f"kinds-{name}": replace(spec, context_length=ROOM) for name, spec in KINDS.items()}
    try:
        import zoo_golden
        from checkpoints import LLAMA

        from edgedec.models import architecture
    except ImportError:
        return found
    for name in sorted(CONFIGS):
        config = LLAMA | WIDE | CONFIGS[name] | {"model_type": name, "max_position_embeddings": ROOM}
        if name == "gemma3":
            tied = {"tie_word_embeddings": True}
            config = {"model_type": name, "text_config": config | tied | {"model_type": "gemma3_text"}, **tied}
        found[name] = architecture(config).spec(config)
    for name in OTHERS:  # whose configs have keys of their own
        config = zoo_golden.golden(name).config
        longer = {key: ROOM for key in ("max_position_embeddings", "max_seq_len") if config.get(key)}
        found[name] = replace(architecture(config | longer).spec(config | longer), context_length=ROOM)
    others = ("experts chosen before attention", "experts in levels", "sums normed twice")
    for name in ("experts chosen before the layers", *others):
        found[name] = replace(CONFORMANCE[name], context_length=ROOM)
    return found


# Heads wide enough to have an int4 cache, of one group of 16 values and a part of another.
WIDE = {"hidden_size": 96, "head_dim": 24}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 20, "sliding_window": 9}
CONFIGS: dict[str, dict[str, object]] = {
    "mimo": {},
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
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **{"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False, "num_key_value_heads": 4},
    "granitemoe": {
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 2.0, "logits_scaling": 3.0},
        **{"residual_multiplier": 0.5, "attention_multiplier": 0.2},
    },
}
# Blocks side by side, ALiBi, clips, xIELU, norms of heads and of what the last matrices read; experts of gpt-oss and
# ERNIE, latent attention, slots that blocks share, streams.
OTHERS = (
    *("apertus", "bitnet", "bloom", "cohere2", "gpt_neox", "mpt", "stablelm_beside"),
    *("ernie4_5_moe", "gemma3n_text", "gemma4_experts", "gemma4_text", "gpt_oss", "phi", "youtu"),
)
MODELS = _models()


LENGTHS = st.sampled_from([0, 1, 5, 31, 254, 255, 256, 257, 300])
TEXTS = (0, 1, 5, 31, 100, 200, 250, 254, 255, 256, 257, 300)


class Alone:
    """One row a call, one thread."""

    def __init__(self, bundle: Bundle, kv: str) -> None:
        self.spec, self.kv = bundle.spec, kv
        self.runtime = native.NativeRuntime(bundle, kv, 1)
        rng = np.random.default_rng(3)
        self.ids = rng.integers(0, self.spec.vocab_size, 300).tolist()
        cache, self._logits, self._texts = self.runtime.new_cache(ROOM), list[np.ndarray](), dict[int, Cache]()
        for n, token in enumerate([*self.ids, 0]):
            if n in TEXTS:
                self._texts[n] = cache.fork()
            if n < len(self.ids):
                self._logits.append(self._step(cache, token))

    def _step(self, cache: Cache, token: int) -> np.ndarray:
        logits = logits_of(self.runtime, Rows.chain([token], cache.length), cache)
        cache.commit([0])
        return logits[0]

    def logits(self, length: int) -> np.ndarray:
        """Of the text's first tokens."""
        return np.array(self._logits[:length])

    def text(self, length: int) -> Cache:
        """The text's first tokens, cached one by one."""
        nearest = max(n for n in self._texts if n <= length)
        cache = self._texts[nearest].fork()
        for token in self.ids[nearest:length]:
            self._step(cache, token)
        return cache

    def rows(self, rows: Rows, length: int) -> tuple[np.ndarray, dict[int, Cache]]:
        """Logits [n, vocab] of every row of a tree after the text, and the cache after each."""
        caches, logits = {-1: self.text(length)}, []
        for i, (token, parent) in enumerate(zip(rows.tokens.tolist(), rows.parents.tolist(), strict=True)):
            caches[i] = cache = caches[parent].fork()
            logits.append(self._step(cache, token))
        return np.array(logits), caches


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


def same_cache(found: Cache, expected: Cache) -> None:
    """All that the caches hold: positions, keys, values, recurrent states."""
    mine, theirs = found.save(), expected.save()
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        same(mine[name], array)


@pytest.fixture(scope="module", params=list(MODELS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = MODELS[request.param]
    weights, block = FORMATS[list(MODELS).index(request.param) % len(FORMATS)]
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    return write_bundle(folder, spec, random_weights(spec, 1), weights, block=block)


@pytest.fixture(scope="module")
def apart(bundle: Bundle) -> Callable[[str], Alone]:
    """By the cache's format."""
    return functools.cache(functools.partial(Alone, bundle))


@st.composite
def trees(draw: st.DrawFn, vocab: int) -> tuple[list[int], list[int], int]:
    """Tokens, parents, and how many of the rows an earlier call has run."""
    n = draw(st.sampled_from([1, 2, 7, 7, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    parents = [int(rng.integers(-1, i)) for i in range(n)]
    if draw(st.booleans()):
        parents = list(range(-1, n - 1))
    return rng.integers(0, vocab, n).tolist(), parents, draw(st.integers(0, n - 1))


def path(rows: Rows, row: int) -> list[int]:
    """From a root down to a row."""
    parent = int(rows.parents[row])
    return [*(path(rows, parent) if parent >= 0 else []), row]


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_row_is_the_same_in_any_company(bundle: Bundle, apart: Callable[[str], Alone], kv: str) -> None:
    alone, engines = apart(kv), [native.NativeRuntime(bundle, kv, threads) for threads in (1, 2)]
    texts = st.lists(st.tuples(LENGTHS, trees(bundle.spec.vocab_size)), min_size=1, max_size=3)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(texts=texts, two=st.booleans(), by_block=st.booleans())
    def check(texts: list, two: bool, by_block: bool) -> None:
        engine, calls, expected = engines[two], [], []
        for length, (ids, parents, first) in texts:
            whole = Rows.tree(ids, parents, length)
            logits, caches = alone.rows(whole, length)
            cache, rows = _moved(engine, caches[-1]), whole
            if first:
                begun = Rows.tree(ids[:first], parents[:first], length)
                same(logits_of(engine, begun, cache), logits[:first])
                rows = begun.extend(ids[first:], parents[first:])
            calls.append(Call(rows, cache, outputs=ALL_LOGITS))
            expected.append((logits[first:], caches, whole))
        found = _by_block(engine, calls) if by_block else [result.logits for result in engine.forward(calls)]
        for call, logits, (theirs, caches, whole) in zip(calls, found, expected, strict=True):
            same(logits, theirs)
            taken = path(whole, len(whole) - 1)
            call.cache.commit(taken)
            same_cache(call.cache, caches[taken[-1]])

    check()


def _moved(engine: native.NativeRuntime, cache: Cache) -> Cache:
    """The same content in a cache of another engine."""
    moved = engine.new_cache(ROOM)
    moved.load(cache.save())
    return moved


def _by_block(engine: native.NativeRuntime, calls: list[Call]) -> list[np.ndarray]:
    """All calls block by block, each block for all of them in one forward; blocks side by side together."""
    states = [result.hidden[-1] for result in engine.forward([_sliced(call, (), None, -1) for call in calls])]
    starts = [b for b in range(engine.spec.n_blocks) if may_enter(engine.spec, b)]
    for first, end in itertools.pairwise((*starts, engine.spec.n_blocks)):
        blocks, last = tuple(range(first, end)), end - 1
        results = engine.forward([_sliced(call, blocks, x, last) for call, x in zip(calls, states, strict=True)])
        states = [result.hidden[last] for result in results]
    ends = [call._replace(blocks=(), hidden=x) for call, x in zip(calls, states, strict=True)]
    return [result.logits for result in engine.forward(ends)]


def _sliced(call: Call, blocks: tuple[int, ...], hidden: np.ndarray | None, wanted: int) -> Call:
    return call._replace(blocks=blocks, hidden=hidden, outputs=Outputs(hidden=(wanted,)))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_prefill_may_come_in_any_pieces(bundle: Bundle, apart: Callable[[str], Alone], kv: str) -> None:
    alone, engines = apart(kv), [native.NativeRuntime(bundle, kv, threads) for threads in (1, 2)]
    n = len(alone.ids)
    for sizes in ([150, 150], [256, 44], [7, 64, 200, 1, 28], [128, 128, 44], [1, 255, 44]):
        for engine in engines:
            cache, found = engine.new_cache(ROOM), []
            for size in sizes:
                found.append(logits_of(engine, Rows.chain(alone.ids[cache.length :][:size], cache.length), cache))
                cache.commit(range(size))
            same(np.concatenate(found), alone.logits(n))
            same_cache(cache, alone.text(n))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_text_drafted_and_cut_is_the_text(bundle: Bundle, apart: Callable[[str], Alone], kv: str) -> None:
    """Rounds of proposing a tree around the text, committing what was right in pieces, forking and going back."""
    alone, engine = apart(kv), native.NativeRuntime(bundle, kv, 2)
    rng, n, cut, forked = np.random.default_rng(5), len(alone.ids), 0, 0
    cache: Cache = engine.new_cache(ROOM)
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
            start = cache.length
            logits = logits_of(engine, Rows.tree(ids, parents, start), cache)
            kept = right[1 : 1 + int(rng.integers(0, len(right) + 1))]
            for at, row in enumerate(kept):
                same(logits[row], alone.logits(n)[start + at])
            middle = int(rng.integers(0, len(kept) + 1))
            for piece in (kept[:middle], kept[middle:]):
                cache.commit(piece)
            cache.rollback()
        if rng.random() < 0.3:
            cache.truncate(int(rng.integers(cache.length // 2, cache.length + 1)))
            cut += 1
        if rng.random() < 0.2:
            cache = cache.fork()
            forked += 1
    assert cut > 3
    assert forked > 1
    same_cache(cache, alone.text(cache.length))
    assert cache.length > 20 or bundle.spec.recurrent


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_every_instruction_set_gives_the_same_bytes(bundle: Bundle, apart: Callable[[str], Alone], kv: str) -> None:
    alone, ids = apart(kv), np.random.default_rng(7).integers(0, bundle.spec.vocab_size, 33).tolist()
    expected, caches = alone.rows(Rows.chain(ids, 250), 250)
    isas = [name for name, runs in loader.isas().items() if runs]
    assert "scalar" in isas
    for isa in isas:
        engine = native.NativeRuntime(bundle, kv, 1, isa=isa)
        cache = _moved(engine, caches[-1])
        assert engine.isa == isa
        same(logits_of(engine, Rows.chain(ids, 250), cache), expected)
        cache.commit(range(33))
        same_cache(cache, caches[32])


def test_the_models_have_every_kind() -> None:
    kinds = {kind for spec in MODELS.values() for kind in spec.kinds}
    assert kinds == set(native.KINDS) - {"power_law"}
    assert {fact for spec in MODELS.values() for fact in newer(spec)} == set(NEWER)
