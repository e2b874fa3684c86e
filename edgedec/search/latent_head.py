"""The latent head of a model, opened: the law of the next row of a chain of thought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.bundle.latent_head import INPUTS, OUTPUTS, LatentFacts, facts_of
from edgedec.bundle.manifest import LATENT_HEAD
from edgedec.drafters._networks.graphs import Network, open_network
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.opened import OpenedModel
from edgedec.runtime import Hidden


@dataclass(frozen=True)
class LatentHead:
    """block: after which the states that it reads are; separator: the token."""

    network: Network
    facts: LatentFacts
    block: int
    separator: int

    def draw(self, state: Hidden, spread: float, rng: np.random.Generator) -> Hidden:
        """A row [1, hidden_size] after a state [1, hidden_size]. spread: of its standard deviations."""
        mean, deviation = self.network.run(np.ascontiguousarray(state, np.float32))
        found: Hidden = (mean + spread * deviation * rng.standard_normal(mean.shape)).astype(np.float32)
        return found


def open_latent_head(model: OpenedModel | None, what: str) -> LatentHead:
    """The model's latent head; UsageError with a remedy if it has none. what: names the search in errors."""
    if model is None or LATENT_HEAD not in model.bundle.manifest.files:
        place = "" if model is None else f"{model.bundle.path}: "
        raise UsageError(f"{what}: {place}the bundle has no latent head; make one with `edgedec train-latent`")
    bundle, hidden = model.bundle, model.spec.hidden_size
    network = open_network(bundle, LATENT_HEAD, model.runtime.capabilities.threads)
    where = str(bundle.path / LATENT_HEAD)
    facts = facts_of(network.metadata, where)
    if tuple(network.inputs) != INPUTS or len(network.outputs) != len(OUTPUTS) or network.widths != [hidden]:
        raise BundleCorrupt(f"{where}: reads {network.widths}, the model has states of {hidden}")
    separator = model.tokenizer.encode(facts.separator, around=False)
    if len(separator) != 1:
        raise BundleCorrupt(f"{where}: its separator {facts.separator!r} is not one token of the bundle's tokenizer")
    return LatentHead(network, facts, model.spec.n_blocks - 1, separator[0])
