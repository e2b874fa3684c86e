"""Embedding rows and norms (`kernels/cpu/ops.inl`)."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.emitter import BlockTable, Emitter, Frame, branch
from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    bind,
    by_parts,
    fma,
    int64,
    intrinsic,
    local,
    masked,
    mul,
    part_of,
    put_part,
    reinterpret,
    spread,
    total,
)
from edgedec.export.compiled.ready import is_quantized
from edgedec.spec import Norm

_LARGEST = 3.4028234663852886e38

# ---- norms -------------------------------------------------------------------------------------------


def normed(x: Ptr, out: Ptr, n: int, kind: Norm, weight: Ptr | None, bias: Ptr | None, eps: float) -> None:
    """Write the norm of a row."""
    assert weight is not None
    acc, middle = local(1, "float32x16"), spread(0.0)
    if kind == "layer":
        acc.put(0, spread(0.0))
        by_parts(n, lambda at, count: acc.put(0, acc[0] + part_of(x, at, count)))
        middle = bind(spread(bind(total(bind(acc[0])) / T.float32(n))))

    def centred(at: Expr, count: int) -> Expr:
        value = part_of(x, at, count)
        return masked(bind(value - middle), count) if kind == "layer" else value

    def add_square(at: Expr, count: int) -> None:
        value = centred(at, count)
        acc.put(0, fma(value, value, bind(acc[0])))

    acc.put(0, spread(0.0))
    by_parts(n, add_square)
    size = bind(total(bind(acc[0])) / T.float32(n))
    root = intrinsic("float32", "llvm.sqrt", size + T.float32(eps))
    nothing = reinterpret("float32", T.uint32(0x7FC00000))
    scale = spread(bind(T.Select(size <= T.float32(_LARGEST), T.float32(1.0) / root, nothing)))

    def put(at: Expr, count: int) -> None:
        y = mul(mul(centred(at, count), scale), part_of(weight, at, count))
        put_part(out, at, y if bias is None else y + part_of(bias, at, count), count)

    by_parts(n, put)


# ---- the embedding -----------------------------------------------------------------------------------


def half(x: Expr) -> Expr:
    """float16 bits as a float."""
    lanes = "" if "x" not in str(x.ty.dtype) else "x" + str(x.ty.dtype).rpartition("x")[2]
    return bind(T.Cast(f"float32{lanes}", reinterpret(f"float16{lanes}", x)))


def embedded(table: BlockTable, t: Tensor, token: Expr, out: Ptr, scale: float) -> None:
    """Write the embedding of a token."""
    n = t.shape[-1]
    if is_quantized(t):
        return _embedded_quantized(table, t, token, out, scale)
    data = table.pointer("embed", "float32" if t.format == "f32" else "uint16")

    def put(at: Expr, count: int) -> None:
        value = part_of(data, token * n + at, count)
        put_part(out, at, mul(value if t.format == "f32" else half(value), spread(scale)), count)

    by_parts(n, put)


def _embedded_quantized(table: BlockTable, t: Tensor, token: Expr, out: Ptr, scale: float) -> None:
    data, scales = table.pointer("embed", "uint8"), table.pointer("embed.scales", "uint16")
    per = 8 if t.format == "int4" else 4
    group, lane = bind(token // LANES), bind(token % LANES)
    line = t.blocks * t.block // per * 64
    with T.serial(t.shape[-1]) as number:
        i = bind(int64(number))
        at = group * line + (i // per) * 64 + lane * 4
        block = bind(group * t.blocks + i // t.block)
        if t.format == "int4":
            byte = T.Cast("int32", data[at + i % 8 // 2])
            q = bind((byte >> (T.Cast("int32", i % 2) * 4)) & T.int32(15))
        else:
            q = bind(T.Cast("int32", data[at + i % 4]))
        of_block = half(bind(scales[block * LANES + lane]))
        value = bind(T.Cast("float32", q - _zero_point(table, t, block, lane)))
        out.put(i, mul(mul(value, of_block), T.float32(scale)))


def _zero_point(table: BlockTable, t: Tensor, block: Expr, lane: Expr) -> Expr:
    """What stands for zero in a block of a group; block: its number among those of all groups."""
    if not t.zeros:
        return T.int32(8 if t.format == "int4" else 128)
    zeros = table.pointer("embed.zeros", "uint8")
    if t.format == "int8":
        return bind(T.Cast("int32", zeros[block * LANES + lane]))
    both = T.Cast("int32", zeros[block * (LANES // 2) + lane % 8])
    return bind((both >> (T.Cast("int32", lane // 8) * 4)) & T.int32(15))


def embed_row(emit: Emitter, table: BlockTable, frame: Frame, row: Expr, out: Ptr) -> None:
    """Write the state that enters the first block: the embedding of a token, or the given state."""
    width = emit.spec.hidden_size
    token = bind(T.Cast("int64", frame.array("tokens")[row]))

    def given() -> None:
        source = frame.array("given", "float32")
        with T.serial(width) as i:
            out.put(i, source[(T.int64(-1) - token) * width + i])

    branch(token < 0, given, lambda: embedded(table, emit.tensors["embed"], token, out, emit.spec.embed_scale))
