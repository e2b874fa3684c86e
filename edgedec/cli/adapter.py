"""`edgedec adapter`: make an adapter file of a PEFT LoRA checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def adapter(
    checkpoint: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a PEFT LoRA checkpoint.")],
    model: o.ModelName = "nano",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; PATH.lora by default.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Make an adapter file of a PEFT LoRA checkpoint.

    For a bundle of the model that it was trained on.

    \b
    Examples:
      edgedec adapter ./my-lora -m smol -o my.lora
      edgedec adapter ./my-lora -m smol --json
    """
    from edgedec.bundle import Bundle
    from edgedec.bundle.adapter import open_adapter, save_adapter
    from edgedec.bundle.locate import find

    read_peft = export_module("adapter", "adapter").read_peft
    bundle = Bundle.open(find(model))
    bundle.require_decoder()
    out = out or checkpoint.with_name(f"{checkpoint.name}.lora")
    save_adapter(out, checkpoint.name, bundle.spec, read_peft(checkpoint, bundle))
    made = open_adapter(out, bundle.spec)
    if json:
        print_json({"file": str(out), "matrices": len(made.matrices), "rank": made.rank, "sha256": made.digest})
    else:
        typer.echo(f"{out}: {len(made.matrices)} matrices, rank {made.rank}")
