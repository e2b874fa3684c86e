"""`edgedec calibrate`: what the heads of a model look at, measured once and kept in its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import changeable, export_module
from edgedec.cli._output import print_json, progress_bar

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def calibrate(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder.")],
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text file, long and like what will be read.")],
    length: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Tokens of each piece of it; the context or 4096 at most.")
    ] = 4096,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Pieces at most.")] = 16,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Measure how many tokens a head needs, for `--cache tca`.

    Pieces of the text are read as a whole; of each kv head it is noted which budget of tokens holds 50 to 99% of what
    it looks at. The table goes into the bundle.

    \b
    Examples:
      edgedec calibrate ./smol wiki.txt
      edgedec calibrate ./smol wiki.txt --length 8192 --limit 4 --json
    """
    from edgedec.bench.head_budgets import measure_budgets
    from edgedec.policies._head_budgets import HEAD_BUDGETS, MASSES, shares_kept

    writer = export_module("head_budgets", "calibrate")
    model = o.open_model(str(changeable(bundle)), "auto", threads, None)
    length = min(length, model.spec.context_length)
    ids = model.tokenizer.encode(o.read_text(text))
    with progress_bar(quiet=json) as show:
        table, pieces = measure_budgets(model, ids, length, limit, lambda done, total: show("pieces", done, total))
    found = writer.put_budgets(model.bundle, table)
    mean = {f"{mass:g}": round(float(row.mean()), 4) for mass, row in zip(MASSES, shares_kept(table), strict=True)}
    if json:
        facts = {"bundle": str(found.path), "file": HEAD_BUDGETS, "pieces": pieces, "length": length, "share": mean}
        print_json(facts)
    else:
        shares = ", ".join(f"{float(mass):.0%}: {share:.0%}" for mass, share in mean.items())
        print(f"{found.path}: {HEAD_BUDGETS}, {pieces} pieces of {length} tokens. Tokens that hold so much: {shares}")
