"""Speed of text encoders, beside other engines."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import parse_rows
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_PEERS = "ort, reference, onnx:FILE (a graph of the hub), llama.cpp:FILE.gguf, transformers:CHECKPOINT."


@app.command()
def embed(
    *,
    model: Encoder,
    tokens: Annotated[str, typer.Option(metavar="N,N,…", help="Tokens of a text.")] = "16,128",
    texts: Annotated[str, typer.Option(metavar="N,N,…", help="Texts at a time.")] = "1,64",
    mixed: Annotated[bool, typer.Option("--mixed", help="Texts of a quarter of the tokens to all of them.")] = False,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Turns that are counted.")] = 5,
    engine: o.Engine = "auto",
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="ENGINE", show_default=False, help=_PEERS),
    ] = None,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Measure a text encoder beside other engines, in turns in one process.

    \b
    Examples:
      edgedec bench embed -m ./minilm --peer ort -t 2
      edgedec bench embed -m ./minilm --peer transformers:./all-MiniLM-L6-v2 --tokens 16,512 --mixed
      edgedec bench embed -m ./minilm --peer onnx:model_quantized.onnx --peer llama.cpp:minilm-q8_0.gguf
    """
    from dataclasses import asdict

    from edgedec.bench.embedding import EmbedShape, measure, of_bundle
    from edgedec.bench.encoder_peers import of_llama_cpp, of_onnx
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.runtime.registry import available_cores

    bundle, used = Bundle.open(find(model)), threads or available_cores()
    if bundle.output is None:
        raise UsageError(f"{bundle.manifest.name}: generates text; edgedec bench measures it")
    engines = [of_bundle(bundle, engine, used)]
    for name in peer or []:
        kind, _, place = name.partition(":")
        if kind == "transformers":
            engines.append(export_module("encoder_peer", "--peer transformers").of_transformers(place, used))
        elif place and kind in ("onnx", "llama.cpp"):
            engines.append((of_onnx if kind == "onnx" else of_llama_cpp)(place, used))
        else:
            engines.append(of_bundle(bundle, name, used))
    lengths = [n for n in parse_rows(tokens, "--tokens") if n <= bundle.spec.context_length]
    shapes = [EmbedShape(count, length, mixed) for length in lengths for count in parse_rows(texts, "--texts")]
    with progress_bar(quiet=json) as show:
        found = measure(engines, shapes, bundle.spec.vocab_size, repetitions, lambda d, t: show("texts", d, t))
    if json:
        print_json([{**asdict(one), "speed": one.speed} for one in found])
        return
    rows = [
        (name, shape.texts, shape.tokens, f"{one.seconds * 1e3:.2f}", f"{one.speed:,.0f}", f"{one.ratio:.2f}")
        for one in found
        for name, shape in [(one.engine, one.shape)]
    ]
    print_table(rows, ("engine", "texts", "tokens", "ms", "tokens/s", "time / first"), f"{used} threads")
