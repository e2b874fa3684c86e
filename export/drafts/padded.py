"""Drafts of a bundle padded to another geometry (`export.padding`): EAGLE-3, at the cost of a draft for a large model.

Its layer gets the sizes of the target's layers, its readout keeps its tokens. Other drafts read the target's state
after its last norm, which in a padded model has the constant that mutes padding ids: they are left out.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DraftFacts, Text, WeightFormat
from edgedec.export.amend import adding
from edgedec.export.drafts.networks import MergeWeights, merge_graph, merge_matrix
from edgedec.export.drafts.stack import write_stack
from edgedec.export.geometry import BLOCK, Padded
from edgedec.export.writer import Add, Contents, Progress, Scales

KINDS = ("eagle3",)


def pad_drafts(large: Padded, folder: Path, weights: WeightFormat, progress: Progress) -> None:
    """Put the drafts of the source of `large` into the padded bundle at `folder`."""
    for kind, facts in large.bundle.manifest.drafts.items():
        if kind in KINDS and set(facts.networks) == {"features"}:
            _pad(large, Bundle.open(folder), kind, facts, weights, progress)


def _pad(
    large: Padded, bundle: Bundle, kind: str, facts: DraftFacts, weights: WeightFormat, progress: Progress
) -> None:
    source = large.bundle.part(facts.stack)
    sizes = replace(large.geometry, n_layers=source.spec.n_layers, vocab_size=source.spec.vocab_size)
    inner = Padded(source, sizes)
    formats = dict.fromkeys(("body", "head", "embed"), weights)
    runtimes = tuple(name for name in bundle.manifest.artifacts if name == "ort")
    prefix = f"draft_{kind}."
    name = f"{bundle.manifest.name}-{kind}"
    contents = Contents(name, inner.spec, Text(None), formats, BLOCK, ("f32",), runtimes=runtimes, prefix=prefix)
    with adding(bundle) as staging:
        for use, file in facts.networks.items():
            (staging.folder / file).write_bytes(_grown(large, facts, use, weights))
        if facts.tokens:
            shutil.copyfile(large.bundle.file(facts.tokens), staging.folder / facts.tokens)
        write_stack(staging.folder, contents, lambda add: _fill(inner, add), progress)
        staging.install(lambda manifest: replace(manifest, drafts={**manifest.drafts, kind: facts}))


def _fill(inner: Padded, add: Add) -> Scales:
    for name in inner.spec.tensors():
        add(name, inner.read(name))
    return {}


def _grown(large: Padded, facts: DraftFacts, use: str, weights: WeightFormat) -> bytes:
    """The network with zeros for the dims that the source does not have."""
    inputs, matrix = merge_matrix(large.bundle.file(facts.networks[use]))
    small, wide = large.source.hidden_size, large.spec.hidden_size
    grown = np.zeros((wide, len(inputs) * wide), np.float32)
    for i in range(len(inputs)):
        grown[:small, i * wide : i * wide + small] = matrix[:, i * small : (i + 1) * small]
    matrices = "int8" if weights in ("int4", "int8") else "f32"
    return merge_graph(MergeWeights(inputs, grown), [wide] * len(inputs), 0.0, "int8" if matrices == "int8" else "f32")
