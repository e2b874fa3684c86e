"""What all sessions of a model share of a draft head: its layers, networks, norms and token map, opened once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DraftFacts
from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.guesses import Tokens, tokens_of
from edgedec.drafters._heads.states import LastNorm
from edgedec.drafters._models.opening import draft_runtime
from edgedec.drafters._networks.graphs import Network, open_network
from edgedec.drafters._networks.shared import OfRuntime
from edgedec.runtime import Runtime
from edgedec.spec.macs import row_macs


@dataclass(frozen=True, eq=False)
class OpenedHead:
    """bundle, runtime: its layers, on the target's kind of engine; networks: by use; target_norm, own_norm: the last
    norms that states pass (None: they do not); tokens: the target's token of each of its own (None: the same); macs:
    multiply-adds of a row over those of a row of the target."""

    bundle: Bundle
    runtime: Runtime
    networks: Mapping[str, Network]
    target_norm: LastNorm | None
    own_norm: LastNorm | None
    tokens: Tokens | None
    macs: float


_heads: OfRuntime[OpenedHead] = OfRuntime()


def open_head(host: DrafterContext, facts: DraftFacts) -> OpenedHead:
    """The head with this description in the host's bundle; its sessions share one while the target's runtime lives."""
    key = str(host.bundle.path), host.bundle.digest, facts.stack
    return _heads.get(host.runtime, key, lambda: _opened(host, facts))


def _opened(host: DrafterContext, facts: DraftFacts) -> OpenedHead:
    bundle, threads = host.bundle.part(facts.stack), host.runtime.capabilities.threads
    runtime = draft_runtime(host, bundle)
    return OpenedHead(
        bundle,
        runtime,
        networks={use: open_network(host.bundle, file, threads) for use, file in facts.networks.items()},
        target_norm=LastNorm(host.bundle) if facts.normed else None,
        own_norm=LastNorm(bundle) if facts.feeds == "normed" else None,
        tokens=tokens_of(host, facts.tokens),
        macs=row_macs(bundle.spec) / max(row_macs(host.runtime.spec), 1),
    )
