"""`edgedec import`: an ONNX decoder that another program exported becomes a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, progress_bar, size

app = typer.Typer(add_completion=False, rich_markup_mode=None)
# Beyond this, the graph's cache is no rounding of its whole text.
_ROUNDING = 1e-3


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `optimum-cli export onnx` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="BUNDLE", help="The bundle folder to make.")],
    file: Annotated[
        str | None, typer.Option("--file", metavar="NAME", show_default=False, help="Which graph, if it has several.")
    ] = None,
    ctx_size: Annotated[
        int, typer.Option("--ctx-size", "-c", min=0, show_default=False, help="Shorten the context to this.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    name: Annotated[
        str | None, typer.Option(show_default=False, help="The bundle's name; that of its folder by default.")
    ] = None,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Make a bundle from an ONNX decoder that optimum exported.

    \b
    Examples:
      edgedec import gpt2-onnx -o gpt2
      edgedec import ./Qwen2.5-0.5B-Instruct -o qwen --file onnx/model_q4.onnx
    """
    module = export_module("decoder_graph", "import")
    options = module.ImportOptions(file=file, context=ctx_size or None, name=name, force=force, threads=threads)
    with progress_bar(quiet=json) as show:
        found = module.import_graph(folder, out, options, show)
    show_imported(found, json)


def show_imported(found: Any, json: bool) -> None:
    """Print what was imported."""
    manifest = found.bundle.manifest
    total = sum(file.size for file in manifest.files.values())
    if json:
        spec = {"architecture": manifest.spec.architecture, "layers": manifest.spec.n_layers}
        facts = {"name": manifest.name, "path": str(found.bundle.path), "digest": found.bundle.digest, "bytes": total}
        beside = {"cache_difference": found.off, "parity": found.checked.apart, "parity_with": found.checked.by or None}
        print_json(facts | spec | {"context": manifest.spec.context_length} | beside)
        return
    print(f"{found.bundle.path}: {manifest.spec.architecture}, {manifest.spec.n_layers} layers, {size(total)}")
    verdict = "rounding" if found.off <= _ROUNDING else "more than rounding: its arithmetic depends on the call's size"
    if found.checked.apart is not None:
        print(f"logits differ from those of {found.checked.by} by {found.checked.apart:.1e} of their spread")
    else:
        print("compared with the graph's own logits only: nothing else here computes the checkpoint's")
    print(f"one call and token by token differ by {found.off:.1e} of the logits' spread: {verdict}")
