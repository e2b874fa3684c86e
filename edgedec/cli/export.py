"""`edgedec export`: a checkpoint becomes a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module, names
from edgedec.cli._output import print_json, print_table, progress_bar, size
from edgedec.errors import UnknownArchitecture, UsageError

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle


class Via(StrEnum):
    """Another program that exports the model, to ONNX."""

    optimum = "optimum"


class Machine(StrEnum):
    """The machine whose layout quantized matrices are stored in."""

    portable = "portable"
    cpu = "cpu"


class Quality(StrEnum):
    """A choice of passes."""

    fast = "fast"
    good = "good"
    best = "best"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class FormatFlags:
    """How the model is stored, and for which runtimes."""

    weights: Annotated[
        o.Weights | None,
        typer.Option(
            show_default=False, help="Format of the layers' matrices; int4, or what loses least of a quantized one."
        ),
    ] = None
    head: Annotated[o.Weights | None, typer.Option(help="Format of the head; --weights by default.")] = None
    embed: Annotated[o.Weights | None, typer.Option(help="Format of the embedding; the head's by default.")] = None
    block: Annotated[
        str | None,
        typer.Option(
            metavar="32|64|128|row",
            show_default=False,
            help="Weights that share a scale; row: all of one, int8 only. 32; row for text encoders.",
        ),
    ] = None
    kv: Annotated[
        str, typer.Option(metavar="FORMATS", help="Cache formats, comma-separated: f32, f16, int8, int4.")
    ] = "f32"
    target: Annotated[
        Machine, typer.Option(help="cpu: weights packed for the native engine; portable: plain rows.")
    ] = Machine.cpu
    ctx_size: Annotated[
        int, typer.Option("--ctx-size", "-c", min=0, show_default=False, help="Shorten the context to this.")
    ] = 0
    runtimes: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="RUNTIMES",
            show_default=False,
            help="Runtimes to write files for; all that can run the model.",
        ),
    ] = ""

    def options(self) -> dict[str, Any]:
        """As fields of `ExportOptions`."""
        return {
            "weights": self.weights and self.weights.value,
            "head": self.head and self.head.value,
            "embed": self.embed and self.embed.value,
            "block": self._block(),
            "kv": names(self.kv),
            "target": self.target.value,
            "context": self.ctx_size or None,
            "runtimes": names(self.runtimes) if self.runtimes else None,
        }

    def _block(self) -> int | None:
        sizes = {"32": 32, "64": 64, "128": 128, "row": 0}
        if self.block is None:
            return None
        if self.block not in sizes:
            raise UsageError(f"--block {self.block}: must be {', '.join(sizes)}")
        return sizes[self.block]


@dataclass(frozen=True)
class PassFlags:
    """What is done to the weights before they are stored."""

    passes: Annotated[
        str,
        typer.Option(
            metavar="NAME:OPTION=VALUE+…", show_default=False, help="Passes over the weights: edgedec plugins passes."
        ),
    ] = ""
    quality: Annotated[
        Quality,
        typer.Option(help="A choice of passes: nearest rounding (fast), GPTQ (good), AWQ and more GPTQ (best)."),
    ] = Quality.fast
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            "--calibration",
            metavar="FILE|own",
            show_default=False,
            help="Text for passes (by default the model's own) and to scale int8 and int4 caches by.",
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """As fields of `ExportOptions`."""
        return {"passes": self.passes, "quality": self.quality.value, "calibrate": self.calibrate}


@dataclass(frozen=True)
class DraftFlags:
    """What is put in beside the model, or taken out of it."""

    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", show_default=False, help="A draft checkpoint to put in; may be repeated."),
    ] = None
    kv_heads: Annotated[
        str,
        typer.Option(
            metavar="N|P%",
            show_default=False,
            help="Fewer key and value heads, by low rank: N in each layer, or a share of all (changes the model).",
        ),
    ] = ""
    recover: Annotated[
        float,
        typer.Option(
            min=0, metavar="MINUTES", show_default=False, help="Train so long after --kv-heads, on --calibrate's text."
        ),
    ] = 0.0
    draft_weights: Annotated[
        o.Weights | None,
        typer.Option(show_default=False, help="Format of a draft's matrices; the model's by default."),
    ] = None

    def options(self) -> dict[str, Any]:
        """As fields of `ExportOptions`."""
        weights = self.draft_weights and self.draft_weights.value
        own = {"kv_heads": _heads(self.kv_heads), "recover": self.recover, "draft_weights": weights}
        return {"drafts": tuple(self.draft or ())} | own


def _heads(text: str) -> int | float:
    """ "2" heads of each layer, or "50%" of all."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else int(text or 0)
    except ValueError:
        raise typer.BadParameter(f"--kv-heads {text}: give a number, or a share as 50%") from None


