"""The runtime of GPUs: weights, pages and steps on one device, launches recorded once and run again."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.device.interface import Device, Recorded
from edgedec.runtime import Call, CallResult
from edgedec.runtimes._device import head as heads
from edgedec.runtimes._device import sums
from edgedec.runtimes._device.adapters import DeviceAdapter, DeviceAdapters
from edgedec.runtimes._device.attention import attention
from edgedec.runtimes._device.cache import PagedCache
from edgedec.runtimes._device.call_views import Views
from edgedec.runtimes._device.conv import conv
from edgedec.runtimes._device.delta import delta
from edgedec.runtimes._device.mlp import mlp
from edgedec.runtimes._device.model import DeviceModel
from edgedec.runtimes._device.moe import moe
from edgedec.runtimes._device.paged import PagedRuntime
from edgedec.runtimes._device.pages import SLOTS
from edgedec.runtimes._device.ssm import ssm
from edgedec.runtimes._device.stack import Stack, StepShape, bucket, known
from edgedec.runtimes._device.step import StepMemory, tile_rows
from edgedec.runtimes._device.tiles import check_fits, most_rows
from edgedec.runtimes._device.viewing import PlanMaker
from edgedec.runtimes._device.workspace import Workspace
from edgedec.spec import Attention, Conv, Delta, Mlp, Ssm, newer

KINDS = ("attention", "conv", "delta", "mlp", "moe", "ssm")
FACTS_OF_MODELS = (
    *(newer.BRANCH, newer.RELU2, newer.XIELU, newer.HEAD_BIAS, newer.ENTRY, newer.QK_NORM, newer.CLIP, newer.SLOPES),
    *(newer.INNER_NORM, newer.SINK_LOGIT, newer.GATES, newer.EXPERT_BIAS, newer.CLAMPED, newer.CHOICE_BIAS),
    *(newer.GATE_ALONE, newer.PLAIN_EXPERTS, newer.SPARSEMIXER),
)
_LARGEST = 256
_MOST_RECORDED = 256


class LaunchedRuntime(PagedRuntime):
    """A runtime over a bundle's weights on one device, by its kernels."""

    def __init__(self, bundle: Bundle, kv: str, device: Device, memory: int = 0) -> None:
        super().__init__(bundle.spec, kv, device, memory)
        self.device, self._bundle = device, bundle
        check_fits(device, ((block, self._pool.rows[b]) for b, block in self.spec.attention.items()), kv)
        self._most_rows = dict[tuple[int, ...], int]()
        self.launches = 0  # launches of the last step
        self._start()
        self.capabilities = self._declared(
            kinds=KINDS,
            facts=FACTS_OF_MODELS,
            queries=True,
            views=True,
            adapters=True,
            largest_call=_LARGEST,
            device=device.name,
            driver=getattr(device, "driver", ""),
        )

    def _start(self) -> None:
        model, memory = DeviceModel(self._bundle, self.device), Workspace(self.device)
        self._stack = Stack(self.device, model, memory, _LARGEST)
        self._step = StepMemory(self.device)
        self._last: Recorded | None = None
        self._adapters = DeviceAdapters(self.device, self.spec)
        self._recorded: dict[tuple[StepShape, int, int], tuple[Recorded, int]] = {}

    def load(self) -> None:
        """Bring the weights to the device; RuntimeUnavailable if it has no memory for them."""
        with self._lock:
            try:
                self._bring()
            except MemoryError as error:
                free = self.device.free_bytes()
                free += self._stack.model.nbytes if free else 0
                self._stack.model, self._recorded, self._last = DeviceModel(self._bundle, self.device), {}, None
                raise RuntimeUnavailable(self._too_large(free, error)) from None

    def _bring(self) -> None:
        for name in self.spec.tensors():
            if len(self._bundle.manifest.tensors[name].shape) == 2:
                self._stack.model.weights(name)

    def _too_large(self, free: int, error: MemoryError) -> str:
        """The error message for weights that do not fit, with advice. free: free bytes; 0: unknown."""
        need = sum(tensor.stored_bytes for tensor in self._bundle.manifest.tensors.values())
        has = f"{free >> 20:,} MiB are free" if free else "how much is free its driver does not say"
        return (
            f"engine {self.name}: {self.device.name} has no memory for the weights of {self._bundle.path}: they need "
            f"{-(-need >> 20):,} MiB, {has} ({error}); export the model with fewer bits (--weights int4), or use "
            "another device, as --device cpu"
        )

    def release(self) -> None:
        """Free the weights' and the working memory; caches stay."""
        with self._lock:
            self._start()

    def again(self) -> None:
        """Repeat the launches of the last step on the same rows, to measure a step without the host's part."""
        with self._lock:
            if self._last is not None:
                self._last.replay()

    def _adapter(self, call: Call) -> DeviceAdapter | None:
        return self._adapters.of(call.adapter)

    def _run(
        self,
        blocks: tuple[int, ...],
        adapter: DeviceAdapter | None,
        calls: Sequence[Call],
        caches: Sequence[PagedCache],
    ) -> list[CallResult]:
        self._stack.adapter = adapter
        views, attending = Views.make(blocks, caches), [b for b in blocks if b in self.spec.attention]
        tile = tile_rows(self._rows_at_once(blocks), calls)
        maker = PlanMaker(calls, tile)
        viewed = tuple(self._plan(maker, b, views) if b in (calls[0].views or ()) else -1 for b in attending)
        size = self._step.write(calls, caches, blocks, views, tile, maker.plans)
        shape = StepShape(
            rows=bucket(size.rows),
            head=bucket(size.head) if size.head else 0,
            items=bucket(size.items) if size.items else 0,
            sequences=bucket(len(calls)),
            top=min(max(call.outputs.top for call in calls), self.spec.vocab_size),
            tile=tile,
            sums=any(call.outputs.logsum for call in calls),
            blocks=blocks,
            views=tuple(views.of[b] for b in attending),
            hidden=tuple(sorted({b for call in calls for b in call.outputs.hidden})),
            adapter=adapter.number if adapter else 0,
            paid=bucket(size.paid) if size.paid else 0,
            queries=tuple(sorted({b for call in calls for b in call.outputs.queries})),
            viewed=viewed,
            plans=tuple(plan.size for plan in maker.plans),
        )
        self._replay(shape)
        results = heads.results(self._stack, shape, calls)
        sums.fill(self._stack, shape, calls, views.tables, results)
        return results

    def _rows_at_once(self, blocks: tuple[int, ...]) -> int:
        """The most rows of a sequence that may share an attention item in these blocks."""
        if blocks not in self._most_rows:
            facts = {b: self.spec.attention[b] for b in blocks if b in self.spec.attention}
            self._most_rows[blocks] = most_rows(facts, self._pool.rows, self.device.shared_bytes)
        return self._most_rows[blocks]

    def _plan(self, maker: PlanMaker, block: int, views: Views) -> int:
        """The number of a viewed block's plan; computes missing bounds of the pages to search."""
        tables = views.tables[views.of[block]]
        number = maker.number(block, self.spec.attention[block], tables)
        if maker.plans[number].searches:
            for table in tables:
                self._pool.make_bounds(table.pages[: table.start // SLOTS], block)
        return number

    def _replay(self, shape: StepShape) -> None:
        """Run the launches of a step of this shape; they are recorded at the first such step."""
        key = shape, self._step.generation, self._stack.memory.generation
        if key not in self._recorded:
            key = self._record(shape)
        self._last, self.launches = self._recorded[key]
        self._last.replay()

    def _record(self, shape: StepShape) -> tuple[StepShape, int, int]:
        """Record the launches of a step; returns the key. A GPU allows neither allocations nor copies while it records,
        so a dry run of the launches does these first."""
        if len(self._recorded) >= _MOST_RECORDED:
            self._recorded = {}
        counted = _Counted(self.device)
        self._stack.device = counted
        try:
            self._launch(shape)
        finally:
            self._stack.device = self.device
        key = shape, self._step.generation, self._stack.memory.generation
        self._recorded[key] = self.device.record(lambda: self._launch(shape)), counted.launches
        return key

    def _launch(self, shape: StepShape) -> None:
        stack, step = self._stack, self._step.at
        stack.embed(step, shape.rows)
        stack.keep(step, shape, -1)
        for b in shape.blocks:
            block = known(self.spec.blocks[b])
            stack.enter(step, shape, b)
            if isinstance(block, Attention):
                attention(stack, step, shape, b, block, self._pool, self.kv)
            elif isinstance(block, Mlp):
                mlp(stack, step, shape.rows, b, block)
            elif isinstance(block, Ssm):
                ssm(stack, step, shape, b, block)
            elif isinstance(block, Conv):
                conv(stack, step, shape, b, block)
            elif isinstance(block, Delta):
                delta(stack, step, shape, b, block)
            else:
                moe(stack, step, shape, b, block)
            stack.keep(step, shape, b)
        if shape.head:
            heads.head(stack, step, shape)


class _Counted:
    """A device for the dry run: it prepares kernels and counts launches without running them."""

    def __init__(self, device: Device) -> None:
        self._device, self.launches, self.name = device, 0, device.name
        self.has_matrix, self.fused_bytes = device.has_matrix, device.fused_bytes
        self.shared_bytes, self.most_threads, self.sizes = device.shared_bytes, device.most_threads, device.sizes
        self.allocate, self.free, self.write = device.allocate, device.free, device.write
        self.free_bytes = device.free_bytes
        self.read, self.copy, self.record, self.synchronize, self.prepare = (
            device.read,
            device.copy,
            device.record,
            device.synchronize,
            device.prepare,
        )

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        self.launches += 1
        self._device.prepare(kernel, shared)
