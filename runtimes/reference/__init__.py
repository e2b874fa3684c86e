"""The oracle: the model in numpy float32, one file a kind of block. Every other runtime is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgedec.bundle import Bundle
from edgedec.cache.host import HostCache
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import (
    Call,
    CallResult,
    Capabilities,
    DeviceName,
    Rows,
    RuntimeFacts,
    RuntimeOptions,
    View,
    check_calls,
    choose_kv,
    head_outputs,
    lacking_kinds,
    largest_call,
)
from edgedec.runtimes.reference import (
    attention,
    conv,
    delta,
    gmu,
    latent,
    laurel,
    lookup,
    mlp,
    moe,
    power_law,
    pre_router,
    rwkv7,
    s6,
    shared_attention,
    ssm,
)
from edgedec.runtimes.reference.altup import Streams
from edgedec.runtimes.reference.branches import BlockInputs
from edgedec.runtimes.reference.entry import entered
from edgedec.runtimes.reference.numeric import Array, BlockWeights, Weights, activation, normed
from edgedec.spec import (
    KV_FORMATS,
    S6,
    AltUp,
    Attention,
    Block,
    ChannelMix,
    Conv,
    Delta,
    Gmu,
    LatentAttention,
    Laurel,
    Lookup,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    Opaque,
    PowerLaw,
    PreRouter,
    Rwkv7,
    SharedAttention,
    Ssm,
    scales_state,
)
from edgedec.spec.newer import NEWER

__all__ = ["FACTS", "KINDS", "Reference", "open", "unavailable_reason"]

KINDS = (
    *("altup", "attention", "channel_mix", "conv", "delta", "gmu", "latent", "laurel", "lookup", "mlp", "moe"),
    *("power_law", "pre_router", "rwkv7", "s6", "shared_attention", "ssm"),
)
FACTS = RuntimeFacts(KINDS, low_bits=True, kept=True)
_OF_STATES: dict[type, Callable[..., Array]] = {
    **{Ssm: ssm.run, S6: s6.run, Conv: conv.run, Delta: delta.run, ChannelMix: rwkv7.channel_mix},
}
_VOCAB_CHUNK = 8192
Scales = dict[int, Array]


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    return lacking_kinds(bundle, KINDS, encoders=True, facts=NEWER)


def open(bundle: Bundle, options: RuntimeOptions) -> Reference:  # noqa: A001
    kv = choose_kv(bundle, options.kv)
    return Reference(bundle.spec, _Widened(bundle), kv, kv_scales(bundle, kv), bundle.manifest.whole_texts)


class _Widened:
    """A bundle's weights, widened to float32 once."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._stored = bundle, dict[str, Array]()

    def __call__(self, name: str, start: int, stop: int) -> Array:
        if name not in self._stored:
            self._stored[name] = self._bundle.rows(name)
        return self._stored[name][start:stop]


def kv_scales(bundle: Bundle, kv: str) -> Scales | None:
    """Static cache scales [2, n_kv_heads, 1, head_dim] by attention block; None for float caches."""
    if kv not in ("int8", "int4"):
        return None
    offset, found = getattr(bundle.manifest.kv_scales, kv), dict[int, Array]()
    for b, block in bundle.spec.attention.items():
        found[b] = bundle.array(offset, np.float32, (block.kv_parts, block.n_kv_heads, 1, block.head_dim))
        offset += found[b].nbytes
    return found


