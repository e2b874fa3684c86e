"""The rows of a recurrence: their path, their kept values, their sequence's state."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.kernel import GroupWork
from edgedec.export.sources.rows import row_number
from edgedec.export.sources.words import Array, Expr, bind, div
from edgedec.spec import Ssm


def row_floats(block: Ssm) -> int:
    """What is kept of a row."""
    return 2 * block.conv_dim + 2 * block.n_heads


def state_floats(block: Ssm) -> int:
    """Of a sequence: its state, and the inputs of the convolution of its last rows."""
    return block.state_size * block.inner_size + (block.conv_size - 1) * block.conv_dim


@dataclass(frozen=True)
class KeptRow:
    """What is kept of a row: values before the convolution and after it, dt and decay of each head."""

    block: Ssm
    floats: Array

    def head(self, value: Expr) -> Expr:
        """The head of a value of the state."""
        return div(value, self.block.head_dim)

    def x(self, value: Expr) -> Expr:
        return self.floats[self.block.conv_dim + value]

    def dt(self, value: Expr) -> Expr:
        return self.floats[2 * self.block.conv_dim + self.head(value)]

    def decay(self, value: Expr) -> Expr:
        return self.floats[2 * self.block.conv_dim + self.block.n_heads + self.head(value)]

    def b(self, value: Expr, n: Expr) -> Expr:
        return self._shared(value, n, 0)

    def c(self, value: Expr, n: Expr) -> Expr:
        return self._shared(value, n, self.block.n_groups)

    def _shared(self, value: Expr, n: Expr, first: int) -> Expr:
        """What heads of a group share."""
        block = self.block
        group = div(self.head(value), block.n_heads // block.n_groups)
        return self.floats[block.conv_dim + block.inner_size + (first + group) * block.state_size + n]


@dataclass(frozen=True)
class ScanWork:
    """The row of a group: `at`: its number among the new rows; begin: where its path lies (negative: a chain); depth:
    rows of the call before it on its path; state: its sequence's."""

    work: GroupWork
    block: Ssm
    at: Expr
    begin: Expr
    depth: Expr
    state: Array

    @classmethod
    def of(cls, work: GroupWork, block: Ssm) -> ScanWork:
        """Of the row of a group."""
        at, begin, end, slot = (row_number(work["rows"], work.tile, name) for name in ("at", "begin", "end", "state"))
        depth = bind(T.Select(begin < T.int32(0), at, end - begin - T.int32(1)))
        return cls(work, block, at, begin, depth, work["state"].at(slot * state_floats(block)))

    @classmethod
    def of_commit(cls, work: GroupWork, block: Ssm) -> ScanWork:
        """Of the sequence that is committed."""
        nothing = T.int32(0)
        return cls(work, block, nothing, nothing, nothing, work["state"].at(work["commit"][0] * state_floats(block)))

    def row_at(self, depth: Expr) -> Expr:
        """The row of the call that stands at a depth of the path."""
        chain = self.begin < T.int32(0)
        place = bind(T.Select(chain, T.int32(0), self.begin + depth))
        number = bind(T.Select(chain, depth, self.work["path"][place]))
        return bind(self.work.tile - self.at + number)

    def kept(self, row: Expr) -> KeptRow:
        """What is kept of a row of the call."""
        return KeptRow(self.block, self.work["kept"].at(row * row_floats(self.block)))


def advanced(d: Dialect, row: KeptRow, value: Expr, n: Expr, state: Expr) -> Expr:
    """Element n of a value's state after a row: decay * state + (dt x) b."""
    return d.fma(row.decay(value), state, d.mul(d.mul(row.dt(value), row.x(value)), row.b(value, n)))
