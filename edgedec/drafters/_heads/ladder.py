"""Heads on the target's last state, one for each depth: published Medusa and Hydra heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.states import LastNorm
from edgedec.drafters._networks.graphs import Network, open_network
from edgedec.runtime import Hidden


class Ladder:
    """The networks of a draft, in order of depth."""

    def __init__(self, host: DrafterContext, facts: DraftFacts) -> None:
        threads, self.depth = host.runtime.capabilities.threads, facts.depth
        self.networks: list[Network] = [
            open_network(host.bundle, facts.networks[f"depth_{i}"], threads) for i in range(1, facts.depth + 1)
        ]
        self.norm = LastNorm(host.bundle) if facts.normed else None

    def stacked(self, state: Hidden) -> list[Any]:
        """Of a state [1, hidden_size] as the target has it: ids and logprobs [1, depth, top], heads independent."""
        x = state if self.norm is None else self.norm(state)
        found = [network.run(x) for network in self.networks]
        top = min(ids.shape[1] for ids, _ in found)
        return [np.stack([part[i][:, :top] for part in found], axis=1) for i in range(2)]
