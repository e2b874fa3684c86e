"""A thin layer over ONNX: nodes by call, weights by reference into the bundle's one weights file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.bundle.integers import is_integer, low_bits
from edgedec.bundle.manifest import LANES, Tensor
from edgedec.export.block_offsets import of_product, whole_scales, with_offsets
from edgedec.export.low_bits import bits_for, codes_of, stored_codes

MICROSOFT = "com.microsoft"
OPSET, MICROSOFT_OPSET, IR_VERSION = 21, 1, 10
FLOAT, FLOAT16, INT8, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
_BYTES = {FLOAT: 4, FLOAT16: 2, INT8: 1, UINT8: 1}


class Graph:
    """One ONNX graph under construction. Every method that makes a value returns its name."""

    def __init__(self, name: str, weights: str, tensors: Mapping[str, Tensor]) -> None:
        self.name, self.weights, self.tensors = name, weights, dict(tensors)
        self._prefix = "t"
        self._nodes: list[onnx.NodeProto] = []
        self.no_halves = False  # if set, float16 is widened when the graph is loaded, for devices without float16
        self._inits: dict[str, onnx.TensorProto] = {}
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        """An input of the graph; the same one if it is named again."""
        self._inputs.setdefault(name, helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def node(self, op: str, inputs: Sequence[str], *, out: str | None = None, domain: str = "", **attrs: Any) -> str:
        """One node with one output, which `out` names."""
        return self.nodes(op, inputs, [out or f"{self._prefix}{len(self._nodes)}"], domain=domain, **attrs)[0]

    def nodes(self, op: str, inputs: Sequence[str], out: Sequence[str], *, domain: str = "", **attrs: Any) -> list[str]:
        """One node with several outputs."""
        name = f"{op}_{self._prefix}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), list(out), name=name, domain=domain, **attrs))
        return list(out)

    def maker(self, value: str) -> onnx.NodeProto:
        """The node that makes a value."""
        return next(node for node in self._nodes if value in node.output)

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Along the last axis."""
        outputs = [f"{self._prefix}{len(self._nodes)}_{i}" for i in range(len(sizes))]
        return self.nodes("Split", [x, self.constant(np.array(sizes, np.int64))], outputs, axis=-1)

    def branch(self, prefix: str) -> Graph:
        """A graph for one side of an `If` here, its names beginning with `prefix`; constants stand in this graph."""
        side = Graph(prefix, self.weights, self.tensors)
        side._prefix, side._inits = f"{prefix}.", self._inits
        return side

    def choose(self, condition: str, then: Graph, otherwise: Graph) -> str:
        """The one output of either branch."""
        sides = {"then_branch": then.subgraph(), "else_branch": otherwise.subgraph()}
        return self.node("If", [condition], **sides)

    def part(self, name: str, start: int, stop: int) -> str:
        """Rows start..stop of a stored matrix as a matrix of its own: of interleaved ones, whole groups."""
        found = f"{name}.{start}"
        if found not in self.tensors:
            self.tensors[found] = self.tensors[name].part(start, stop)
        return found

    def constant(self, array: NDArray[Any]) -> str:
        """A small value that stands in the graph itself."""
        name = f"c_{array.dtype}_{'x'.join(map(str, array.shape))}_{'_'.join(map(str, array.ravel()))}"
        self._inits.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def external(self, name: str, dtype: int, shape: Sequence[int], offset: int) -> str:
        """A value that lies in the weights file."""
        if name not in self._inits:
            tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
            length = int(np.prod(shape)) * _BYTES[dtype]
            for key, value in (("location", self.weights), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            self._inits[name] = tensor
        return name

    def vector(self, name: str) -> str:
        """A tensor that is always f32: a norm's multiplier, a bias, a router."""
        tensor = self.tensors[name]
        return self.external(name, FLOAT, tensor.shape, tensor.data)

    def linear(self, x: str, name: str, bias: str | None = None) -> str:
        """x [1, rows, in] times the matrix `name` (out, in), in whatever format it is stored."""
        tensor = self.tensors[name]
        n, k = tensor.shape
        if is_integer(tensor.format):
            zeros = self._zeros(name) if tensor.zeros else ""
            inputs = [x, self._stored(name), self.halves(name, "scales"), zeros, "", (bias and self.vector(bias)) or ""]
            while not inputs[-1]:
                inputs.pop()
            bits = bits_for(tensor.format)
            y = self.node(
                "MatMulNBits",
                inputs,
                domain=MICROSOFT,
                K=k,
                N=n,
                bits=bits,
                block_size=tensor.block,
                accuracy_level=4,
            )
            return self.node("Add", [y, of_product(self, x, name)]) if tensor.offsets or tensor.low_offsets else y
        y = self.node("FusedMatMul", [x, self._plain(name)], domain=MICROSOFT, transB=1)
        return self.node("Add", [y, self.vector(bias)]) if bias else y

    def lookup(self, ids: str, name: str) -> str:
        """Rows `ids` of the matrix `name`, as f32."""
        tensor = self.tensors[name]
        if not is_integer(tensor.format):
            rows = self.node("Gather", [self._raw(name), ids])
            return rows if tensor.format == "f32" else self.node("Cast", [rows], to=FLOAT)
        if tensor.layout == "interleave16":
            return self._picked(ids, name)
        bits = bits_for(tensor.format)
        data = self.external(f"{name}.rows", UINT8, (tensor.shape[0], tensor.blocks * tensor.block_bytes), tensor.data)
        if low_bits([tensor.format]):
            data = self.reshaped(stored_codes(self, data, tensor), [tensor.shape[0], -1])
        rows = self.node(
            "GatherBlockQuantized",
            [data, ids, self.halves(name, "scales")],
            domain=MICROSOFT,
            bits=bits,
            block_size=tensor.block,
            gather_axis=0,
            quantize_axis=1,
        )
        return self._narrowed(with_offsets(self, rows, ids, name), name)

    def _picked(self, ids: str, name: str) -> str:
        """Rows `ids` of a packed matrix: their groups are gathered, their lanes picked and widened."""
        tensor = self.tensors[name]
        lanes = self.constant(np.array(LANES, np.int64))
        group, lane = self.node("Div", [ids, lanes]), self.node("Mod", [ids, lanes])
        lane = self.reshaped(lane, [0, 0, 1])
        data = self._lane(self._packed(name), group, lane, (0, 1, 3, 2, 4))
        if low_bits([tensor.format]):
            data = codes_of(self, self.reshaped(data, [0, 0, -1]), tensor)
        elif tensor.format == "int4":
            data = self._nibbles(data)
        zero = self.constant(np.array(128 if bits_for(tensor.format) == 8 else 8, np.float32))
        q = self.node("Sub", [self.node("Cast", [data], to=FLOAT), zero])
        if tensor.parts:
            scales = self.node("Gather", [self.halves(name, "scales"), ids])
        else:
            packed = self._packed_halves(name, "scales")
            if self.no_halves:
                packed = self._once(packed, f"{name}.packed_f32")
            scales = self.node("Cast", [self._lane(packed, group, lane, (0, 1, 3, 2))], to=FLOAT)
        q, scales = (self.reshaped(x, [0, 0, tensor.blocks, -1]) for x in (q, scales))
        rows = self.reshaped(self.node("Mul", [q, scales]), [0, 0, -1])
        return self._narrowed(with_offsets(self, rows, ids, name), name)

    def _nibbles(self, data: str) -> str:
        """data uint8 [...] -> [..., 2], the low nibble first."""
        low = self.node("BitwiseAnd", [data, self.constant(np.array(15, np.uint8))])
        high = self.node("BitShift", [data, self.constant(np.array(4, np.uint8))], direction="RIGHT")
        last = self.constant(np.array([-1], np.int64))
        return self.node("Concat", [self.node("Unsqueeze", [x, last]) for x in (low, high)], axis=-1)

    def _lane(self, packed: str, group: str, lane: str, order: Sequence[int]) -> str:
        """packed [groups, w, 16, ...] -> [1, rows, w, ...]: of each row's group, moved by `order`, its lane."""
        groups = self.node("Transpose", [self.node("Gather", [packed, group])], perm=list(order))
        return self.node("GatherND", [groups, lane], batch_dims=2)

    def _narrowed(self, rows: str, name: str) -> str:
        """Rows without what fills up their last block."""
        tensor = self.tensors[name]
        width, filled = tensor.shape[1], tensor.blocks * tensor.block
        return rows if width == filled else self.split(rows, [width, filled - width])[0]

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """x in another shape; 0 keeps a dim, -1 is what is left."""
        return self.node("Reshape", [x, self.constant(np.array(shape, np.int64))])

    def _stored(self, name: str) -> str:
        """The weights operand of MatMulNBits: uint8 [out, blocks, bytes of a block]."""
        tensor = self.tensors[name]
        if tensor.layout == "interleave16":
            data = self._unpacked(self._packed(name), (0, 2, 1, 3), name, [tensor.blocks, tensor.block_bytes])
        else:
            data = self.external(name, UINT8, (tensor.shape[0], tensor.blocks, tensor.block_bytes), tensor.data)
        return stored_codes(self, data, tensor) if low_bits([tensor.format]) else data

    def halves(self, name: str, what: Literal["scales", "offsets"]) -> str:
        """The block scales or offsets [out, blocks], as f32: ONNX Runtime widens them once, when it loads."""
        tensor, wide = self.tensors[name], f"{name}.{what}_f32"
        if any(wide in node.output for node in self._nodes):
            return wide
        if tensor.parts:
            return whole_scales(self, name, what)
        if tensor.layout == "interleave16":
            half = self._unpacked(self._packed_halves(name, what), (0, 2, 1), name, [tensor.blocks])
        else:
            offset = tensor.scales if what == "scales" else tensor.offsets
            half = self.external(f"{name}.{what}", FLOAT16, (tensor.shape[0], tensor.blocks), offset)
        return self._once(half, wide)

    def _zeros(self, name: str) -> str:
        """The zero points of MatMulNBits: uint8 [out, bytes of a row], of int4 two in a byte."""
        tensor = self.tensors[name]
        n, blocks, width = tensor.shape[0], tensor.blocks, tensor.zero_bytes // tensor.groups
        if tensor.layout == "rows":
            return self.external(f"{name}.zeros", UINT8, (n, tensor.zero_bytes // n), tensor.zeros)
        packed = self.external(f"{name}.zeros", UINT8, (tensor.groups, blocks, width // blocks), tensor.zeros)
        if tensor.format == "int8":
            return self._unpacked(packed, (0, 2, 1), name, [blocks])
        # Rows 0 to 7 of a group lie in low nibbles, 8 to 15 in high ones: first a row each, then its blocks by twos.
        each = self.node("Transpose", [self._nibbles(packed)], perm=[0, 1, 3, 2])
        rows = self._unpacked(self.reshaped(each, [0, 0, LANES]), (0, 2, 1), name, [blocks])
        if blocks % 2:
            rows = self.node("Pad", [rows, self.constant(np.array([0, 0, 0, 1], np.int64))])
        low, high = self.split(self.reshaped(rows, [0, -1, 2]), [1, 1])
        four = self.node("BitShift", [high, self.constant(np.array(4, np.uint8))], direction="LEFT")
        return self.reshaped(self.node("BitwiseOr", [low, four]), [n, -1])

    def _packed(self, name: str) -> str:
        tensor = self.tensors[name]
        shape = (tensor.groups, tensor.blocks * tensor.block_bytes // 4, LANES, 4)
        return self.external(name, UINT8, shape, tensor.data)

    def _packed_halves(self, name: str, what: Literal["scales", "offsets"]) -> str:
        tensor = self.tensors[name]
        offset = tensor.scales if what == "scales" else tensor.offsets
        return self.external(f"{name}.{what}", FLOAT16, (tensor.groups, tensor.blocks, LANES), offset)

    def by_row(self, name: str, what: Literal["scales", "parts"], width: int) -> str:
        """The super-scales or the parts of scales of a matrix as stored, [out, width], whichever its layout."""
        tensor, dtype = self.tensors[name], FLOAT16 if what == "scales" else UINT8
        offset = tensor.scales if what == "scales" else tensor.parts
        if tensor.layout == "rows":
            return self.external(f"{name}.{what}", dtype, (tensor.shape[0], width), offset)
        packed = self.external(f"{name}.{what}", dtype, (tensor.groups, width, LANES), offset)
        return self._unpacked(packed, (0, 2, 1), name, [width])

    def _unpacked(self, packed: str, order: Sequence[int], name: str, row: Sequence[int]) -> str:
        """packed [groups, ...] -> [out, *row]. The operands are constants, so ONNX Runtime does this once, at load."""
        n = self.tensors[name].shape[0]
        rows = self.reshaped(self.node("Transpose", [packed], perm=list(order)), [-1, *row])
        if n % LANES == 0:
            return rows
        start, stop, axis = (self.constant(np.array([v], np.int64)) for v in (0, n, 0))
        return self.node("Slice", [rows, start, stop, axis])

    def _plain(self, name: str) -> str:
        raw = self._raw(name)
        return raw if self.tensors[name].format == "f32" else self._once(raw, f"{name}.f32")

    def _raw(self, name: str) -> str:
        tensor = self.tensors[name]
        return self.external(name, FLOAT if tensor.format == "f32" else FLOAT16, tensor.shape, tensor.data)

    def _once(self, half: str, out: str) -> str:
        if not any(out in node.output for node in self._nodes):
            self.node("Cast", [half], out=out, to=FLOAT)
        return out

    def subgraph(self) -> onnx.GraphProto:
        """The nodes as a subgraph that uses values of the enclosing graph."""
        return helper.make_graph(self._nodes, self.name, [], self._outputs)

    def body(self) -> onnx.GraphProto:
        """The nodes as the body of a `Loop`, which has inputs of its own."""
        return helper.make_graph(self._nodes, self.name, list(self._inputs.values()), self._outputs)

    def model(self) -> onnx.ModelProto:
        inputs, weights = list(self._inputs.values()), list(self._inits.values())
        graph = helper.make_graph(self._nodes, self.name, inputs, self._outputs, initializer=weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, MICROSOFT_OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedec")

    def save(self, folder: Path) -> str:
        """Write `<name>.onnx` into `folder`; returns the file's name."""
        file = f"{self.name}.onnx"
        (folder / file).write_bytes(self.model().SerializeToString())
        return file
