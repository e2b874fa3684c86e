"""Ways to decode a diffusion model, compared on the same texts."""

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
_KINDS = "copy,replace,remove,insert,reverse,sort,shuffle, and those of `bench parallel`"
_WAYS = ("off", "schedule=static", "schedule=threshold")


@app.command()
@o.grouped
def diffusion(
    *,
    model: o.ModelName = "nano-block",
    machine: RuntimeFlags,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--diffusion",
            metavar="WAY",
            help="A way to decode, as of `run`; repeat it to compare.",
            show_default=", ".join(_WAYS),
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(metavar="LIST", help=f"Questions about lists of names: {_KINDS}.")
    ] = "copy,replace,remove,shuffle",
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help='Other tasks instead: a line is {"prompt": …, "answer": …}.',
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Texts of each task.")] = 12,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens of a text, at most.")] = 48,
    json: o.Json = False,
) -> None:
    """Compare ways to decode a diffusion model: passes, rows, time, and how often the answer is right.

    `off` is the model read as an autoregressive one. Rows cost time on a CPU too: fewer passes of more rows need not be
    quicker.

    \b
    Examples:
      edgedec bench diffusion
      edgedec bench diffusion -m nano-block --diffusion schedule=static --diffusion schedule=threshold:p=0.95
      edgedec bench diffusion --texts copies.jsonl -n 200 --json
    """
    from edgedec.bench.diffusion import compare, list_tasks, tasks_of
    from edgedec.bench.report import describe_opened

    chosen = list_tasks(names(tasks), limit) if texts is None else tasks_of(texts)
    threads, opened = machine.used, machine.open(model)
    with progress_bar(quiet=json) as show:
        found = compare(opened, ways or _WAYS, chosen, generate, partial(show, "texts"))
    costs = {way: {task: cost.to_json() for task, cost in by_task.items()} for way, by_task in found.items()}
    report = {**describe_opened(opened, threads), "limit": limit, "ways": costs}
    if json:
        print_json(report)
    else:
        _show(report)


def _show(r: dict[str, Any]) -> None:
    show_header(r, f"{r['limit']} texts of each task")
    cells = [
        (way, task, f"{c['right']}/{c['texts']}", c["passes"], c["rows"], f"{c['tokens_per_pass']:.2f}",
         f"{c['tokens_per_s']:.0f}")
        for way, by_task in r["ways"].items()
        for task, c in by_task.items()
    ]  # fmt: skip
    print_table(cells, ("diffusion", "task", "right", "passes", "rows", "tokens a pass", "tokens/s"))
