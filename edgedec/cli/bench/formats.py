"""Stored bits, quality and speed of a model in several weight formats."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, print_table, progress_bar

if TYPE_CHECKING:
    from edgedec.bench.formats import FormatResult
    from edgedec.bundle.folder import Bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)
TYPES = ["int8", "int4", "int4=gptq", "int3", "int3=gptq", "int2", "int2=gptq"]
FLOATS = "f32"


@app.command()
def formats(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint or bundle, as of `export`.")],
    text: Annotated[list[Path], typer.Option("--text", metavar="FILE", help="A text to measure on; may be repeated.")],
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="WEIGHTS=PASSES",
            show_default=False,
            help="A format of the layers' matrices, and passes (default: 8 to 2 bits, with GPTQ and without); or a "
            "type of llama.cpp: Q3_K, Q3_K=imatrix.",
        ),
    ] = None,
    head: Annotated[o.Weights | None, typer.Option(help="Format of head and embedding; as the matrices.")] = None,
    block: Annotated[int, typer.Option(metavar="32|64|128", help="Weights that share a scale.")] = 32,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Text for passes; by default the model's own."),
    ] = None,
    limit: Annotated[int, typer.Option(min=2, metavar="TOKENS", help="Read no more than this of each text.")] = 4096,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Measure what weight formats and passes cost in quality.

    The model is exported in each format and compared with its floats: KL divergence (mean and 99th percentile), equal
    likeliest tokens, perplexity, tokens a second. A text that was calibrated on is refused. Types of llama.cpp are
    rounded by its own library and run as floats, so their speed is not shown.

    \b
    Examples:
      edgedec bench formats ./SmolLM2-135M --text wiki.txt --text code.txt
      edgedec bench formats nano --text stories.txt --type int4 --type int4=awq+gptq --calibrate other.txt
      edgedec bench formats nano --text stories.txt --head int8 --type int3=gptq --type Q3_K --calibrate other.txt
    """
    from edgedec.bench.formats import compared
    from edgedec.runtime import RuntimeOptions, choose_runtime, open_runtime

    check_texts(text, calibrate)
    texts = {path.name: o.read_text(path) for path in text}
    ends = None if head is None else head.value
    settings = {"head": ends, "embed": ends, "block": block, "calibrate": calibrate}
    with TemporaryDirectory(prefix="edgedec-formats-") as folder, progress_bar(quiet=json) as show:
        bundles = {name: _made(checkpoint, name, Path(folder), settings, show) for name in [FLOATS, *(types or TYPES)]}
        runtimes = {
            name: open_runtime(choose_runtime(bundle), bundle, RuntimeOptions(threads=threads))
            for name, bundle in bundles.items()
        }
        window = min(512, bundles[FLOATS].spec.context_length)
        bits = {name: of for name in types or () if (of := _peer_bits(bundles[FLOATS], name, ends))}
        found = compared(bundles, runtimes, texts, limit, window, bits, partial(show, "formats"))
    report = {"model": checkpoint, "limit": limit, "window": window, "formats": [row.to_json() for row in found]}
    print_json(report) if json else _show(found)


def check_texts(texts: list[Path], calibrate: Path | None) -> None:
    """Refuse texts that the passes have read, and two of one name."""
    if len({path.name for path in texts}) < len(texts):
        raise typer.BadParameter("--text: two files of one name; rename one")
    if calibrate is None or not calibrate.is_file():
        return
    read = hashlib.sha256(calibrate.read_bytes()).digest()
    for path in texts:
        if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == read:
            raise typer.BadParameter(f"--text {path}: is the calibration text, which says nothing of other texts")


def _made(checkpoint: str, name: str, folder: Path, settings: dict[str, Any], show: Any) -> Bundle:
    """The model in one format."""
    from edgedec.bundle.locate import BUNDLED, find

    weights, _, passes = name.partition("=")
    exporter = export_module("exporter", "bench formats")
    source = str(find(checkpoint)) if checkpoint in BUNDLED else checkpoint
    chosen = settings if name != FLOATS else {}
    if is_peer(weights):
        chosen = {"calibrate": settings["calibrate"]}
        weights, passes = FLOATS, peer_pass(weights, passes, settings["head"])
    options = exporter.ExportOptions(weights=weights, passes=passes, check=False, runtimes=(), **chosen)
    made: Bundle = exporter.export(source, folder / name.replace("=", "-").replace(":", "-"), options, show)
    return made


def is_peer(weights: str) -> bool:
    """Whether it names a type of llama.cpp and not a format of bundles."""
    return weights[:1].isupper()


def peer_pass(weights: str, passes: str, head: str | None) -> str:
    """The pass that makes floats of what a type of llama.cpp keeps.

    >>> peer_pass("Q3_K", "imatrix", "int8")
    'ggml:matrices=Q3_K,ends=Q8_0,imatrix=true'
    """
    if passes not in ("", "imatrix"):
        raise typer.BadParameter(f"--type {weights}={passes}: a type of llama.cpp takes no passes but imatrix")
    weighed = ",imatrix=true" if passes else ""
    return f"ggml:matrices={weights}{_peer_head(head)}{weighed}"


def _peer_head(head: str | None) -> str:
    return {"int8": ",ends=Q8_0", "int4": ",ends=Q4_0"}.get(head or "", "")


def _peer_bits(floats: Bundle, name: str, head: str | None) -> float | None:
    """What a type of llama.cpp, or a pass that makes floats to measure, stores in bits a weight; None for a format of
    bundles."""
    weights, _, passes = name.partition("=")
    found: float | None = None
    if is_peer(weights):
        found = export_module("passes.ggml", "bench formats").stored_bits(
            floats.spec, weights, _peer_head(head).removeprefix(",ends=")
        )
    elif passes.partition(":")[0] == "ptq161":
        ends = int(head[3:]) + 0.5 if head and head.startswith("int") else 16.0 if head == "f16" else 32.0
        found = export_module("passes.ptq161", "bench formats").stored_bits(floats.spec, ends)
    return found


def _show(found: list[FormatResult]) -> None:
    for text in found[0].texts:
        rows = []
        for row in found:
            on = row.texts[text]
            figures = f"{on.perplexity:.3f}", f"{on.kl:.4f}", f"{on.kl_99:.3f}", f"{on.top1:.1%}"
            speed = "" if row.tokens_per_s is None else f"{row.tokens_per_s:.0f}"
            rows.append((row.name, f"{row.bits:.2f}", *figures, speed))
        header = ("weights", "bits", "perplexity", "KL", "KL 99%", "same top token", "tokens/s")
        print_table(rows, header, f"{text}, {found[0].texts[text].tokens} tokens")
