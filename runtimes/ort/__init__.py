"""The stack of blocks on ONNX Runtime's CPU provider; other providers are in `device.py`.

Plain decoding runs the whole model as one session. For trees or hidden states it is split into two, stack and head; for
calls of some blocks, or blocks with different slots, into one session per block. The old session is closed first, so no
weight is in memory twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

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
    choose_kv,
    head_outputs,
    lacking_kinds,
    largest_call,
    parse_device,
)
from edgedec.runtime.checks import check_calls
from edgedec.runtimes.ort import device as on_device
from edgedec.runtimes.ort.device import DeviceRuntime
from edgedec.runtimes.ort.graphs import ARTIFACT, Graphs, graphs_of
from edgedec.runtimes.ort.plan import Array, Plan, Step
from edgedec.runtimes.ort.providers import PROVIDERS, missing
from edgedec.runtimes.ort.sessions import Sessions, default_threads, session_options
from edgedec.runtimes.reference import kv_scales
from edgedec.runtimes.reference.attention import paid
from edgedec.runtimes.reference.branches import BlockInputs
from edgedec.runtimes.reference.entry import entered
from edgedec.spec import KV_FORMATS
from edgedec.spec.newer import NEWER, NO_GRAPHS

__all__ = [
    "FACTS",
    "KINDS",
    "OnnxRuntime",
    "default_threads",
    "missing",
    "open",
    "session_options",
    "unavailable_reason",
]

KINDS = ("attention", "conv", "delta", "mlp", "moe", "ssm")
FACTS = RuntimeFacts(KINDS, devices=("cpu", *PROVIDERS), low_bits=True, kept=True)
FACTS_OF_MODELS = tuple(fact for fact in NEWER if fact not in NO_GRAPHS)
_PLANS, _PLAN_ROWS = 8, 64


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle on this device, else the reason in one line."""
    if device.name in PROVIDERS:
        return on_device.device_reason(bundle, device)
    lacking = lacking_kinds(bundle, KINDS, encoders=True, facts=FACTS_OF_MODELS)
    if lacking is None and ARTIFACT not in bundle.manifest.artifacts:
        return f"the bundle has no files for it; add them with `edgedec add {ARTIFACT} {bundle.path}`"
    return lacking


def open(bundle: Bundle, options: RuntimeOptions) -> OnnxRuntime | DeviceRuntime:  # noqa: A001
    device = parse_device(options.device)
    if device.name in PROVIDERS:
        return on_device.open_on_device(bundle, options, device)
    graphs, kv = graphs_of(bundle), choose_kv(bundle, options.kv)
    if kv not in graphs.stack:
        raise RuntimeUnavailable(
            f"{bundle.path}: no ONNX graphs for KV {kv}; add them with `edgedec add {ARTIFACT} {bundle.path} --kv {kv}`"
        )
    return OnnxRuntime(bundle, graphs, kv, options.threads or default_threads(len(bundle.weights)))