class Reference:
    """A runtime over any source of float weights: a bundle's, or a checkpoint's at export."""

    name = "reference"

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        kv: str = "f32",
        scales: Scales | None = None,
        whole_texts: bool = False,
    ) -> None:
        self.spec, self._weights, self.kv, self._scales = spec, weights, kv, scales or {}
        self._shapes = spec.tensors()
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=KV_FORMATS,
            facts=NEWER,
            largest_call=largest_call(self.spec, whole_texts),
            temperatures=True,
            entropy=True,
            merge=True,
            drop_by_head=True,
            attach=True,
            views=True,
            queries=True,
        )

    def load(self) -> None:
        """Nothing to open."""

    def release(self) -> None:
        """Nothing to give back."""

    def new_cache(self, capacity: int) -> HostCache:
        return HostCache(self.spec, capacity, self.kv, self._scales or None)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        return [self._forward(call) for call in calls]

    def _forward(self, call: Call) -> CallResult:
        rows, cache, wanted = call.rows, call.cache, call.outputs
        if not isinstance(cache, HostCache) or cache.kv != self.kv:
            raise UsageError("the cache is of another runtime: use one of this runtime's new_cache()")
        blocks = range(self.spec.n_blocks) if call.blocks is None else call.blocks
        embedding = self.embed(rows) if call.hidden is None or (self.spec.paired and blocks) else None
        x = embedding if call.hidden is None and embedding is not None else np.asarray(call.hidden, np.float32)
        states = {-1: x} if -1 in wanted.hidden else {}
        streams = Streams(self.spec, len(x))
        x = streams.take(x)
        paid: dict[int, Array] = {}
        queries: dict[int, Array] = {}
        spans, branches = cache.write(blocks, rows), BlockInputs(self.spec)
        for b in blocks:
            before, read = branches.before(b, x), branches.read(b, x)
            w = BlockWeights(self.spec, b, self._weights, getattr(call.adapter, "apply", None))
            view = (call.views or {}).get(b)
            y, attention_paid, q = self._run(self.spec.blocks[b], w, read, before, embedding, rows, cache, spans, view)
            x = self._added(b, x, y, w, branches, streams)
            if b in wanted.hidden:
                states[b] = streams.rows(b, x)
            if wanted.attention and attention_paid is not None:
                paid[b] = attention_paid
            if b in wanted.queries and q is not None:
                queries[b] = q
        made = head_outputs(self.head(x[wanted.logits_from :]), wanted) if wanted.head else CallResult()
        return CallResult(made.logits, made.ids, made.scores, made.logsum, made.entropy, states, paid, queries)

    def _added(self, b: int, x: Array, y: Array, w: BlockWeights, branches: BlockInputs, streams: Streams) -> Array:
        """The state after block b, which makes y."""
        block = self.spec.blocks[b]
        if isinstance(block, AltUp):
            return streams.run(block, w, x)
        y = w.norm(y, block.post_norm, "post_norm")
        if isinstance(block, Lookup) and block.streams:
            streams.add(y)
            return x
        before, x = x, w.norm(branches.add(b, x, y, w), block.after, "after_norm")
        again: Norm = getattr(block, "again", "none")
        x = x if again == "none" else w.norm(before + x, again, "again_norm")
        if isinstance(block, Laurel):
            return x * np.float32(block.scale)
        return x * w.get("state_scale") if scales_state(block) else x

    def _run(
        self,
        block: Block,
        w: BlockWeights,
        x: Array,
        before: Array,
        embedding: Array | None,
        rows: Rows,
        cache: HostCache,
        spans: dict[int, tuple[int, int]],
        view: View | None,
    ) -> tuple[Array, Array | None, Array | None]:
        match block:
            case PowerLaw():
                scales = self._scales.get(w.number)
                return power_law.run(block, w, x, rows, cache, spans[w.number], scales, view)
            case LatentAttention():
                scales = self._scales.get(w.number)
                return latent.run(block, w, x, rows, cache, spans[w.number], scales, view)
            case PreRouter():
                scales, own = self._scales.get(w.number), self._looked_up(w.number, rows)
                return np.zeros_like(x), *pre_router.run(block, w, own, rows, cache, spans[w.number], scales, view)
            case Attention():
                scales = self._scales.get(w.number)
                return attention.run(block, w, x, embedding, rows, cache, spans[w.number], scales, view)
            case SharedAttention():
                scales = self._scales.get(block.slots_of)
                return shared_attention.run(block, w, x, rows, cache, scales), None, None
            case Lookup():
                assert embedding is not None
                return lookup.run(block, w, x, embedding, self._looked_up(w.number, rows)), None, None
            case Laurel():
                return laurel.run(block, w, x), None, None
            case AltUp():
                return x, None, None
            case Mlp():
                return mlp.run(block, w, x), None, None
            case Moe():
                given = cache.experts.of(block.given_by, rows) if block.given else None
                return moe.run(block, w, x, given, before), None, None
            case Gmu():
                return gmu.run(block, w, x, cache.state(block.values_of).values(rows, block.values_of)), None, None
            case Rwkv7():
                owner = block.values_of
                first = None if owner is None else cache.state(owner).values(rows, owner)
                return rwkv7.run(block, w, x, rows, cache.state(w.number), first), None, None
            case Ssm() | S6() | Conv() | Delta() | ChannelMix():
                return _OF_STATES[type(block)](block, w, x, rows, cache.state(w.number)), None, None
            case Opaque():
                raise RuntimeUnavailable("an opaque block runs in its own graph only")

    def embed(self, rows: Rows) -> Array:
        """The hidden state [count, hidden_size] that enters the first block."""
        if rows.embeddings is not None:
            return np.asarray(rows.embeddings, np.float32)
        found = [self._weights("embed", int(t), int(t) + 1) for t in rows.tokens[rows.first :]]
        x = np.concatenate(found) * np.float32(self.spec.embed_scale)
        return entered(self.spec, x, rows.positions[rows.first :], self._get)

    def _looked_up(self, block: int, rows: Rows) -> Array:
        """The values [count, size] of the rows' tokens for a lookup block."""
        own = self.spec.lookups[block]
        found = [
            self._weights("lookup", int(t), int(t) + 1)[:, own.start : own.stop] for t in rows.tokens[rows.first :]
        ]
        return np.concatenate(found)

    def head(self, hidden: Array) -> Array:
        """hidden [n, hidden_size] -> logits [n, vocab_size]."""
        x, layer = self._normed(hidden, self.spec.final_norm, "final_norm"), self.spec.head_layer
        if layer is not None:
            y = x @ self._get("head_layer").T
            y = activation(y + self._get("head_layer_bias") if layer.bias else y, layer.activation)
            x = self._normed(y, layer.norm, "head_layer_norm")
        name = "embed" if self.spec.tied else "head"
        vocab = self.spec.vocab_size
        logits = np.empty((len(hidden), vocab), np.float32)
        for at in range(0, vocab, _VOCAB_CHUNK):
            stop = min(at + _VOCAB_CHUNK, vocab)
            logits[:, at:stop] = x @ self._weights(name, at, stop).T
            if self.spec.head_bias:
                logits[:, at:stop] += self._weights("head_bias", at, stop)
        cap = np.float32(self.spec.final_softcap)
        return np.tanh(logits / cap) * cap if cap else logits

    def _normed(self, x: Array, kind: Norm, name: str) -> Array:
        """Rows [n, hidden_size] normed by the tensors `name` outside of blocks."""
        weight = None if kind == "none" else self._get(name)
        return normed(x, kind, weight, self._get(f"{name}_bias") if kind == "layer" else None, self.spec.norm_eps)

    def _get(self, name: str) -> Array:
        return self._weights(name, 0, self._shapes[name][0])
