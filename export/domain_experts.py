"""A dense model split into experts by domains of text, as it lies beside a checkpoint and as a bundle has it.

Cai et al., "Read-ME: Refactorizing LLMs as Router-Decoupled Mixture of Experts with System Co-Design" (NeurIPS 2024);
the rules from the authors' code (VITA-Group/READ-ME, `moe_fication/generate_mask.py` and the conversion in their
`modeling_llama.py`). Of each layer a domain keeps the half of the feed-forward's neurons whose values, which the last
matrix reads, are largest by mean magnitude over its texts. Neurons that all domains keep are shared; the others that a
domain keeps are its expert. (The code compares with the last value that is kept, so it keeps one neuron less.) Every
expert passes the shared neurons.

A bundle has them as `Moe` blocks whose router is "given", by one `pre_router` before the first layer. As many of the
shared neurons as fill blocks of 32 are stored once, as the shared expert; the rest in each expert, so that all of a
layer's are of one size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.safetensors import Array, read_header
from edgedec.models import Part, Source
from edgedec.spec import Mlp, ModelSpec, Moe, PreRouter, Rope
from edgedec.storage.serde import from_json

FILE = "domain_experts.safetensors"
# The router's tensors in the file: "router." and their name in the block, and the rows of tokens.
TABLE = "table"
_UNIT = 32
Masks = NDArray[np.bool_]


@dataclass(frozen=True)
class SplitFacts:
    """domains: a name of each; heads, theta: of the router's attention."""

    domains: tuple[str, ...]
    heads: int
    theta: float


@dataclass(frozen=True)
class DomainExperts:
    """selected [layers, domains, neurons]: what each domain keeps, shared neurons too; router: its tensors by name."""

    facts: SplitFacts
    selected: Masks
    router: Mapping[str, Array]


def most_active(activity: NDArray[Any]) -> Masks:
    """activity [..., neurons], mean magnitudes -> whether a neuron is of the larger half; of equals the first.

    activity 1 4 2 3 -> the second and the fourth
    """
    found = np.zeros(activity.shape, bool)
    half = activity.shape[-1] // 2
    np.put_along_axis(found, np.argsort(-activity, axis=-1, kind="stable")[..., :half], True, axis=-1)
    return found


def shared_by_all(selected: Masks) -> Masks:
    """selected [..., domains, neurons] -> the neurons [..., neurons] that every domain keeps."""
    return np.asarray(selected.all(axis=-2))


def own_of_each(selected: Masks) -> Masks:
    """The neurons [..., domains, neurons] of each domain's expert, without the shared ones."""
    return selected & ~shared_by_all(selected)[..., None, :]


