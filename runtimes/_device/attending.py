"""Launches of attention: partial results by chunk of keys, then the merge of the chunks. For blocks with a view, the
visible slots are computed first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgedec.kernels.device import structs
from edgedec.kernels.device.structs import KeptWeights, ViewMemory
from edgedec.runtimes._device.formats import kv_format
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.runtimes._device.stack import PlanSize, Stack, StepShape
from edgedec.runtimes._device.sums import heads_at_once
from edgedec.runtimes._device.tiles import attend_bytes, group_of, keys_at_once
from edgedec.spec import Attention

_THREADS = 128


def attend(
    stack: Stack, step: int, shape: StepShape, number: int, block: Attention, pool: PagePool, qkv: int, out: int
) -> None:
    """out = attention of the rows' queries over the block's slots."""
    at = [b for b in shape.blocks if b in stack.spec.attention].index(number)
    launches = _Attending(stack, step, shape, number, block, pool, shape.views[at], qkv, out)
    if shape.viewed[at] < 0:
        return launches.whole()
    launches.viewed(shape.viewed[at], shape.plans[shape.viewed[at]])


class _Attending:
    """The launches of one block; where attention sums are wanted, a few kv heads at a time."""

    def __init__(
        self, stack: Stack, step: int, shape: StepShape, number: int, block: Attention, pool: PagePool, view: int,
        qkv: int, out: int,
    ) -> None:  # fmt: skip
        self._stack, self._step, self._shape, self._number, self._block = stack, step, shape, number, block
        self._pool, self._view, self._qkv, self._out = pool, view, qkv, out
        self._heads, self._group = block.n_kv_heads, group_of(block)
        self._queries = shape.tile * self._group
        self._format = kv_format(block, pool.kv)
        self._threads = min(_THREADS, -(-self._group * block.head_dim // 32) * 32)
        row_bytes = pool.rows[number]
        sizes, shared = stack.device.sizes, stack.device.shared_bytes
        self._attenders = sizes.threads
        self._keys = keys_at_once(self._queries, block.head_dim, row_bytes, shared, sizes.keys)
        self._shared = attend_bytes(self._queries, block.head_dim, row_bytes, self._keys)

    def whole(self) -> None:
        """Attention over all slots."""
        name, items = f"attend_{structs.FORMAT_NAMES[self._format]}", self._shape.items
        for kept in self._kept(items):
            arguments = self._arguments(items, kept)
            self._stack.launch(name, (items, kept.heads), self._attenders, self._shared, arguments)
            self._stack.launch("merge_chunks", (self._shape.rows, kept.heads), self._threads, 0, arguments)
            if self._shape.paid:
                self._sums("attention_sums", kept, arguments)

    def viewed(self, plan: int, size: PlanSize) -> None:
        """Attention over the slots that a plan leaves visible."""
        memory = self._memory(size)
        stack, all_heads = self._stack, KeptWeights(0, self._heads)
        arguments = structs.viewed(self._arguments(size.items, all_heads), memory, plan, False)
        stack.launch("select_pages", (size.groups, self._heads), _THREADS, 4 * (_THREADS + 1), arguments)
        if size.striped:
            self._attend_view(size, all_heads, memory, plan, False)
            self._stripes(size, arguments)
        if size.listed:
            stack.launch("list_slots", (size.groups, self._heads), _THREADS, 4 * (_THREADS + 1), arguments)
        if size.runs:
            shared = 4 * self._block.head_dim * _THREADS // 32
            stack.launch("mean_values", (size.groups, self._heads), _THREADS, shared, arguments)
        for kept in self._kept(size.items):
            arguments = self._attend_view(size, kept, memory, plan, False)
            if size.listed:
                self._attend_view(size, kept, memory, plan, True)
            stack.launch("merge_view", (self._shape.rows, kept.heads), self._threads, 0, arguments)
            if self._shape.paid:
                self._sums("view_sums", kept, arguments)

    def _attend_view(self, size: PlanSize, kept: KeptWeights, memory: ViewMemory, plan: int, listed: bool) -> bytes:
        arguments = structs.viewed(self._arguments(size.items, kept), memory, plan, listed)
        name = f"attend_view_{structs.FORMAT_NAMES[self._format]}"
        self._stack.launch(name, (size.items, kept.heads), self._attenders, self._shared, arguments)
        return arguments

    def _stripes(self, size: PlanSize, arguments: bytes) -> None:
        shared = 4 * self._group * (self._block.head_dim + 1)
        grid = size.groups * size.pages // 4, self._heads
        self._stack.launch("mark_stripes", grid, _THREADS, shared, arguments)

    def _memory(self, size: PlanSize) -> ViewMemory:
        """Working memory for the slots selected by a plan."""
        need, n = self._stack.memory.need, size.groups * self._heads
        pages, slots = n * size.pages, n * size.slots
        found = ViewMemory(
            need("view seen", pages), need("view pages", 4 * pages), need("view bounds", 4 * pages),
            bounds_offset=self._pool.bounds.offsets[self._number], pages_stride=size.pages, slots_stride=size.slots,
        )  # fmt: skip
        if not size.listed:
            return found
        near = need("view near", pages * SLOTS) if size.striped else 0
        lists = {name: need(f"view {name}", 4 * slots) for name in ("slots", "runs")}
        means = need("view means", slots * self._pool.rows[self._number]) if size.runs else 0
        floats = need("view floats", 4 * n * self._block.head_dim) if size.runs else 0
        return replace(found, near=near, **lists, counts=need("view counts", 4 * n), means=means, floats=floats)

    def _arguments(self, items: int, kept: KeptWeights) -> bytes:
        block, width = self._block, self._block.head_dim + 2
        parts = self._stack.memory.need("parts", 4 * items * self._heads * self._queries * width)
        return structs.attend(
            self._step, self._qkv, parts, self._out, self._pool.offsets[self._number], block.n_heads, self._heads,
            block.head_dim, block.window or 0, block.sinks, self._format, self._view, self._pool.rows[self._number],
            block.scale, block.softcap, self._shape.tile, self._keys, kept,
            self._stack.model.vector(f"blocks.{self._number}.sink_logit"), self._slopes(), block.qkv_rows,
            block.gate_dim,
        )  # fmt: skip

    def _slopes(self) -> int:
        slopes = self._block.slopes
        return self._stack.model.numbers(f"blocks.{self._number}.slopes", slopes) if slopes else 0

    def _kept(self, items: int) -> Iterator[KeptWeights]:
        """The kv heads that are attended to at once, and where their weights are kept."""
        if not self._shape.paid:
            yield KeptWeights(0, self._heads)
            return
        some = heads_at_once(self._heads, self._queries, items)
        weights = self._stack.memory.need("kept weights", 4 * structs.CHUNK * self._queries * items * some)
        totals = self._stack.floats("totals", 2 * self._block.n_heads)
        for head0 in range(0, self._heads, some):
            yield KeptWeights(head0, min(some, self._heads - head0), weights, totals)

    def _sums(self, kernel: str, kept: KeptWeights, arguments: bytes) -> None:
        width = self._shape.paid
        sums = self._stack.floats(f"paid {self._number}", self._heads, width)
        arguments = structs.attention_sums(arguments, sums, width)
        self._stack.launch(kernel, (-(-width // _THREADS), kept.heads), _THREADS, 0, arguments)
