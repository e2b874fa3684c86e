"""Parts shared by several kinds of blocks: norms, preparation of rows, products, residual additions."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.emitter import BlockTable, Emitter, Frame, Phase
from edgedec.export.compiled.lanes import ACTIVATIONS, LANES, Expr, Ptr, bind, by_parts, mul, part_of, put_part
from edgedec.export.compiled.prepare import normed
from edgedec.export.compiled.product import Epilogue, MatrixProduct, items_of, product_item, words_of
from edgedec.export.compiled.ready import is_quantized, prepared, quantized
from edgedec.runtimes.tvm.frame import ROWS, block_fields
from edgedec.spec import Activation, Block, Norm


@dataclass(frozen=True)
class BlockCode:
    """A block as it is written: `name` begins all its functions' names; `number` is the first block that it is of.
    Functions that do not read the cache are written once for all its formats."""

    emit: Emitter
    name: str
    number: int
    block: Block
    threads: int

    def tensor(self, name: str) -> Tensor:
        return self.emit.tensors[f"blocks.{self.number}.{name}"]

    def table(self, words: Ptr) -> BlockTable:
        return BlockTable(words, block_fields(self.block, self.emit.spec.hidden_size))

    def place(self, frame: Frame, name: str, width: int, dtype: str = "float32") -> Ptr:
        """Numbers [ROWS, width]."""
        return self.emit.place(frame, name, dtype, ROWS * width)


def norm_into(code: BlockCode, table: BlockTable, kind: Norm, name: str, x: Ptr, out: Ptr, width: int) -> None:
    """Norm a row by the block's tensors `name`; copy it if there is no norm."""
    if kind == "none":
        return by_parts(width, lambda at, count: put_part(out, at, part_of(x, at, count), count))
    bias = table.pointer(f"{name}_bias") if kind == "layer" else None
    normed(x, out, width, kind, table.pointer(name), bias, code.emit.spec.norm_eps)


def emit_ready(code: BlockCode, name: str, matrix: str, source: str, norm: Norm, keep: bool = False) -> None:
    """Item: a row of `source`, normed into "normed" if there is a norm (or `keep`), and made ready for `matrix`."""
    emit, t = code.emit, code.tensor(matrix)
    width = t.shape[-1]
    if emit.has(name):
        return
    with emit.function(name) as work:
        x = code.place(work.frame, source, width).at(work.item * width)
        if norm != "none" or keep:
            out = code.place(work.frame, "normed", width).at(work.item * width)
            norm_into(code, code.table(work.table), norm, "norm", x, out, width)
            x = out
        if is_quantized(t):
            quantized(x, prepared(emit, work.frame, t), work.item, t, emit.machine)


def emit_product(
    code: BlockCode, name: str, matrix: str, x: str, out: tuple[str, int], epilogue: Epilogue, bias: str | None
) -> None:
    """Item: some outputs of `matrix` times all rows; x: where they lie if weights are floats; out: a place and its
    width."""
    emit, t = code.emit, code.tensor(matrix)
    if emit.has(name):
        return
    with emit.function(name) as work:
        table, quantized_ = code.table(work.table), is_quantized(t)
        product = MatrixProduct(
            t, t.shape[0], bind(work.frame.number("rows")), code.place(work.frame, *out), out[1],
            words_of(table, matrix, t), prepared(emit, work.frame, t) if quantized_ else None,
            None if quantized_ else code.place(work.frame, x, t.shape[-1]), table.pointer(bias) if bias else None,
            epilogue, T.int64(0),
        )  # fmt: skip
        product_item(emit, product, work.item)


def items(code: BlockCode, matrix: str, glu: bool = False) -> int:
    """Items of the product with a whole matrix."""
    t = code.tensor(matrix)
    return items_of(code.emit, t, t.shape[0], glu)


def emit_residual(code: BlockCode, matrix: str, x: str, bias: str | None, ready: bool = True) -> list[Phase]:
    """Write hidden += post_norm(matrix . x); its phases. ready: rows are made ready here."""
    hidden, name = code.emit.spec.hidden_size, f"{code.name}_{matrix}"
    if ready:
        emit_ready(code, f"{name}_ready", matrix, x, "none")
    plain = code.block.post_norm == "none"
    out, epilogue = ("hidden" if plain else "post", hidden), Epilogue(add=plain)
    emit_product(code, name, matrix, x, out, epilogue, bias)
    first = [Phase(f"{name}_ready", each=1)] if ready and is_quantized(code.tensor(matrix)) else []
    return [*first, Phase(name, groups=items(code, matrix)), *([] if plain else emit_post(code))]


def emit_post(code: BlockCode) -> list[Phase]:
    """Item: a row; hidden += post_norm(post)."""
    name = f"{code.name}_post"
    if not code.emit.has(name):
        with code.emit.function(name) as work:
            add_normed(code, code.table(work.table), work.frame, work.item)
    return [Phase(name, each=1)]


def add_normed(code: BlockCode, table: BlockTable, frame: Frame, row: Expr) -> None:
    """hidden += post_norm(post) of one row."""
    hidden, kind = code.emit.spec.hidden_size, code.block.post_norm
    x, to = (code.place(frame, place, hidden).at(row * hidden) for place in ("post", "hidden"))
    if kind != "none":
        norm_into(code, table, kind, "post_norm", x, x, hidden)
    by_parts(hidden, lambda at, n: put_part(to, at, part_of(to, at, n) + part_of(x, at, n), n))


def gate_row(x: Ptr, out: Ptr, inner: int, activation: Activation) -> None:
    """out [inner] = activation(x[i]) * x[inner + i], where a product's halves are no whole groups."""

    def put(at: Expr, count: int) -> None:
        gate, up = part_of(x, at, count), part_of(x, at + inner, count)
        put_part(out, at, mul(ACTIVATIONS[activation](gate), up), count)

    by_parts(inner, put)


def fuses(inner: int) -> bool:
    """Are gate and up of a product whole groups?"""
    return inner % LANES == 0