class OnnxRuntime:
    """A runtime over a bundle's graphs."""

    name = "ort"

    def __init__(self, bundle: Bundle, graphs: Graphs, kv: str, threads: int) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=KV_FORMATS,
            facts=FACTS_OF_MODELS,
            largest_call=largest_call(self.spec, bundle.manifest.whole_texts),
            adapters=False,
            threads=threads,
            temperatures=True,
            entropy=True,
            merge=True,
            attach=True,
        )
        self._bundle, self._graphs, self._scales = bundle, graphs, kv_scales(bundle, kv)
        self._sessions = Sessions(bundle, threads)
        # The graph of the whole model is made for one cache format.
        self._fused, self._whole = graphs.model is not None and kv == graphs.model_kv, True
        self._plans: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._lock = threading.RLock()

    def new_cache(self, capacity: int) -> HostCache:
        return HostCache(self.spec, capacity, self.kv, self._scales)

    def load(self) -> None:
        """Open the sessions of the whole stack, which otherwise are opened at first use."""
        if self._fused:
            assert self._graphs.model is not None
            self._sessions.get(self._graphs.model, alone=True)
            return
        # The head first: it is the largest matrix, and opening needs room for two of it.
        if self._graphs.head:
            self._sessions.get(self._graphs.head)
        self._sessions.get(self._graphs.stack[self.kv])

    def release(self) -> None:
        """Close every session; each opens again when it is needed."""
        with self._lock:
            self._sessions.close()
            self._plans.clear()

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        with self._lock:
            return [self._forward(call) for call in calls]

    def _forward(self, call: Call) -> CallResult:
        rows, cache = call.rows, call.cache
        if not isinstance(cache, HostCache):
            raise UsageError("a cache of another engine")
        cache.reserve(rows)
        if self._fused and self._is_plain(call, cache):
            return self._plain(call, cache)
        self._unfuse()
        return self._stacked(call, cache)

    # ---- the whole model -------------------------------------------------------------------------

    def _is_plain(self, call: Call, cache: HostCache) -> bool:
        """Whether the graph of the whole model can run a call: a chain after a text without gaps, with outputs of the
        last row only."""
        rows, wanted = call.rows, call.outputs
        if call.blocks is not None or call.hidden is not None or rows.embeddings is not None:
            return False
        if wanted.hidden or wanted.attention or (wanted.head and wanted.logits_from != len(rows) - 1):
            return False
        if rows.first or not rows.is_chain or not len(rows) or rows.positions[0] != cache.length:
            return False
        return cache.is_whole() and bool(rows.positions[-1] - rows.positions[0] == len(rows) - 1)

    def _plain(self, call: Call, cache: HostCache) -> CallResult:
        rows, name = call.rows, self._graphs.model
        assert name is not None
        cache.write(range(self.spec.n_blocks), rows)
        session = self._sessions.get(name, alone=True)
        with self._sessions.blamed(name, "run"):
            logits = self._plan(rows.count, cache).whole(name, session, rows, cache.length, self.spec.vocab_size)
        return head_outputs(logits, call.outputs) if call.outputs.head else CallResult()

    def _unfuse(self) -> None:
        """Replace the session of the whole model by those of stack and head."""
        if self._fused:
            assert self._graphs.model is not None
            self._fused = False
            self._sessions.close(self._graphs.model)
            self._plans.clear()

    # ---- stack and head, or block by block -------------------------------------------------------

    def _stacked(self, call: Call, cache: HostCache) -> CallResult:
        rows, wanted = call.rows, call.outputs
        blocks = list(range(self.spec.n_blocks)) if call.blocks is None else list(call.blocks)
        embedding = self._embed(rows) if call.hidden is None or (self.spec.paired and blocks) else None
        x = np.ascontiguousarray(embedding if call.hidden is None else call.hidden, np.float32)
        states, sums = ({-1: x} if -1 in wanted.hidden else {}), dict[int, Array]()
        read = embedding if self.spec.paired else None
        step = Step(self.spec, blocks, rows, cache, lambda b: self._bundle.rows(f"blocks.{b}.a"), read)
        if self._takes_stack(blocks, call, step):
            x = self._run(self._graphs.stack[self.kv], blocks, x, step)
        else:
            self._cut()
            branches = BlockInputs(self.spec)
            for b in blocks:
                step.beside = branches.read(b, x)
                x = self._run(self._graphs.blocks[self.kv][b], [b], x, step)
                if b in self.spec.attention and wanted.attention:
                    sums[b] = self._paid(b, step)
                if b in wanted.hidden:
                    states[b] = x
        if blocks and blocks[-1] in wanted.hidden:
            states[blocks[-1]] = x
        result = head_outputs(self._head(x[wanted.logits_from :]), wanted) if wanted.head else CallResult()
        return CallResult(result.logits, result.ids, result.scores, result.logsum, result.entropy, states, sums)

    def _takes_stack(self, blocks: list[int], call: Call, step: Step) -> bool:
        """Whether a call runs all blocks and the stack has not been split into blocks."""
        inner = [b for b in call.outputs.hidden if b >= 0 and b != blocks[-1]] if blocks else []
        return (
            self._whole
            and len(blocks) == self.spec.n_blocks
            and step.shared
            and not inner
            and not call.outputs.attention
        )

    def _cut(self) -> None:
        """Split the stack into one session per block."""
        if self._whole:
            self._whole = False
            self._sessions.close(self._graphs.stack[self.kv])
            self._plans.clear()

    def _run(self, name: str, blocks: list[int], x: Array, step: Step) -> Array:
        session = self._sessions.get(name)
        with self._sessions.blamed(name, "run"):
            y = self._plan(step.rows.count, step.cache).run(name, session, blocks, x, step)
        step.settle(blocks)
        return y

    def _paid(self, b: int, step: Step) -> Array:
        """The attention that the computed rows pay to each slot of block b [n_kv_heads, slots]."""
        scales = self._scales
        queries = self._plan(step.rows.count, step.cache).query(b)
        sink = self._bundle.rows(f"blocks.{b}.sink_logit") if self.spec.attention[b].sink_logit else None
        return paid(self.spec, b, queries, step.rows, step.cache, None if scales is None else scales[b], sink)

    def _embed(self, rows: Rows) -> Array:
        """The hidden state [count, hidden_size] that enters the first block."""
        if rows.embeddings is not None:
            return np.ascontiguousarray(rows.embeddings, np.float32)
        x = self._bundle.gather("embed", rows.tokens[rows.first :]) * np.float32(self.spec.embed_scale)
        return entered(self.spec, x, rows.positions[rows.first :], self._bundle.rows)

    def _head(self, hidden: Array) -> Array:
        """hidden [n, hidden_size] -> logits [n, vocab_size]."""
        name = self._graphs.head
        session = self._sessions.get(name)
        with self._sessions.blamed(name, "run"):
            logits: Array = session.run(None, {"hidden": hidden[None]})[0][0]
        return logits

    def _plan(self, count: int, cache: HostCache) -> Plan:
        """Buffers and bindings for calls of `count` rows on this cache; kept for few rows, because decoding repeats
        one call."""
        key = (count, cache.storage)
        plan = self._plans.pop(key, None) or Plan(self.spec, count, cache)
        if count <= _PLAN_ROWS:
            self._plans[key] = plan
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return plan
