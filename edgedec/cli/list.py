"""`edgedec list`: the bundles in the cache folder."""

from __future__ import annotations

from datetime import datetime

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, size

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
        print_json([{"name": b.name, "path": str(b.path), "bytes": b.bytes, "made": round(b.made)} for b in found])
    elif found:
        rows = [(b.name, size(b.bytes), datetime.fromtimestamp(b.made).strftime("%Y-%m-%d %H:%M")) for b in found]
        print_table(rows, ("name", "size", "made"))
    else:
        print(f"none in {cache_folder()}; `edgedec pull ORG/NAME` makes one")
