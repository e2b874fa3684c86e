"""The code of each kind of block: functions of items, and the phases that run them in order.

A block adds post_norm(f(norm(x))) to the hidden state x, which lies in "hidden" [rows, hidden_size].
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.compiled.attention import emit_attend
from edgedec.export.compiled.emitter import Phase
from edgedec.export.compiled.lanes import LANES
from edgedec.export.compiled.moe import moe, reserve_moe
from edgedec.export.compiled.parts import (
    BlockCode,
    emit_product,
    emit_ready,
    emit_residual,
    fuses,
    gate_row,
    items,
)
from edgedec.export.compiled.prepare import normed
from edgedec.export.compiled.product import Epilogue
from edgedec.export.compiled.ready import is_quantized, prepared, quantized
from edgedec.export.compiled.sight import emit_store
from edgedec.export.compiled.ssm import reserve_ssm, ssm
from edgedec.runtimes.tvm.frame import ROWS, scratch_floats
from edgedec.spec import Attention, Mlp

Reserve = Callable[[BlockCode], None]


def emit_block(code: BlockCode, kv: tuple[str, ...]) -> list[Phase]:
    """Write the functions of a block; its phases."""
    return WRITERS[code.block.kind](code, kv)


def reserve_block(code: BlockCode) -> None:
    """Make working memory large enough for a block, before any code is written that uses it."""
    RESERVES[code.block.kind](code)


# ---- attention ---------------------------------------------------------------------------------------


def _reserve_attention(code: BlockCode) -> None:
    block, emit = code.block, code.emit
    assert isinstance(block, Attention)
    emit.reserve("qkv", "float32", ROWS * (block.q_dim + 2 * block.kv_dim))
    emit.reserve("attended", "float32", ROWS * block.q_dim)
    emit.reserve("attention", "float32", code.threads * -(-scratch_floats(block) // LANES) * LANES)


def _attention(code: BlockCode, kv: tuple[str, ...]) -> list[Phase]:
    block, emit = code.block, code.emit
    assert isinstance(block, Attention)
    name, width = code.name, block.q_dim + 2 * block.kv_dim
    emit_ready(code, f"{name}_ready", "qkv", "hidden", block.norm)
    x = "hidden" if block.norm == "none" else "normed"
    emit_product(code, f"{name}_qkv", "qkv", x, ("qkv", width), Epilogue(), "qkv_bias" if block.qkv_bias else None)
    if block.qk_norm == "full":
        _emit_norm_whole(code, block, width)
    for each in kv:
        emit_store(emit, f"{name}_store_{each}", block, each)
        emit_attend(emit, f"{name}_attend_{each}", block, each, code.threads)
    residual = emit_residual(code, "o", "attended", "o_bias" if block.o_bias else None)
    return [
        Phase(f"{name}_ready", each=1),
        Phase(f"{name}_qkv", groups=items(code, "qkv")),
        *([Phase(f"{name}_whole", each=1)] if block.qk_norm == "full" else []),
        Phase(f"{name}_store", each=block.n_kv_heads, by_kv=kv),
        Phase(f"{name}_attend", each=block.n_kv_heads, by_kv=kv),
        *residual,
    ]


def _emit_norm_whole(code: BlockCode, block: Attention, width: int) -> None:
    if code.emit.has(f"{code.name}_whole"):
        return
    with code.emit.function(f"{code.name}_whole") as work:
        x, table = code.place(work.frame, "qkv", width).at(work.item * width), code.table(work.table)
        for name, part, n in (("q_norm", x, block.q_dim), ("k_norm", x.at(block.q_dim), block.kv_dim)):
            normed(part, part, n, "rms", table.pointer(name), None, code.emit.spec.norm_eps)


# ---- mlp ---------------------------------------------------------------------------------------------


def _reserve_mlp(code: BlockCode) -> None:
    block = code.block
    assert isinstance(block, Mlp)
    code.emit.reserve("act", "float32", ROWS * block.inner_size)
    if block.gated and not fuses(block.inner_size):
        code.emit.reserve("gate and up", "float32", ROWS * block.up_rows)


def _mlp(code: BlockCode, kv: tuple[str, ...]) -> list[Phase]:
    del kv
    block, name = code.block, code.name
    assert isinstance(block, Mlp)
    emit_ready(code, f"{name}_ready", block.up, "hidden", block.norm)
    x = "hidden" if block.norm == "none" else "normed"
    bias = f"{block.up}_bias" if block.bias else None
    apart = block.gated and not fuses(block.inner_size)
    out = ("gate and up", block.up_rows) if apart else ("act", block.inner_size)
    epilogue = Epilogue() if apart else Epilogue(glu=block.gated, activation=block.activation)
    emit_product(code, f"{name}_up", block.up, x, out, epilogue, bias)
    phases = [Phase(f"{name}_ready", each=1), Phase(f"{name}_up", groups=items(code, block.up, epilogue.glu))]
    if apart:
        phases.append(_emit_gated(code, block))
    bias = "down_bias" if block.bias else None
    return [*phases, *emit_residual(code, "down", "act", bias, ready=not apart)]


def _emit_gated(code: BlockCode, block: Mlp) -> Phase:
    """Item: a row; the activation, and the row made ready for `down`."""
    name, t, emit = f"{code.name}_gated", code.tensor("down"), code.emit
    if not emit.has(name):
        with emit.function(name) as work:
            x = code.place(work.frame, "gate and up", block.up_rows).at(work.item * block.up_rows)
            out = code.place(work.frame, "act", block.inner_size).at(work.item * block.inner_size)
            gate_row(x, out, block.inner_size, block.activation)
            if is_quantized(t):
                quantized(out, prepared(emit, work.frame, t), work.item, t, emit.machine)
    return Phase(name, each=1)


WRITERS: dict[str, Callable[[BlockCode, tuple[str, ...]], list[Phase]]] = {
    "attention": _attention,
    "mlp": _mlp,
    "moe": moe,
    "ssm": ssm,
}
RESERVES: dict[str, Reserve] = {
    "attention": _reserve_attention,
    "mlp": _reserve_mlp,
    "moe": reserve_moe,
    "ssm": reserve_ssm,
}
