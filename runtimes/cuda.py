"""The stack of blocks on a GPU: kernels of `kernels/cuda`, the same bytes as the native engine.

Weights, pages and working memory lie on the device; a step brings one piece of memory that says what its rows are,
and runs launches that were recorded when the first step of its shape was run. `EDGEDEC_CUDA=emulated` runs the kernels
on the CPU, for tests; a number there chooses one of several GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.kernels.cuda import emulated
from edgedec.kernels.cuda.device import Device, DeviceError, Recorded
from edgedec.runtime import Call, CallResult, Capabilities, RuntimeOptions, check_calls, lacking_kinds
from edgedec.runtimes import _cuda_head as heads
from edgedec.runtimes._cuda_attention import attention
from edgedec.runtimes._cuda_cache import CudaCache
from edgedec.runtimes._cuda_model import DeviceModel
from edgedec.runtimes._cuda_moe import moe
from edgedec.runtimes._cuda_pages import SLOTS, PagePool
from edgedec.runtimes._cuda_ssm import ssm
from edgedec.runtimes._cuda_stack import Stack, StepShape, Workspace, known
from edgedec.runtimes._cuda_step import StepMemory, Views, tile_rows
from edgedec.spec import KV_FORMATS, Attention, Mlp, Ssm

__all__ = ["KINDS", "CudaCache", "CudaRuntime", "open", "unavailable_reason"]

KINDS = ("attention", "mlp", "moe", "ssm")
DEVICE = "EDGEDEC_CUDA"
_LARGEST = 256
# As the native engine: of a smaller vocabulary all logits cost the reader less than the best tokens cost the head.
_BEST, _WIDE = 256, 1 << 14
_MOST_RECORDED = 256


def unavailable_reason(bundle: Bundle) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    return _no_device() or lacking_kinds(bundle, KINDS)


def _no_device() -> str | None:
    if os.environ.get(DEVICE) == "emulated":
        return emulated.why_not()
    from edgedec.kernels.cuda import driver

    return driver.why_not()


def open(bundle: Bundle, options: RuntimeOptions) -> CudaRuntime:  # noqa: A001
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in KV_FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
    return CudaRuntime(bundle, kv, _device())


def _device() -> Device:
    chosen = os.environ.get(DEVICE, "0")
    if chosen == "emulated":
        return emulated.Emulated()
    from edgedec.kernels.cuda import driver

    try:
        return driver.Gpu(int(chosen))
    except (ValueError, DeviceError) as error:
        raise RuntimeUnavailable(f"engine cuda: {DEVICE}={chosen}: {error}") from None


class CudaRuntime:
    """A runtime over a bundle's weights on one device."""

    name = "cuda"

    def __init__(self, bundle: Bundle, kv: str, device: Device) -> None:
        self.spec, self.kv, self.device, self._bundle = bundle.spec, kv, device, bundle
        self._pool = PagePool(device, bundle.spec, kv)
        self._lock = RLock()
        self.launches = 0  # of the last step
        self._start()
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=KV_FORMATS,
            batch_invariant=True,
            attention_sums=False,
            adapters=False,
            best_k=_BEST if self.spec.vocab_size >= _WIDE else 0,
            temperatures=True,
            page_slots=SLOTS,
            masks=False,
            largest_call=_LARGEST,
            device=device.name,
        )

    def _start(self) -> None:
        model, memory = DeviceModel(self._bundle, self.device), Workspace(self.device)
        self._stack = Stack(self.device, model, memory, _LARGEST)
        self._step = StepMemory(self.device)
        self._last: Recorded | None = None
        self._recorded: dict[tuple[StepShape, int, int], tuple[Recorded, int]] = {}

    @property
    def pages(self) -> int:
        """Pages that all caches of this runtime hold."""
        return self._pool.used

    def load(self) -> None:
        """Bring the weights to the device."""
        with self._lock:
            for name in self.spec.tensors():
                if len(self._bundle.manifest.tensors[name].shape) == 2:
                    self._stack.model.weights(name)

    def release(self) -> None:
        """Give the weights' and the working memory back; caches stay."""
        with self._lock:
            self._start()

    def new_cache(self, capacity: int) -> CudaCache:
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        return CudaCache(self._pool, capacity, self.kv)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        with self._lock:
            groups: dict[tuple[int, ...], list[int]] = {}
            for i, call in enumerate(calls):
                blocks = tuple(range(self.spec.n_blocks) if call.blocks is None else call.blocks)
                self._check(call, blocks)
                groups.setdefault(blocks, []).append(i)
            found: dict[int, CallResult] = {}
            for blocks, members in groups.items():
                found |= zip(members, self._run(blocks, [calls[i] for i in members]), strict=True)
            return [found[i] for i in range(len(calls))]

    def again(self) -> None:
        """Run the launches of the last step once more, on the same rows: what a step costs without the host."""
        with self._lock:
            if self._last is not None:
                self._last.replay()

    def _check(self, call: Call, blocks: tuple[int, ...]) -> None:
        if not isinstance(call.cache, CudaCache) or call.cache.pool is not self._pool:
            raise UsageError("the cache is of another runtime: use one of this runtime's new_cache()")
        rows = call.rows
        if blocks and (rows.positions.min() < 0 or rows.positions.max() >= self.spec.context_length):
            raise UsageError(f"a position outside the model's context of {self.spec.context_length}")
        call.cache.check(blocks, rows)

    def _run(self, blocks: tuple[int, ...], calls: Sequence[Call]) -> list[CallResult]:
        """The results of calls that run the same blocks."""
        caches = [_own(call) for call in calls]
        for cache, call in zip(caches, calls, strict=True):
            cache.begin(blocks, call.rows)
        views, attending = Views.make(blocks, caches), [b for b in blocks if b in self.spec.attention]
        facts = [self.spec.attention[b] for b in attending]
        group = max((block.n_heads // block.n_kv_heads for block in facts), default=1)
        tile = tile_rows(group, calls)
        size = self._step.write(calls, caches, blocks, views, tile)
        shape = StepShape(
            rows=_bucket(size.rows),
            head=_bucket(size.head) if size.head else 0,
            items=_bucket(size.items) if size.items else 0,
            sequences=_bucket(len(calls)),
            top=min(max(call.outputs.top for call in calls), self.spec.vocab_size),
            tile=tile,
            sums=any(call.outputs.logsum for call in calls),
            blocks=blocks,
            views=tuple(views.of[b] for b in attending),
            hidden=tuple(sorted({b for call in calls for b in call.outputs.hidden})),
        )
        self._replay(shape)
        return heads.results(self._stack, shape, calls)

    def _replay(self, shape: StepShape) -> None:
        """Run the launches of a step of this shape; they are recorded when the first one comes."""
        for _ in range(2):
            key = shape, self._step.generation, self._stack.memory.generation
            if key in self._recorded:
                self._last, self.launches = self._recorded[key]
                return self._last.replay()
            if len(self._recorded) >= _MOST_RECORDED:
                self._recorded = {}
            counted = _Counted(self.device)
            self._stack.device = counted
            recorded = self.device.record(lambda: self._launch(shape))
            # Memory may have moved while they were recorded: then once more.
            if self._stack.memory.generation == key[2]:
                self._recorded[key] = recorded, counted.launches
        self._replay(shape)

    def _launch(self, shape: StepShape) -> None:
        stack, step = self._stack, self._step.at
        stack.embed(step, shape.rows)
        stack.keep(step, shape, -1)
        for b in shape.blocks:
            block = known(self.spec.blocks[b])
            if isinstance(block, Attention):
                attention(stack, step, shape, b, block, self._pool, self.kv)
            elif isinstance(block, Mlp):
                stack.mlp(step, shape.rows, b, block)
            elif isinstance(block, Ssm):
                ssm(stack, step, shape, b, block)
            else:
                moe(stack, step, shape, b, block)
            stack.keep(step, shape, b)
        if shape.head:
            heads.head(stack, step, shape)


class _Counted:
    """A device that counts launches."""

    def __init__(self, device: Device) -> None:
        self._device, self.launches, self.name = device, 0, device.name
        self.allocate, self.free, self.write = device.allocate, device.free, device.write
        self.read, self.copy, self.record, self.synchronize = (
            device.read,
            device.copy,
            device.record,
            device.synchronize,
        )

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        self.launches += 1
        self._device.launch(kernel, grid, threads, shared, arguments)


def _own(call: Call) -> CudaCache:
    assert isinstance(call.cache, CudaCache)
    return call.cache


def _bucket(n: int) -> int:
    """The power of two that n is rounded up to."""
    return 1 << (n - 1).bit_length()
