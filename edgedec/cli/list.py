"""`edgedec list`: the bundles in the cache folder."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, size

if TYPE_CHECKING:
    from edgedec.bundle.cached import CachedBundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("list")
def list_(json: o.Json = False) -> None:
    """List the models that were pulled or converted.

    \b
    Examples:
      edgedec list
      edgedec list --json
    """
    from edgedec.bundle.cached import cached
    from edgedec.storage.files import cache_folder

    found = cached()
    if json:
        print_json([described(bundle) for bundle in found])
    elif found:
        print_table([_row(described(bundle)) for bundle in found], HEADER)
    else:
        print(f"none in {cache_folder()}; `edgedec pull ORG/NAME` makes one")


HEADER = ("name", "size", "made", "bits", "passes", "KL")


def described(bundle: CachedBundle) -> dict[str, Any]:
    """A bundle as plain data. kl: to the checkpoint's floats, nats a token; what its manifest does not say, or one that
    cannot be read, is None."""
    from edgedec.bench.report import bits_per_weight
    from edgedec.bundle.folder import Bundle
    from edgedec.errors import EdgedecError

    facts = {"name": bundle.name, "path": str(bundle.path), "bytes": bundle.bytes, "made": round(bundle.made)}
    try:
        manifest = Bundle.open(bundle.path).manifest
    except EdgedecError:
        return {**facts, "bits_per_weight": None, "passes": None, "kl": None}
    bits, parity = bits_per_weight(manifest.tensors.values()), manifest.parity
    kl = parity and parity.kl[manifest.kv_formats[0]]
    return {**facts, "bits_per_weight": bits or None, "passes": manifest.source.get("passes"), "kl": kl}


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    bits, kl = facts["bits_per_weight"], facts["kl"]
    made = datetime.fromtimestamp(facts["made"]).strftime("%Y-%m-%d %H:%M")
    shown = "" if bits is None else f"{bits:.2f}", facts["passes"] or "", "" if kl is None else f"{kl:.4f}"
    return (facts["name"], size(facts["bytes"]), made, *shown)
