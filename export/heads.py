"""Draft heads as ONNX: from arrays to a graph and back, and into a bundle.

A graph's arrays are the network's own (`models/heads`), and of a head that guesses tokens `final_norm` [H], `readout`
[kept, H] (rows of the model's head matrix; with VocabTrim only of the most used tokens) and `vocab` int64
[kept], whose rows they are. Matrices are f32, or int8 as everywhere in a bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edgedec.bundle.folder import Bundle, dequantize
from edgedec.bundle.manifest import Head
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.export.amend import add_files
from edgedec.export.graph import FLOAT, INT64, MICROSOFT, Graph
from edgedec.export.quantize import quantize
from edgedec.models.heads import HeadArchitecture, Ops, architecture
from edgedec.storage.serde import from_json

Arrays = dict[str, NDArray[Any]]
BLOCK = 32
_FACTS = "edgedec.head"


@dataclass(frozen=True)
class Facts:
    """Facts that are not in the arrays. width: of the networks' inner layer; layer: of an exit, after how many layers
    it stands; top: tokens named for each row; softcap: of the logits, as in `ModelSpec`."""

    kind: str
    hidden: int
    width: int
    depth: int
    eps: float
    layer: int = 0
    top: int = 0
    softcap: float = 0.0
    format: Literal["f32", "int8"] = "f32"


def expected(facts: Facts, kept: int) -> dict[str, tuple[int, ...]]:
    """The expected arrays with their shapes."""
    shapes = architecture(facts.kind).shapes(facts.hidden, facts.width, facts.depth)
    if facts.top:
        shapes |= {"final_norm": (facts.hidden,), "readout": (kept, facts.hidden), "vocab": (kept,)}
    return shapes


def build(kind: str, arrays: Mapping[str, NDArray[Any]], facts: Facts) -> onnx.ModelProto:
    """The graph of a head; `arrays_of` gives its arrays back."""
    facts = replace(facts, kind=kind)
    shapes = expected(facts, len(arrays.get("vocab", ())))
    if (found := {name: array.shape for name, array in arrays.items()}) != shapes:
        raise UsageError(f"head {kind}: arrays {found} are not the expected {shapes}")
    graph = _HeadGraph(f"head_{kind}", arrays, facts)
    _add(graph, architecture(kind), facts)
    model = graph.model()
    model.metadata_props.add(key=_FACTS, value=json.dumps(asdict(facts)))
    return model


def arrays_of(path: Path) -> tuple[Arrays, Facts]:
    """The arrays and facts of a graph that `build` made, matrices as f32 whatever their format."""
    try:
        model = onnx.load(path)
        facts = from_json(Facts, json.loads({p.key: p.value for p in model.metadata_props}[_FACTS]), str(path))
        stored = {init.name: numpy_helper.to_array(init) for init in model.graph.initializer}
        kept = len(stored.get("vocab", ()))
        return {name: _array(stored, name, shape) for name, shape in expected(facts, kept).items()}, facts
    except (OSError, KeyError, ValueError, TypeError, onnx.onnx_cpp2py_export.checker.ValidationError) as error:
        raise BundleCorrupt(f"{path}: not a draft head of edgedec ({error})") from None
    except Exception as error:
        if type(error).__name__ != "DecodeError":  # protobuf's; the module of the class depends on its version
            raise
        raise BundleCorrupt(f"{path}: not an ONNX file ({error})") from None


def _array(stored: Arrays, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if name in stored:
        return np.ascontiguousarray(stored[name]).reshape(shape)
    scales = stored[f"{name}.scales"].reshape(shape[0], -1)
    return dequantize(stored[f"{name}.q"], scales, "int8", shape[1])


class _HeadGraph(Graph):
    """A graph that holds its weights itself; an `Ops` of value names."""

    def __init__(self, name: str, arrays: Mapping[str, NDArray[Any]], facts: Facts) -> None:
        super().__init__(name, "", {})
        self.arrays, self.facts = arrays, facts

    def inline(self, name: str, array: NDArray[Any]) -> str:
        if name not in self._inits:
            self._inits[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def linear(self, x: str, name: str, bias: str | None = None) -> str:
        matrix = self.arrays[name].astype(np.float32, copy=False)
        if self.facts.format == "f32":
            return self.node("Gemm", [x, self.inline(name, matrix)], transB=1)
        data, scales = quantize(matrix, "int8", BLOCK)
        inputs = [x, self.inline(f"{name}.q", data), self.inline(f"{name}.scales", scales.astype(np.float32))]
        n, k = matrix.shape
        how = {"K": k, "N": n, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", inputs, domain=MICROSOFT, **how)

    def norm(self, x: str, name: str) -> str:
        weight = self.inline(name, self.arrays[name].astype(np.float32, copy=False))
        eps = self.facts.eps
        return self.node("SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=eps, stash_type=1)

    def silu(self, x: str) -> str:
        return self.node("QuickGelu", [x], domain=MICROSOFT, alpha=1.0)

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def guesses(self, states: str, shape: list[int]) -> tuple[str, str]:
        """states [rows, H] -> the tokens that come next most likely, and their log-probabilities."""
        logits = self.linear(self.norm(states, "final_norm"), "readout")
        if self.facts.softcap:
            cap = self.constant(np.array(self.facts.softcap, np.float32))
            logits = self.node("Mul", [self.node("Tanh", [self.node("Div", [logits, cap])]), cap])
        probs = self.node("LogSoftmax", [logits], axis=-1)
        top = self.constant(np.array([self.facts.top], np.int64))
        best, rows = self.nodes("TopK", [probs, top], ["best", "rows"])
        ids = self.node("Gather", [self.inline("vocab", self.arrays["vocab"].astype(np.int64)), rows])
        if shape:
            ids, best = (self.reshaped(x, shape) for x in (ids, best))
        return ids, best


def _add(g: _HeadGraph, network: HeadArchitecture, facts: Facts) -> None:
    """Inputs, arithmetic and outputs as the kind declares them; ids and logprobs of a kind that guesses tokens."""
    ops: Ops[str] = g
    inputs = [g.input(name, FLOAT, ["n", facts.hidden]) for name in network.FACTS.inputs]
    states = network.run(ops, inputs, facts.depth)
    if network.FACTS.state:
        _give(g, {network.FACTS.state: (states[-1], FLOAT)}, ["n", facts.hidden])
    if not facts.top:
        return
    rows, shape = states[-1], list[int]()
    if network.FACTS.stacked:
        one = g.constant(np.array([1], np.int64))
        stacked = g.node("Concat", [g.node("Unsqueeze", [state, one]) for state in states], axis=1)
        rows, shape = g.reshaped(stacked, [-1, facts.hidden]), [-1, facts.depth, facts.top]
    ids, best = g.guesses(rows, shape)
    _give(g, {"ids": (ids, INT64), "logprobs": (best, FLOAT)}, ["n", *(shape[1:] or [facts.top])])


def _give(g: _HeadGraph, values: Mapping[str, tuple[str, int]], shape: list[int | str]) -> None:
    for name, (value, dtype) in values.items():
        g.output(g.node("Identity", [value], out=name), dtype, shape)


def install(bundle: Bundle, model: onnx.ModelProto, arrays: Mapping[str, NDArray[Any]], facts: Facts) -> Bundle:
    """Put a head into a bundle, replacing one of its kind; the manifest is written last. -> the bundle as it is now."""
    name, weights = f"head_{facts.kind}.onnx", bundle.manifest.weights
    now = Bundle.open(bundle.path)  # another head may have been added during the training
    if now.manifest.files.get(weights) != bundle.manifest.files[weights]:
        raise UsageError(f"{bundle.path}: is another model by now; train the head again")
    head = Head(name, facts.depth, facts.layer, len(arrays.get("vocab", ())), facts.top)
    return add_files(
        now,
        {name: model.SerializeToString()},
        lambda manifest: replace(manifest, heads={**manifest.heads, facts.kind: head}),
    )
