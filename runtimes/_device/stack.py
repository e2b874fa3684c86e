"""The launches of a step: embedding, blocks one after another, head. All inputs that change between steps are in the
step's memory, so recorded launches serve all steps of the same shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Device
from edgedec.kernels.device.structs import DeviceWeights, Norm, Prepared, Product
from edgedec.runtimes._device.adapters import DeviceAdapter
from edgedec.runtimes._device.model import DeviceModel
from edgedec.runtimes._device.workspace import Workspace
from edgedec.spec import Attention, Block, Conv, Delta, Mlp, Moe, Ssm
from edgedec.spec.branches import first_beside

# Up to this many rows a product prepares its inputs itself (fused), if they fit in shared memory with its sums.
_FUSED_ROWS = 4
_THREADS = 256
# From this many rows on, products run on tensor cores.
MATRIX_ROWS = 32
NO_NORM = Norm()
Known = Attention | Conv | Delta | Mlp | Moe | Ssm


@dataclass(frozen=True)
class PlanSize:
    """The size of a view's plan, rounded up: items, groups of rows, pages and single slots of a kv head. Flags: are
    there single slots, slots selected by score, slots that stand for others?"""

    items: int
    groups: int
    pages: int
    slots: int
    listed: bool
    striped: bool
    runs: bool


@dataclass(frozen=True)
class StepShape:
    """What launches depend on. rows, head, items: sizes of the step, rounded up. views: of each attention block.
    hidden: blocks after which the state is kept (-1: the embedding). adapter: the adapter's number, 0 for none. paid:
    the most slots with attention sums; queries: blocks whose queries are kept. viewed: the plan of each attention
    block, -1 for blocks without a view."""

    rows: int
    head: int
    items: int
    sequences: int
    top: int
    tile: int
    sums: bool
    blocks: tuple[int, ...]
    views: tuple[int, ...]
    hidden: tuple[int, ...]
    adapter: int = 0
    paid: int = 0
    queries: tuple[int, ...] = ()
    viewed: tuple[int, ...] = ()
    plans: tuple[PlanSize, ...] = ()


class Stack:
    """Launches the blocks of a model."""

    def __init__(self, device: Device, model: DeviceModel, memory: Workspace, largest: int) -> None:
        self.device, self.model, self.memory, self.spec = device, model, memory, model.spec
        self._largest = largest
        self.adapter: DeviceAdapter | None = None  # of all rows of the step
        self.input = 0  # of the block: the states that it reads

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, shared: int, arguments: bytes) -> None:
        self.device.launch(kernel, (*grid, 1), threads, shared, arguments)

    # ---- places ----

    def floats(self, name: str, width: int, rows: int | None = None) -> int:
        """Memory for [rows, width] floats."""
        return self.memory.need(name, 4 * width * (self._largest if rows is None else rows))

    def read(self, name: str, row: int, rows: int, width: int) -> NDArray[np.float32]:
        """Rows [rows, width] of named memory, from a row on."""
        out = np.empty((rows, width), np.float32)
        self.device.read(self.memory.need(name, 0) + 4 * width * row, out)
        return out

    @property
    def hidden(self) -> int:
        return self.floats("hidden", self.spec.hidden_size)

    def prepared(self, name: str, w: DeviceWeights, copies: int = 1) -> Prepared:
        """Memory for rows prepared for `w`."""
        rows = self._largest * copies
        if not w.quantized:
            return Prepared()
        need = self.memory.need
        sums = need(f"{name} block sums", 4 * rows * w.blocks) if w.zeros else 0
        scales, totals = need(f"{name} scales", 4 * rows * w.steps), need(f"{name} sums", 4 * rows * w.steps)
        return Prepared(need(f"{name} q", rows * w.kpad), scales, totals, sums)

    def slot(self, shape: StepShape, number: int) -> int:
        """The place of a recurrent block among those of the step."""
        return [b for b in shape.blocks if b in self.spec.recurrent].index(number)

    # ---- products ----

    def adapts(self, name: str) -> bool:
        """Whether the step's adapter changes this matrix."""
        return self.adapter is not None and self.adapter.part(name) is not None

    def adapted(self, step: int, rows: int, name: str, p: Product, norm: Norm, x: int) -> None:
        """`product`, plus the low-rank term of the step's adapter for the matrix `name`."""
        if not self.adapts(name):
            return self.product(step, rows, p, norm, x)
        normed = self.floats("adapter rows", p.w.k) if norm.kind else 0
        self.product(step, rows, p, norm, x, normed)
        self.adapt(step, rows, name, normed or x, p.out, p.stride)

    def adapt(self, step: int, rows: int, name: str, x: int, y: int, stride: int) -> None:
        """y [rows, stride] += b (a x), if the step's adapter changes this matrix."""
        part = None if self.adapter is None else self.adapter.part(name)
        if part is None or self.adapter is None:
            return
        a, b = part
        low = self.floats("low rank", self.adapter.rank)
        self._float(step, rows, Product(a, low, a.n, x=x, tile=min(4, rows)))
        self._float(step, rows, Product(b, y, stride, x=low, epilogue="add", tile=min(4, rows)))

    def product(
        self,
        step: int,
        rows: int,
        p: Product,
        norm: Norm = NO_NORM,
        x: int = 0,
        normed: int = 0,
        name: str = "rows",
    ) -> None:
        """Launch `p` on rows x [rows, p.w.k], normed first; `normed`: where to keep the normed rows."""
        n, w = rows * p.copies, p.w
        source_rows = rows if p.spread else n
        tile = self._tile(p, n)
        if w.quantized and not normed and not p.head and not p.spread and tile <= _FUSED_ROWS:
            shared = fused_bytes(w, tile, norm.kind != 0, self._sums(tile))
            if shared <= self.device.fused_bytes:
                return self._quantized(step, n, with_changes(p, norm=norm, x=x, fused=True), tile, shared)
        if not w.quantized and norm.kind == 0 and not p.head:
            return self._float(step, n, with_changes(p, x=x, tile=min(tile, 4)))
        copies = 1 if p.spread else p.copies
        ready = self.prepared(name, w, copies)
        normed = normed or (0 if w.quantized else self.floats(f"{name} normed", w.k, self._largest * copies))
        self.prepare(step, source_rows, x, normed, w, norm, ready, p.head, copies)
        if w.quantized:
            return self._quantized(step, n, with_changes(p, a=ready), tile, self._sums(tile))
        self._float(step, n, with_changes(p, x=normed, tile=min(tile, 4)))

    def prepare(
        self,
        step: int,
        rows: int,
        x: int,
        normed: int,
        w: DeviceWeights,
        norm: Norm,
        out: Prepared,
        head: bool,
        copies: int,
    ) -> None:
        arguments = structs.prepare(step, x, normed, w, norm, out, w.k, head, copies)
        self.launch("prepare", (rows, 1), _THREADS, 16 + (4 * w.k if norm.kind else 0), arguments)

    def ready(self, step: int, rows: int, p: Product) -> None:
        """Launch `p` on prepared rows, or on floats at p.x."""
        n = rows * p.copies
        tile = self._tile(p, n)
        if p.w.quantized:
            return self._quantized(step, n, p, tile, self._sums(tile))
        self._float(step, n, with_changes(p, tile=min(tile, 4)))

    def _tile(self, p: Product, rows: int) -> int:
        """The rows of a thread block of a product; sixteen threads add up the outputs of each row."""
        most = min(8, self.device.most_threads // 16)
        return 1 if p.experts else next(m for m in (8, 4, 2, 1) if m <= most and (m == 1 or m // 2 < rows))

    def _sums(self, tile: int) -> int:
        """Bytes of shared memory of a product of `tile` rows."""
        return self.device.sizes.product + tile * self.device.sizes.product_row

    def _quantized(self, step: int, rows: int, p: Product, tile: int, shared: int) -> None:
        if rows >= MATRIX_ROWS and p.w.block != 16 and not p.experts and self.device.has_matrix:
            return self._matrix(step, rows, p)
        groups = p.w.groups // (2 if p.epilogue == "glu" else 1)
        threads = -(-min(self.device.most_threads, max(4 * p.w.steps, 16 * tile)) // 32) * 32
        name = f"product_{structs.FORMAT_NAMES[p.w.format]}_{tile}"
        self.launch(name, (groups, -(-rows // tile)), threads, shared, p.pack(step))

    def _matrix(self, step: int, rows: int, p: Product) -> None:
        """Launch a product on tensor cores."""
        zeros = "_zeros" if p.w.zeros else ""
        outputs = p.w.n // (2 if p.epilogue == "glu" else 1)
        grid = -(-outputs // structs.MATRIX_OUTPUTS), -(-rows // structs.MATRIX_ROWS)
        name = f"matrix_{structs.FORMAT_NAMES[p.w.format]}{zeros}"
        self.launch(name, grid, _THREADS, structs.MATRIX_BYTES, p.pack(step))

    def _float(self, step: int, rows: int, p: Product) -> None:
        outputs = p.w.n // (2 if p.epilogue == "glu" else 1)
        threads = min(self.device.most_threads, -(-16 * outputs // 32) * 32)
        grid = -(-16 * outputs // threads), -(-rows // p.tile)
        self.launch(f"product_{structs.FORMAT_NAMES[p.w.format]}", grid, threads, 0, p.pack(step))

    def residual(self, step: int, rows: int, number: int, block: Block, p: Product, x: int, name: str) -> None:
        """hidden += post_norm(p of rows x); `name`: of p's matrix in the block."""
        matrix, width = f"blocks.{number}.{name}", self.spec.hidden_size
        if block.post_norm == "none":
            self.product(step, rows, with_changes(p, out=self.hidden, epilogue="add"), x=x, name="inner")
            return self.adapt(step, rows, matrix, x, self.hidden, width)
        out = self.floats("post", width)
        self.product(step, rows, with_changes(p, out=out), x=x, name="inner")
        self.adapt(step, rows, matrix, x, out, width)
        self.add_normed(step, rows, number, block, out)

    def norm_whole(self, step: int, rows: int, kind: str, name: str, x: int, width: int, stride: int = 0) -> None:
        """Norm rows x [rows, width], `stride` floats apart, in place by the norm `name`, if there is one."""
        if kind != "none":
            norm = self.model.norm(kind, name)
            arguments = structs.norm_rows(step, x, x, norm, width, width, stride or width, False)
            self.launch("norm_rows", (rows, 1), 32, 0, arguments)

    def add_normed(self, step: int, rows: int, number: int, block: Block, x: int) -> None:
        """hidden += post_norm(x)."""
        norm = self.model.norm(block.post_norm, f"blocks.{number}.post_norm")
        width = self.spec.hidden_size
        self.launch(
            "norm_rows", (rows, 1), 32, 0, structs.norm_rows(step, x, self.hidden, norm, width, width, width, True)
        )

    # ---- blocks ----

    def embed(self, step: int, rows: int) -> None:
        w, width, entry = self.model.weights("embed"), self.spec.hidden_size, self.spec.entry
        positions = self.model.vector("positions")
        norm = self.model.norm(entry.norm if entry else "none", "entry_norm")
        arguments = structs.embed(step, w, self.hidden, self.spec.embed_scale, width, positions, norm)
        self.launch("embed", (rows, 1), self.device.sizes.threads, 0, arguments)

    def enter(self, step: int, shape: StepShape, block: int) -> None:
        """Make `input` what a block reads: the state, of blocks side by side that before the first that is run."""
        at = shape.blocks.index(block)
        if at and first_beside(self.spec, block) <= shape.blocks[at - 1]:
            return
        self.input = self.hidden
        if self.spec.blocks[block].branch:
            width = self.spec.hidden_size
            self.input = self.floats("input", width)
            self.launch("copy_rows", (shape.rows, 1), 128, 0, structs.copy_rows(step, self.hidden, self.input, width))

    def keep(self, step: int, shape: StepShape, block: int) -> None:
        """Copy the state after a block, if it is requested."""
        if block in shape.hidden:
            width = self.spec.hidden_size
            kept = self.floats(f"kept {block}", width)
            self.launch("copy_rows", (shape.rows, 1), 128, 0, structs.copy_rows(step, self.hidden, kept, width))


def fused_bytes(w: DeviceWeights, tile: int, normed: bool, sums: int) -> int:
    """Shared memory of a fused product of `tile` rows: the prepared rows, then the sums of its steps, of so many bytes,
    whose memory first holds the normed rows."""
    words = 2 * tile + tile * (2 * w.steps + (w.blocks if w.zeros else 0))
    return -(-4 * words // 16) * 16 + tile * w.kpad + max(sums, 4 * w.k * tile if normed else 0)


def bucket(n: int) -> int:
    """n, rounded up to a power of two."""
    return 1 << (n - 1).bit_length()


def with_changes(p: Product, **changes: object) -> Product:
    return Product(**{**p.__dict__, **changes})


def known(block: Block) -> Known:
    """The block, if this engine runs its kind."""
    if isinstance(block, Known):
        return block
    raise UsageError(f"no {block.kind} blocks on this engine")