@app.command()
@o.grouped
def export(
    *,
    ctx: typer.Context,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder, GGUF file, or a hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="BUNDLE", help="The bundle folder to make.")],
    formats: FormatFlags,
    passes: PassFlags,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not compare with the checkpoint.")] = False,
    drafts: DraftFlags,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    name: Annotated[
        str | None, typer.Option(show_default=False, help="The bundle's name; that of its folder by default.")
    ] = None,
    via: Annotated[
        Via | None, typer.Option(show_default=False, help="optimum: any architecture it knows, as an ONNX graph.")
    ] = None,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Make a bundle from a checkpoint.

    A bundle is the folder that the other commands take: quantized weights, the tokenizer and a manifest. Of the
    checkpoint config.json, safetensors and the tokenizer are read; a hub id is downloaded first.

    \b
    Examples:
      edgedec export ./SmolLM2-135M-Instruct -o smol
      edgedec export Qwen/Qwen3-0.6B -o qwen --head int8 --kv f16,int8 --passes awq+gptq --calibrate notes.txt
      edgedec export SmolLM2-135M-Instruct-Q4_0.gguf -o smol
      edgedec export ./Llama-3.1-8B-Instruct -o llama --draft ./EAGLE3-LLaMA3.1-Instruct-8B
    """
    if via is not None:
        _via_optimum(ctx, checkpoint, out, json)
        return
    exporter = export_module("exporter", "export")
    settings = {"check": not no_check, "force": force, "name": name, "threads": threads}
    chosen = exporter.ExportOptions(**formats.options(), **passes.options(), **drafts.options(), **settings)
    began = perf_counter()
    with progress_bar(quiet=json) as show:
        try:
            bundle: Bundle = exporter.export(checkpoint, out, chosen, show)
        except UnknownArchitecture as error:
            if not error.decoder:
                raise
            way = f"edgedec export {checkpoint} --via optimum -o {out}"
            raise UnknownArchitecture(f"{error}; `{way}` may run it through ONNX Runtime") from None
    show_made(bundle, perf_counter() - began, json)


def _via_optimum(ctx: typer.Context, checkpoint: str, out: Path, json: bool) -> None:
    """Export through optimum; flags that the graph of another program has no place for are refused."""
    from edgedec.cli.import_ import show_imported

    formats = ("weights", "head", "embed", "block", "kv", "target", "calibrate", "runtimes")
    for name in (*formats, "draft", "kv_heads", "recover", "passes"):
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "for" if name == "runtimes" else name.replace("_", "-")
            raise typer.BadParameter(f"--{flag}: not with --via optimum, which keeps the graph as it is")
    given, imports = ctx.params, export_module("decoder_graph", "export --via optimum")
    options = imports.ImportOptions(
        context=given["ctx_size"] or None, name=given["name"], force=given["force"], threads=given["threads"]
    )
    module = export_module("via_optimum", "export --via optimum")
    with progress_bar(quiet=json) as show:
        found = module.export_via_optimum(checkpoint, out, options, show)
    show_imported(found, json)


def show_made(bundle: Bundle, seconds: float, json: bool) -> None:
    from edgedec.bench.timing import peak_memory
    from edgedec.cli.inspect import PARITY_HEADER, describe, integers_kept, parity_rows, passes_run

    peak = peak_memory()
    report = describe(bundle) | {"seconds": round(seconds, 2), "peak_bytes": peak}
    if json:
        keys = ("name", "path", "digest", "bytes", "bits_per_weight", "parts", "kv", "parity", "seconds", "peak_bytes")
        print_json({key: report[key] for key in (*keys, "source")})
        return
    cost = f"{seconds:.1f} s and at most {size(peak)} of memory"
    print(f"{bundle.path}: {size(report['bytes'])}, {report['bits_per_weight']:.2f} bits a weight, made in {cost}")
    if bundle.manifest.source.get("method"):
        print(integers_kept(bundle.manifest.source))
    if bundle.manifest.source.get("passes"):
        print(passes_run(bundle.manifest.source))
    if report["parity"]:
        print_table(parity_rows(report["parity"]), PARITY_HEADER)
