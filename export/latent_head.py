"""The latent head (`edgedec/bundle/latent_head.py`) as arrays beside a checkpoint, and as a graph in a bundle.

The network, of the authors of CoLaR and with their names: Linear, GELU, Linear, LayerNorm, and from there a mean and
the logarithm of a standard deviation, of embeddings divided by `std`, the standard deviation of the model's
embeddings. It reads the last state after the model's last norm; the graph has the norm, and multiplies by `std`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edgedec.bundle.folder import Bundle
from edgedec.bundle.latent_head import FACTS_KEY, INPUTS, OUTPUTS, LatentFacts
from edgedec.bundle.manifest import LATENT_HEAD
from edgedec.errors import BundleCorrupt, CheckpointError, UsageError
from edgedec.export.amend import add_files
from edgedec.export.graph import FLOAT, Graph
from edgedec.export.safetensors import read_header
from edgedec.runtime.checks import check_bare_head
from edgedec.spec import ModelSpec
from edgedec.storage.serde import from_json

FILE = "latent_head.safetensors"
_LAYER_NORM_EPS = 1e-5
Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class LatentNetwork:
    """arrays: as `shapes` says; std: of the model's embeddings."""

    arrays: Arrays
    std: float
    facts: LatentFacts

    def metadata(self) -> dict[str, str]:
        """What the checkpoint's file says beside the arrays."""
        return {"format": "pt", "std": repr(self.std), "facts": json.dumps(asdict(self.facts))}


def shapes(hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """The network's arrays; width: of its inner layers (the authors: 2048)."""
    return {
        **{"fc.0.weight": (width, hidden), "fc.0.bias": (width,), "fc.2.weight": (width, width), "fc.2.bias": (width,)},
        **{"fc.3.weight": (width,), "fc.3.bias": (width,)},
        **{"mean.weight": (hidden, width), "mean.bias": (hidden,)},
        **{"log_std.weight": (hidden, width), "log_std.bias": (hidden,)},
    }


def read_latent(folder: Path) -> LatentNetwork | None:
    """The head beside a checkpoint, None if it has none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        found, said = read_header(path), _metadata(path)
        facts, std = from_json(LatentFacts, json.loads(said["facts"]), str(path)), float(said["std"])
        arrays = {name: stored.values(name, 0, stored.shape) for name, stored in found.items()}
        width, hidden = arrays["fc.0.weight"].shape
    except (KeyError, ValueError, TypeError, BundleCorrupt) as error:
        raise CheckpointError(f"{path}: not a latent head ({error}); train it again") from None
    if {name: array.shape for name, array in arrays.items()} != shapes(hidden, width):
        raise CheckpointError(f"{path}: has other arrays than a latent head of {hidden} and {width}; train it again")
    return LatentNetwork(arrays, std, facts)


def _metadata(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header["__metadata__"])


def check_model(spec: ModelSpec, what: str) -> None:
    """UsageError for a model whose states or embeddings the head does not read."""
    if spec.final_norm != "rms" or spec.embed_scale != 1.0:
        raise UsageError(f"{what}: {spec.architecture} has another last norm than RMS, or scales its embeddings")
    check_bare_head(spec, what)


def graph_of(network: LatentNetwork, final_norm: NDArray[np.float32], eps: float) -> onnx.ModelProto:
    """The graph of a head after a last norm."""
    g, arrays = _Latent(network.arrays), network.arrays
    hidden = len(final_norm)
    if arrays["mean.weight"].shape[0] != hidden:
        raise UsageError(f"{FILE}: is of a model of {arrays['mean.weight'].shape[0]}, not of {hidden}")
    x = g.input(INPUTS[0], FLOAT, ["n", hidden])
    norm = g.inline("final_norm", final_norm)
    x = g.node("SimplifiedLayerNormalization", [x, norm], axis=-1, epsilon=eps, stash_type=1)
    x = g.linear(g.node("Gelu", [g.linear(x, "fc.0")]), "fc.2")
    scale = [g.inline(f"fc.3.{part}", arrays[f"fc.3.{part}"]) for part in ("weight", "bias")]
    x = g.node("LayerNormalization", [x, *scale], axis=-1, epsilon=_LAYER_NORM_EPS)
    std = g.constant(np.array(network.std, np.float32))
    for name, value in zip(OUTPUTS, (g.linear(x, "mean"), g.node("Exp", [g.linear(x, "log_std")])), strict=True):
        g.output(g.node("Mul", [value, std], out=name), FLOAT, ["n", hidden])
    model = g.model()
    model.metadata_props.add(key=FACTS_KEY, value=network.facts.to_text())
    return model


class _Latent(Graph):
    """A graph that holds its weights itself."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__("latent_head", "", {})
        self._arrays = arrays

    def inline(self, name: str, array: NDArray[np.float32]) -> str:
        self._inits[name] = numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name)
        return name

    def linear(self, x: str, name: str, bias: str | None = None) -> str:
        weights = [self.inline(f"{name}.{part}", self._arrays[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self.node("Gemm", [x, *weights], transB=1)


def install(bundle: Bundle, network: LatentNetwork, norm: NDArray[np.float32]) -> Bundle:
    """Put a head into a bundle, instead of the one it has -> the bundle as it is now. norm: the weight of the model's
    final norm, whatever the bundle has folded it into."""
    check_model(bundle.spec, FILE)
    model = graph_of(network, norm.ravel(), bundle.spec.norm_eps)
    return add_files(bundle, {LATENT_HEAD: model.SerializeToString()}, lambda manifest: manifest)
