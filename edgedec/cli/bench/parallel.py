"""Right answers against tokens a pass, on ParallelBench's tasks."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import names
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import show_header
from edgedec.cli.bench._flags import RuntimeFlags

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def parallel(
    *,
    model: o.ModelName = "nano-block",
    machine: RuntimeFlags,
    tasks: Annotated[
        str, o.option(metavar="LIST", help="ParallelBench's waiting line and puzzles by default; `all` adds ours.")
    ] = "",
    thresholds: Annotated[str, typer.Option(metavar="P,P,…", help="Thresholds to sweep.")] = "0.97,0.9,0.8,0.6,0.4",
    limit: Annotated[int, typer.Option(min=1, help="Texts of each task.")] = 12,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens of a text, at most.")] = 48,
    json: o.Json = False,
) -> None:
    """Measure what tokens a pass cost in right answers (ParallelBench).

    Lists of 3 to 6 names to copy, change, sort and shuffle, a Latin square and a sudoku, made here, judged by its
    rules: one token a pass, then by falling thresholds, then a whole block in one pass.

    \b
    Examples:
      edgedec bench parallel
      edgedec bench parallel --tasks copy,replace_random,shuffle --limit 50 --thresholds 0.9,0.5 --json
    """
    from edgedec.bench.parallel import KNOWN, TASKS, summary, sweep, tasks_named
    from edgedec.bench.report import describe_opened

    kinds = {"": TASKS, "all": KNOWN}.get(tasks) or names(tasks)
    chosen, sure = tasks_named(kinds, limit), _numbers(thresholds)
    threads, opened = machine.used, machine.open(model)
    with progress_bar(quiet=json) as show:
        found = sweep(opened, sure, chosen, generate, partial(show, "texts"))
    ways = {way: summary(costs) for way, costs in found.items()}
    report = {**describe_opened(opened, threads), "limit": limit, "ways": ways}
    if json:
        print_json(report)
    else:
        _show(report)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: must be numbers such as 0.9,0.5", param_hint="--thresholds") from None


def _show(r: dict[str, Any]) -> None:
    show_header(r, f"{r['limit']} texts of each task; right answers")
    kinds = list(next(iter(r["ways"].values()))["right"])
    ways = list(r["ways"])
    cells = [(kind, *(f"{r['ways'][way]['right'][kind]:.0%}" for way in ways)) for kind in kinds]
    cells.append(("mean", *(f"{r['ways'][way]['mean']:.0%}" for way in ways)))
    cells.append(("tokens a pass", *(f"{r['ways'][way]['tokens_per_pass']:.2f}" for way in ways)))
    print_table(cells, ("task", *ways))
