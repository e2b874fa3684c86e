"""What an ONNX file holds, as far as `onnx_rules.py` judges it: nodes, tensors, subgraphs. Weights are not read.

Plain protobuf, read strictly: what protobuf would merge, skip or cut (a message that comes twice, groups, unknown wire
types) is refused, so that ONNX Runtime cannot find another graph in the file than this reader does.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import unpack_from

# Graphs inside graphs; nothing that exporters write is deeper than three.
_DEEPEST = 16
Value = int | memoryview


class NotOnnx(ValueError):
    """The bytes are no ONNX graph, or one that is damaged."""


@dataclass(frozen=True)
class GraphTensor:
    """A tensor that the file gives a value. held: its bytes in this file; ints: the values of a short int64 tensor;
    external: the entries of its data in another file."""

    name: str
    dims: tuple[int, ...]
    kind: int
    held: int
    raw: bool
    ints: tuple[int, ...] = ()
    external: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphNode:
    """tensors, graphs, ints: of its attributes, by their names."""

    domain: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, GraphTensor]
    graphs: dict[str, OnnxGraph]
    ints: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class OnnxGraph:
    nodes: tuple[GraphNode, ...]
    tensors: dict[str, GraphTensor]


@dataclass(frozen=True)
class OnnxFile:
    """functions: how many the file defines."""

    graph: OnnxGraph
    functions: int


def read_onnx(path: Path) -> OnnxFile:
    """The content of a file; NotOnnx if it is none."""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # empty
            raise NotOnnx("empty") from None
    view = memoryview(mapped)
    try:
        return parse_onnx(view)
    finally:
        view.release()
        try:
            mapped.close()
        except BufferError:  # an error's traceback still refers to a part: closed with it
            pass


def parse_onnx(view: memoryview) -> OnnxFile:
    fields = _fields(view)
    graphs = _messages(fields, 7)
    if len(graphs) != 1:
        raise NotOnnx("no graph in it" if not graphs else "two graphs in it")
    if fields.get(20):
        raise NotOnnx("a training graph")
    return OnnxFile(_graph(graphs[0], 0), len(fields.get(25, ())))


def _graph(view: memoryview, depth: int) -> OnnxGraph:
    if depth > _DEEPEST:
        raise NotOnnx(f"graphs nested deeper than {_DEEPEST}")
    fields = _fields(view)
    if fields.get(15):
        raise NotOnnx("a sparse tensor")
    tensors = [_tensor(part) for part in _messages(fields, 5)]
    named = {tensor.name: tensor for tensor in tensors}
    if len(named) != len(tensors):
        raise NotOnnx("two tensors of one name")
    return OnnxGraph(tuple(_node(part, depth) for part in _messages(fields, 1)), named)


def _node(view: memoryview, depth: int) -> GraphNode:
    fields = _fields(view)
    tensors, graphs, ints = dict[str, GraphTensor](), dict[str, OnnxGraph](), dict[str, tuple[int, ...]]()
    for part in _messages(fields, 5):
        attribute = _fields(part)
        name = _text(attribute, 1)
        if name in ints:
            raise NotOnnx(f"two attributes {name!r} of a node")
        if attribute.get(22) or attribute.get(23):
            raise NotOnnx("a sparse tensor")
        ints[name] = (*_ints(attribute, 3), *_ints(attribute, 8))
        if len(single := _messages(attribute, 5)) > 1 or len(inner := _messages(attribute, 6)) > 1:
            raise NotOnnx(f"two values of the attribute {name!r}")
        for i, found in enumerate([*single, *_messages(attribute, 10)]):
            tensors[f"{name}.{i}" if i else name] = _tensor(found)
        for i, found in enumerate([*inner, *_messages(attribute, 11)]):
            graphs[f"{name}.{i}" if i else name] = _graph(found, depth + 1)
    return GraphNode(_text(fields, 7), _text(fields, 4), _texts(fields, 1), _texts(fields, 2), tensors, graphs, ints)


def _tensor(view: memoryview) -> GraphTensor:
    fields = _fields(view)
    if fields.get(3):
        raise NotOnnx("a tensor in segments")
    entries = [_fields(part) for part in _messages(fields, 13)]
    external = {_text(entry, 1): _text(entry, 2) for entry in entries}
    if len(external) != len(entries):
        raise NotOnnx("a tensor whose data is in two places")
    raw, typed = _messages(fields, 9), [value for number in (4, 5, 6, 7, 10, 11) for value in fields.get(number, ())]
    held = sum(len(part) if isinstance(part, memoryview) else 8 for part in [*raw[-1:], *typed])
    if not external and (fields.get(14) or [0])[-1] == 1:
        external = {"location": ""}
    kind, dims = (fields.get(2) or [0])[-1], _ints(fields, 1)
    ints = tuple[int, ...]()
    if kind == 7 and held <= 64:
        ints = unpack_from(f"<{len(raw[-1]) // 8}q", raw[-1]) if raw else _ints(fields, 7)
    if not isinstance(kind, int):
        raise NotOnnx("a tensor without a type")
    return GraphTensor(_text(fields, 8), dims, kind, held, bool(raw), ints, external)


def _fields(view: memoryview) -> dict[int, list[Value]]:
    """The fields of a message by their numbers, each in the order of the file."""
    found: dict[int, list[Value]] = {}
    at, end = 0, len(view)
    while at < end:
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        value: Value
        if wire == 0:
            value, at = _varint(view, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = view[at : at + size], at + size
        elif wire == 2:
            size, at = _varint(view, at)
            value, at = view[at : at + size], at + size
        else:
            raise NotOnnx(f"a field of the wire type {wire}")
        if at > end or not 0 < number < 1 << 29:
            raise NotOnnx("cut short")
        found.setdefault(number, []).append(value)
    return found


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise NotOnnx("cut short")


def _messages(fields: dict[int, list[Value]], number: int) -> list[memoryview]:
    found = fields.get(number, [])
    return [value if isinstance(value, memoryview) else _wrong() for value in found]


def _texts(fields: dict[int, list[Value]], number: int) -> tuple[str, ...]:
    try:
        return tuple(str(part, "utf-8") for part in _messages(fields, number))
    except UnicodeDecodeError:
        raise NotOnnx("a name that is not UTF-8") from None


def _text(fields: dict[int, list[Value]], number: int) -> str:
    return (_texts(fields, number) or ("",))[-1]


def _ints(fields: dict[int, list[Value]], number: int) -> tuple[int, ...]:
    """Whole numbers, packed or not."""
    return tuple(_signed(fields.get(number, [])))


def _signed(values: list[Value]) -> Iterator[int]:
    for value in values:
        if isinstance(value, int):
            yield value - (value >> 63 << 64)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield one - (one >> 63 << 64)


def _wrong() -> memoryview:
    raise NotOnnx("a field of another type than its number's")
