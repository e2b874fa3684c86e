"""`edgedec rm`: bundles out of the cache folder."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli._exporting import export_module
from edgedec.cli._output import size

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names as `edgedec list` shows them.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Also what was downloaded, from the cache of the Hub's clients.")
    ] = False,
) -> None:
    """Delete bundles from the cache folder.

    \b
    Examples:
      edgedec rm HuggingFaceTB/SmolLM2-135M-Instruct
      edgedec rm hf:Qwen/Qwen3-0.6B --checkpoint
    """
    from edgedec.bundle.cached import HubName, remove

    for name in names:
        gone = remove(name)
        print(f"{gone.name}: removed, {size(gone.bytes)}")
        if checkpoint and gone.name.startswith("hf:"):
            freed = export_module("hub", "rm --checkpoint").forget(HubName.parse(gone.name))
            print(f"{gone.name}: its checkpoint too, {size(freed)}")
