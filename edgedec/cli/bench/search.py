"""Searches compared on tasks whose answers can be checked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import names
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import show_header
from edgedec.cli.bench._flags import RuntimeFlags

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_KINDS = "copy,replace,remove,insert,reverse,sort,shuffle,replace_any"
_WAYS = ("greedy", "sampled", "best:n=4", "first:n=4", "beam:width=4", "diverse:width=4", "cautious:n=4", "lookahead")


@app.command()
@o.grouped
def search(
    *,
    model: o.ModelName = "nano-block",
    machine: RuntimeFlags,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="WAY",
            help="A search as of `run`, or greedy, or sampled; repeat it to compare.",
            show_default=", ".join(_WAYS),
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(metavar="LIST", help=f"Questions about lists of names: {_KINDS}.")
    ] = "replace,remove,insert,sort",
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help='Other tasks instead: a line is {"prompt": …, "answer": …}.',
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Texts of each task.")] = 25,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens of a text, at most.")] = 48,
    temperature: Annotated[
        float, typer.Option("--temp", min=0.01, max=10, help="Of the texts that a search samples.")
    ] = 0.8,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            min=0,
            metavar="N",
            help="Give each search as many texts as draw about N tokens (measured on 6 tasks); 0: as it says.",
        ),
    ] = 0,
    form: Annotated[
        bool, typer.Option("--form", help="Score by the form of an answer, where a search takes a scorer.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Compare searches: how often the answer is right, with a 95% interval, tokens, forwards, scorer calls and time.

    Compare ways at equal tokens a text (--tokens): a search that writes eight texts has eight times the chances.

    \b
    Examples:
      edgedec bench search
      edgedec bench search --search greedy --search best:n=8 --search beam:width=8 --limit 50
      edgedec bench search --tokens 100
      edgedec bench search --texts questions.jsonl -n 200 --json
    """
    from edgedec.bench.diffusion import list_tasks, tasks_of
    from edgedec.bench.report import describe_opened
    from edgedec.bench.search import at_equal_tokens, compare

    chosen = list_tasks(names(tasks), limit) if texts is None else tasks_of(texts)
    threads, opened = machine.used, machine.open(model)
    taken = list(ways or _WAYS)
    if tokens:
        taken = at_equal_tokens(opened, taken, chosen, generate, temperature, tokens)
    with progress_bar(quiet=json) as show:
        found = compare(opened, taken, chosen, generate, temperature, form, partial(show, "texts"))
    costs = {way: cost.to_json() for way, cost in found.items()}
    report = {**describe_opened(opened, threads), "texts": len(chosen), "ways": costs}
    if json:
        print_json(report)
    else:
        _show(report)


def _show(r: dict[str, Any]) -> None:
    show_header(r, f"{r['texts']} texts")
    cells = [
        (way, f"{c['right']}/{c['texts']}", f"{c['interval'][0]:.0%} to {c['interval'][1]:.0%}",
         f"{c['tokens_per_text']:.1f}", f"{c['forwards_per_text']:.1f}", f"{c['scorer_calls_per_text']:.1f}",
         f"{1000 * c['seconds'] / c['texts']:.0f}")
        for way, c in r["ways"].items()
    ]  # fmt: skip
    print_table(cells, ("search", "right", "95%", "tokens", "forwards", "scorer calls", "ms a text"))
