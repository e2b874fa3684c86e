"""`edgedec targets`: what bundles can be run by, and what of it is here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table

if TYPE_CHECKING:
    from edgedec.targets import Target

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
                    "unmade": target.unmade(),
                }
                for target, missing in found
            ]
        )
        return
    rows = [(t.name, t.engine or "-", _TRIED[t.tried], t.about, _plain(t.needs)) for t, _ in found]
    print_table(rows, ("target", "--engine", "tried", "what it is", "needs"))
    print_table([(t.name, _here(t, missing)) for t, missing in found], ("target", "here"), "What of it is here")
    print("\nFiles for a target are added with `edgedec add TARGET BUNDLE`, or made by `edgedec export --for TARGET`.")


def _here(target: Target, missing: str | None) -> str:
    """The reason why it cannot run here, or why its files cannot be created."""
    unmade = target.unmade()
    return (missing or "here") + (f"; cannot be made here: {unmade}" if unmade else "")


def _plain(needs: str) -> str:
    """Without the links of the page.

    >>> _plain("a package: [devices](devices.md)")
    'a package: docs/devices.md'
    """
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", r"docs/\1", needs)
