"""`edgedec targets`: what bundles can be run by, and what of it is here."""

from __future__ import annotations

import typer

from edgedec.cli import options as o
from edgedec.cli._output import print_json, print_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_TRIED = {"native": "yes", "emulated": "emulated", "compiled": "compiled, never run", "no": "no"}


@app.command()
def targets(json: o.Json = False) -> None:
    """List what bundles can be run by, and what of it is here.

    \b
    Examples:
      edgedec targets
      edgedec targets --json
    """
    from edgedec.targets import all_targets

    found = [(target, target.missing()) for target in all_targets()]
    if json:
        print_json(
            [
                {
                    "name": target.name,
                    "engine": target.engine or None,
                    "about": target.about,
                    "kinds": list(target.kinds),
                    "kv": list(target.kv),
                    "trees": target.trees,
                    "add": target.add,
                    "needs": target.needs or None,
                    "tried": target.tried,
                    "missing": missing,
                }
                for target, missing in found
            ]
        )
        return
    rows = [(t.name, t.engine or "-", _TRIED[t.tried], missing or "here", t.about) for t, missing in found]
    print_table(rows, ("target", "--engine", "tried", "here", "what it is"))
    print("\nFiles for a target are added with `edgedec add TARGET BUNDLE`, or made by `edgedec export --for TARGET`.")
