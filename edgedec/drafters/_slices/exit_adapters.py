"""Adapters between the state after an early layer and the target's head: none, a trained network of the bundle
(`models/heads/exit.py`), or velocity adapters that read the states after every layer up to there (M2R2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgedec.drafters import DrafterContext
from edgedec.drafters._networks.graphs import open_network
from edgedec.drafters._networks.heads import HeadInterface, open_head
from edgedec.errors import UsageError
from edgedec.runtime import Hidden
from edgedec.runtime.checks import check_one_stream

HEAD = HeadInterface("exit", inputs=("hidden",), outputs=("hidden_out",))
VELOCITY = "m2r2"


@dataclass(frozen=True)
class ExitAdapter:
    """run: states [n, hidden_size] after each of `blocks` -> what the head reads [n, hidden_size]."""

    blocks: tuple[int, ...]
    run: Callable[..., Hidden]

    def of(self, states: Mapping[int, Hidden], last: int) -> Hidden:
        """Of the last so many rows."""
        return self.run(*(np.ascontiguousarray(states[block][-last:]) for block in self.blocks))


def adapted_layers(host: DrafterContext, choice: str) -> dict[int, str]:
    """The layers after which the bundle has an adapter, and its kind: the chosen kind, for "" the best available. Empty
    if it has none; UsageError for an unknown kind."""
    manifest, found = host.bundle.manifest, dict[int, str]()
    if choice in ("", "exit") and (head := manifest.heads.get(HEAD.kind)):
        found[head.layer] = "exit"
    if choice in ("", "m2r2") and (facts := manifest.drafts.get(VELOCITY)):
        found[len(facts.features)] = "m2r2"
    if choice in ("exit", "m2r2") and not found:
        path, how = host.bundle.path, f"edgedec train-heads {host.bundle.path} TEXTS --kind {choice}"
        raise UsageError(f"{path}: the bundle has no {choice} adapter; train one with `{how}`")
    return found


def open_adapter(host: DrafterContext, layer: int, kind: str | None) -> ExitAdapter | None:
    """The adapter of this kind after so many layers."""
    if kind is not None:
        check_one_stream(host.runtime.spec, (host.runtime.spec.span(0, layer).stop - 1,), f"adapter {kind}")
    if kind == "exit":
        head = open_head(host.bundle, HEAD)
        return ExitAdapter((host.runtime.spec.span(0, layer).stop - 1,), lambda hidden: head.run(hidden)[0])
    if kind == "m2r2":
        facts = host.bundle.manifest.drafts[VELOCITY]
        network = open_network(host.bundle, facts.networks["velocity"], host.runtime.capabilities.threads)
        return ExitAdapter(facts.features, lambda *states: network.run(*states)[0])
    return None
