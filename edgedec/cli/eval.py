"""`edgedec eval`: how well a bundle predicts a text, how far it is from another, and which experts it uses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, progress_bar, size

if TYPE_CHECKING:
    from edgedec import Model

TextFile = Annotated[Path, typer.Argument(metavar="FILE", help="A text file.")]
Limit = Annotated[int, typer.Option(min=0, metavar="TOKENS", show_default=False, help="Read no more than this.")]
Window = Annotated[int, typer.Option(min=0, show_default=False, help="Tokens read together; at most 512 by default.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def evaluate() -> None:
    """Measure a bundle on a text, or beside another bundle.

    \b
    Examples:
      edgedec eval ppl wiki.txt -m ./smol
      edgedec eval ppl wiki.txt -m ./smol --limit 4096 --json
      edgedec eval kl wiki.txt -m ./smol-int3 --to ./smol-f32
      edgedec eval experts wiki.txt -m ./mixtral
    """


@app.command()
def ppl(
    file: TextFile,
    model: o.ModelName = "nano",
    window: Annotated[
        int, typer.Option(min=0, show_default=False, help="Tokens read together; at most 1024 by default.")
    ] = 0,
    stride: Annotated[
        int, typer.Option(min=0, show_default=False, help="Tokens scored by each window; half of it by default.")
    ] = 0,
    limit: Limit = 0,
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    engine: o.Engine = "auto",
    json: o.Json = False,
) -> None:
    """Perplexity per token and bits per byte of a text.

    \b
    Examples:
      edgedec eval ppl wiki.txt -m ./smol
      edgedec eval ppl wiki.txt -m ./smol --window 512 --stride 256
      edgedec eval ppl wiki.txt --limit 4096 --kv int8 --json
    """
    from edgedec.bench.perplexity import perplexity, text_bytes

    text = o.read_text(file)
    opened = o.open_model(model, engine, threads, kv)
    ids = _tokens(opened, text, limit)
    window = window or min(1024, opened.spec.context_length)
    stride = stride or max(window // 2, 1)
    with progress_bar(quiet=json) as show:
        found = perplexity(opened, ids, window, stride, lambda done, total: show("tokens", done, total))
    n_bytes = text_bytes(opened, ids)
    facts = {
        "file": str(file),
        "model": opened.bundle.manifest.name,
        "tokens": found.tokens,
        "bytes": n_bytes,
        "window": window,
        "stride": stride,
        "perplexity": found.value,
        "nll_per_token": found.mean,
        "bits_per_byte": found.bits / n_bytes if n_bytes else None,
    }
    print_json(facts) if json else _show(facts)


@app.command()
def kl(
    file: TextFile,
    to: Annotated[str, typer.Option(metavar="BUNDLE", help="The bundle to compare with, such as one of floats.")],
    model: o.ModelName = "nano",
    window: Window = 0,
    limit: Limit = 0,
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    engine: o.Engine = "auto",
    json: o.Json = False,
) -> None:
    """KL divergence from another bundle on a text, by mean and percentile.

    \b
    Examples:
      edgedec eval kl wiki.txt -m ./smol-int3 --to ./smol-f32
      edgedec eval kl wiki.txt -m ./smol --to ./smol-f32 --window 256 --limit 4096 --json
    """
    from edgedec.bench.divergence import divergence

    text = o.read_text(file)
    opened, reference = (o.open_model(name, engine, threads, kv) for name in (model, to))
    ids = _tokens(opened, text, limit)
    window = window or min(512, opened.spec.context_length, reference.spec.context_length)
    with progress_bar(quiet=json) as show:
        found = divergence(opened.runtime, reference.runtime, ids, window, partial(show, "tokens"))
    names = {"model": opened.bundle.manifest.name, "to": reference.bundle.manifest.name}
    facts = {"file": str(file), **names, "window": window, **found.to_json()}
    if json:
        print_json(facts)
        return
    print(f"KL {found.kl:.4f} nats a token, 99th percentile {found.kl_99:.3f}, {found.top1:.1%} the same top token")
    print(f"perplexity {found.perplexity:.4f} beside {found.reference:.4f} ({found.tokens} tokens, window {window})")


@app.command()
def experts(
    file: TextFile,
    model: o.ModelName = "nano",
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a chunk.")] = 8,
    window: Window = 0,
    limit: Limit = 0,
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    engine: o.Engine = "auto",
    json: o.Json = False,
) -> None:
    """The share of its experts that a token uses, and that a chunk of tokens uses.

    \b
    Examples:
      edgedec eval experts wiki.txt -m ./mixtral
      edgedec eval experts wiki.txt -m ./blockffn --chunk 32 --limit 4096 --json
    """
    from edgedec.bench.expert_use import expert_use

    text = o.read_text(file)
    opened = o.open_model(model, engine, threads, kv)
    ids = _tokens(opened, text, limit)
    window = window or min(512, opened.spec.context_length)
    with progress_bar(quiet=json) as show:
        found = expert_use(opened.runtime, opened.bundle, ids, window, chunk, partial(show, "tokens"))
    if json:
        print_json({"file": str(file), "model": opened.bundle.manifest.name, "window": window, **found.to_json()})
        return
    for block, use in found.blocks.items():
        print(f"block {block}: of {use.experts} experts a token uses {use.token:.1%}, {chunk} tokens {use.chunk:.1%}")
    unused = f"unused by a token {1 - found.token:.1%}, by {chunk} tokens {1 - found.chunk_share:.1%}"
    print(f"{unused} ({found.tokens} tokens, window {window})")
    print(f"bytes of experts: {size(found.token_bytes)} for a token, {size(found.chunk_bytes)} for {chunk} tokens")


def _tokens(model: Model, text: str, limit: int) -> list[int]:
    """The tokens of a text, or the first ones."""
    ids = model.tokenizer.encode(text)
    return ids[:limit] if limit else ids


def _show(facts: dict[str, Any]) -> None:
    per_byte = "" if facts["bits_per_byte"] is None else f", {facts['bits_per_byte']:.4f} bits per byte"
    how = f"{facts['tokens']} tokens, window {facts['window']}, stride {facts['stride']}"
    print(f"perplexity {facts['perplexity']:.4f} per token{per_byte} ({how})")