def stored_shared(selected: Masks) -> NDArray[np.int64]:
    """The shared neurons of a layer that a bundle stores once: whole blocks of them, and not all neurons of an
    expert."""
    shared = np.flatnonzero(shared_by_all(selected))
    most = int(selected[0].sum()) - _UNIT
    return shared[: min(len(shared), max(most, 0)) // _UNIT * _UNIT]


def split_spec(dense: ModelSpec, experts: DomainExperts) -> ModelSpec:
    """The model with mixtures for feed-forwards, and the block that chooses before its first layer."""
    facts, size = experts.facts, experts.router[TABLE].shape[1]
    heads, dim = facts.heads, size // facts.heads
    router = PreRouter(heads, heads, dim, 1.0, rope=len(dense.ropes), n_experts=len(facts.domains))
    left = iter(experts.selected)
    layers = [tuple(_mixture(b, next(left)) if isinstance(b, Mlp) else b for b in layer) for layer in dense.layers]
    rope = Rope(tuple(facts.theta ** (-np.arange(0, dim, 2) / dim)))
    return replace(dense, layers=((router, *layers[0]), *layers[1:]), ropes=(*dense.ropes, rope))


def _mixture(block: Mlp, selected: Masks) -> Moe:
    shared, n = len(stored_shared(selected)), len(selected)
    sizes: dict[str, Any] = {"inner_size": int(selected[0].sum()) - shared, "shared_size": shared, "gated": block.gated}
    norms = {
        name: getattr(block, name) for name in ("activation", "norm", "post_norm", "after", "branch", "state_scale")
    }
    return Moe(n, 1, router="given", normalize=False, given_by=0, **sizes, **norms)


def check_dense(spec: ModelSpec, where: str) -> None:
    """CheckpointError for a model whose feed-forwards cannot be split."""
    feeds = [block for block in spec.blocks if isinstance(block, Mlp)]
    if not feeds or spec.owners or spec.lookups or not spec.causal or spec.output is not None:
        raise CheckpointError(f"{where}: experts are made of decoders with feed-forwards whose blocks read no other's")
    for block in feeds:
        odd = block.bias or block.inner_norm != "none" or block.activation == "xielu"
        if odd or block.inner_size != feeds[0].inner_size or block.inner_size % _UNIT:
            raise CheckpointError(
                f"{where}: feed-forwards with biases, norms inside or unlike sizes are not split, nor those of "
                f"{block.inner_size} neurons, which is no multiple of {_UNIT}"
            )


def read_experts(folder: Path) -> DomainExperts | None:
    """What lies beside a checkpoint, None if it has no experts."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        found = {name: stored.values(name, 0, stored.shape) for name, stored in read_header(path).items()}
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        facts = from_json(SplitFacts, json.loads(header["__metadata__"]["facts"]), str(path))
        router = {name.removeprefix("router."): value for name, value in found.items() if name.startswith("router.")}
        made = DomainExperts(facts, found["selected"] > 0, router)
        halves = made.selected.sum(axis=-1)
        if made.selected.ndim != 3 or made.selected.shape[1] != len(facts.domains) or len(np.unique(halves)) != 1:
            raise ValueError("neurons of other domains")
    except (KeyError, ValueError, TypeError, BundleCorrupt) as error:
        raise CheckpointError(f"{path}: no experts of domains ({error}); train them again") from None
    return made


def metadata(facts: SplitFacts) -> dict[str, str]:
    """What the file says beside the arrays."""
    return {"format": "pt", "facts": json.dumps(asdict(facts))}


@dataclass(frozen=True)
class ExpertSource(Checkpoint):
    """A checkpoint with its experts: the split model."""

    experts: DomainExperts

    @classmethod
    def of(cls, dense: Checkpoint, experts: DomainExperts) -> ExpertSource:
        """CheckpointError unless the experts are of this checkpoint."""
        spec, where = dense.spec(), str(dense.folder / FILE)
        check_dense(spec, where)
        inner = [block.inner_size for block in spec.blocks if isinstance(block, Mlp)]
        if experts.selected.shape[::2] != (len(inner), inner[0]) or dense.quantization is not None:
            raise CheckpointError(f"{where}: is of a model of other feed-forwards, or this one is quantized")
        found = cls(dense.folder, dense.config, dense.tensors, modules=dense.modules, experts=experts)
        wanted = found.spec().block_tensors(0) | {
            f"blocks.0.{TABLE}": (spec.vocab_size, experts.router[TABLE].shape[1])
        }
        if {f"blocks.0.{name}": value.shape for name, value in experts.router.items()} != wanted:
            raise CheckpointError(f"{where}: has another router than its {len(experts.facts.domains)} domains need")
        return found

    def spec(self, context: int | None = None) -> ModelSpec:
        return split_spec(super().spec(context), self.experts).check(FILE)

    def weights(self, spec: ModelSpec) -> dict[str, Source]:
        dense = super().weights(super().spec(spec.context_length))
        made = {
            f"blocks.{b}.{name}"
            for b, block in enumerate(spec.blocks)
            if isinstance(block, Moe)
            for name in block.matrices(spec.hidden_size)
        }
        made |= {"lookup", *spec.block_tensors(0)}
        return {n: (Part(f"{FILE}:{n}"),) if n in made else dense[_dense_name(n)] for n in spec.tensors()}

    def shape(self, source: Source) -> tuple[int, ...]:
        name = source[0].name.removeprefix(f"{FILE}:")
        return super().shape(source) if name == source[0].name else self.spec().tensors()[name]

    def read(self, source: Source, start: int, stop: int) -> Array:
        name = source[0].name.removeprefix(f"{FILE}:")
        return super().read(source, start, stop) if name == source[0].name else self._made(name)[start:stop]

    def _made(self, name: str) -> Array:
        """A tensor that the dense model does not have."""
        if name == "lookup":
            return self.experts.router[TABLE]
        _, number, part = name.split(".", 2)
        if number == "0":
            return self.experts.router[part]
        block = self.spec().blocks[int(number)]
        assert isinstance(block, Moe)
        selected = self.experts.selected[[isinstance(b, Moe) for b in self.spec().blocks[: int(number)]].count(True)]
        shared = stored_shared(selected)
        groups = [shared]
        if not part.startswith("shared_"):
            groups = [np.setdiff1d(np.flatnonzero(kept), shared) for kept in selected]
        last = part.endswith("down")
        whole = self._dense(f"blocks.{int(number) - 1}.{'down' if last else block.up}")
        if last:
            return np.ascontiguousarray(np.concatenate([whole[:, group] for group in groups]))
        ups = whole.reshape(2 if block.gated else 1, -1, whole.shape[1])
        return np.concatenate([ups[:, group].reshape(-1, whole.shape[1]) for group in groups])

    def _dense(self, name: str) -> Array:
        """A whole tensor of the dense model; the last one is kept, for it is read in pieces."""
        key = Part(f"{FILE}={name}")
        if key not in self._whole:
            source = super().weights(super().spec())[name]
            self._whole.clear()
            self._whole[key] = super().read(source, 0, super().shape(source)[0])
        return self._whole[key]


def _dense_name(name: str) -> str:
    """The name of a tensor in the dense model, whose blocks are one place further down."""
    parts = name.split(".", 2)
    return name if parts[0] != "blocks" else f"blocks.{int(parts[1]) - 1}.{parts[2]}"
