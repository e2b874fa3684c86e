"""Which ONNX graphs are opened: those of known operators, whose loops end and whose tensors have the sizes they say.

A graph is checked before ONNX Runtime sees it. What its values take while it runs, `runtime/onnx_memory.py` bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from edgedec.bundle.folder import Bundle, is_plain
from edgedec.bundle.manifest import LATENT_HEAD
from edgedec.bundle.onnx_operators import DECODER, HEAD
from edgedec.bundle.onnx_reading import GraphNode, GraphTensor, NotOnnx, OnnxGraph, read_onnx
from edgedec.errors import BundleCorrupt, BundleUnsafe

# Runs of a loop's body, those of the loops around it multiplied in.
MOST_RUNS = 1 << 16
# Bits of an element by the number of its type in ONNX; 8 (strings) and unknown ones count as the bytes that are there.
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16}
_BITS |= {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8}
_MOST_DIMS = 16
# A string without characters takes two bytes in the file.
_STRINGS = 8


@dataclass(frozen=True)
class GraphRules:
    """operators: "domain:name" of what a graph may use; loops: whether of control flow as well."""

    what: str
    operators: frozenset[str]
    loops: bool


HEAD_RULES = GraphRules("a draft head", HEAD, loops=False)
DECODER_RULES = GraphRules("a decoder", DECODER, loops=True)


def check_bundle_graph(bundle: Bundle, name: str, rules: GraphRules) -> Path:
    """The path of a graph of the bundle that may be opened; BundleUnsafe or BundleCorrupt says why one may not."""
    path = bundle.file(name)
    check_graph(path, rules, {name: file.size for name, file in bundle.manifest.files.items()})
    return path


def check_graphs(bundle: Bundle) -> None:
    """Check every graph of a bundle by the rules under which it is opened."""
    heads = {head.file for head in bundle.manifest.heads.values()}
    networks = {name for draft in bundle.manifest.drafts.values() for name in draft.networks.values()}
    for name in sorted(heads | networks | ({LATENT_HEAD} & set(bundle.manifest.files))):
        check_bundle_graph(bundle, name, HEAD_RULES)
    for artifact in (bundle.manifest.artifacts.get(name) for name in ("ort", "graph")):
        for name in () if artifact is None else artifact.files:
            if name.endswith(".onnx"):
                check_bundle_graph(bundle, name, DECODER_RULES)


def check_graph(path: Path, rules: GraphRules, files: Mapping[str, int]) -> None:
    """Check a graph file; files: the bytes of each file beside it that it may keep tensors in."""
    try:
        model = read_onnx(path)
    except NotOnnx as error:
        raise BundleCorrupt(f"{path}: not an ONNX graph, or damaged ({error})") from None
    except OSError as error:
        raise BundleCorrupt(f"{path}: cannot be read: {error.strerror or error}") from None
    if model.functions:
        raise BundleUnsafe(f"{path}: defines functions, which are not opened; export it without them")
    for problem in _problems(model.graph, rules, files, 1):
        raise BundleUnsafe(f"{path}: {problem}")


def _problems(graph: OnnxGraph, rules: GraphRules, files: Mapping[str, int], runs: int) -> Iterator[str]:
    """What is wrong with a graph, whose loops around it run it `runs` times."""
    for tensor in graph.tensors.values():
        yield from _tensor_problems(tensor, files)
    constants = dict(graph.tensors)
    for node in graph.nodes:
        if "" in (node.op, *node.outputs[:1]) or f"{_domain(node)}:{node.op}" not in rules.operators:
            yield f"the operator {_shown(node)} is not one that {rules.what} may use"
        for tensor in node.tensors.values():
            yield from _tensor_problems(tensor, files)
        if node.op == "Constant" and node.outputs:
            constants[node.outputs[0]] = _constant(node)
        inner = runs
        if node.op in ("Loop", "Scan"):
            count = _loop_runs(node, constants) if node.op == "Loop" else _scan_runs(node, constants)
            if count is None:
                yield f"{node.op}: how often it runs is not a constant of the graph"
                return
            inner = runs * max(1, count)
            if inner > MOST_RUNS:
                yield f"{node.op}: runs {inner} times, more than {MOST_RUNS}"
                return
        if node.graphs and not rules.loops:
            yield f"the operator {_shown(node)} holds a graph, which {rules.what} may not"
        for body in node.graphs.values():
            yield from _problems(body, rules, files, inner)


def _tensor_problems(tensor: GraphTensor, files: Mapping[str, int]) -> Iterator[str]:
    """The size that a tensor says it has must be there, before it is allocated."""
    if len(tensor.dims) > _MOST_DIMS or any(size < 0 for size in tensor.dims):
        yield f"tensor {tensor.name!r}: a shape of {tensor.dims[:_MOST_DIMS]}"
        return
    held = tensor.held
    if tensor.external:
        place = tensor.external.get("location", "")
        if not is_plain(place) or place not in files:
            yield f"tensor {tensor.name!r}: its data is in {place!r}, which the manifest does not list"
            return
        start, length = (_number(tensor.external.get(key)) for key in ("offset", "length"))
        held = files[place] - (start or 0) if length is None else length
        if start == -1 or length == -1 or held < 0 or (start or 0) + held > files[place]:
            yield f"tensor {tensor.name!r}: its data lies outside {place}"
            return
    bits, count = _BITS.get(tensor.kind), prod(tensor.dims)
    if bits is None:
        if tensor.kind != _STRINGS or count > held + 1:
            yield f"tensor {tensor.name!r}: of the type {tensor.kind}, or larger than its data"
    elif tensor.raw or tensor.external:
        if (count * bits + 7) // 8 > held:
            yield f"tensor {tensor.name!r}: {count} values, and data for fewer"
    elif count > held * 2:  # two of four bits in a number of one byte
        yield f"tensor {tensor.name!r}: {count} values, and data for fewer"


def _loop_runs(node: GraphNode, constants: Mapping[str, GraphTensor]) -> int | None:
    """The first input of a Loop, its most runs."""
    count = constants.get(node.inputs[0]) if node.inputs else None
    return count.ints[0] if count is not None and len(count.ints) == 1 else None


def _scan_runs(node: GraphNode, constants: Mapping[str, GraphTensor]) -> int | None:
    """The length of what a Scan goes along, which must be constant too."""
    n = (node.ints.get("num_scan_inputs") or (0,))[0]
    along = [constants.get(name) for name in node.inputs[-n:]] if 0 < n <= len(node.inputs) else []
    sizes = [max(tensor.dims, default=0) for tensor in along if tensor is not None]
    return max(sizes) if sizes and len(sizes) == n else None


def _constant(node: GraphNode) -> GraphTensor:
    """The value of a Constant node."""
    value = node.tensors.get("value")
    ints = node.ints.get("value_int") or node.ints.get("value_ints") or ()
    return value or GraphTensor(node.outputs[0], (len(ints),), 7, 8 * len(ints), True, ints)


def _number(text: str | None) -> int | None:
    """-1: no number."""
    return None if text is None else int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _domain(node: GraphNode) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _shown(node: GraphNode) -> str:
    return f"{_domain(node)}:{node.op}".removeprefix(":")[:80]
