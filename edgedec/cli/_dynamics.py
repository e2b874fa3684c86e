"""The token dynamics of a bundle's Mamba-1 layers, for `edgedec inspect --dynamics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgedec.cli._output import print_table
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

HEADER = ("layer", "block", "apart", "together", "regime")


def dynamics_of(bundle: Bundle) -> list[dict[str, Any]]:
    """Of each layer with such a block: directions that drive tokens apart and together."""
    from edgedec.bench.token_dynamics import of_bundle

    found = of_bundle(bundle)
    if not found:
        raise UsageError(f"--dynamics: {bundle.manifest.name} has no blocks of Mamba-1 (kind s6)")
    layers = bundle.spec.layer_of
    return [{"layer": layers(b), "block": b, **at._asdict(), "regime": at.regime} for b, at in found.items()]


def show_dynamics(rows: list[dict[str, Any]]) -> None:
    cells = [tuple(str(row[name]) for name in HEADER) for row in rows]
    print_table(cells, HEADER, "Token dynamics (eigenvalues of S_C^T S_B above and below zero)")
