"""Ways to decode a diffusion model, compared on the same texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import names
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import parse_rows, show_header
from edgedec.cli.bench._flags import Prompts, Rounds, RuntimeFlags, SubjectFlags

if TYPE_CHECKING:
    from edgedec.model import Model

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_WAYS = ("off", "schedule=static", "schedule=threshold")


@dataclass(frozen=True)
class FilledSubject(SubjectFlags):
    """The same, for models that fill masks."""

    model: o.ModelName = "nano-block"


@dataclass(frozen=True)
class WayFlags:
    """What is compared, on which texts."""

    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--diffusion",
            metavar="WAY",
            help="A way to decode, as of `run`; repeat it to compare.",
            show_default=", ".join(_WAYS),
        ),
    ] = None
    every: Annotated[bool, typer.Option("--every", help="Every method of every part.")] = False
    tasks: Annotated[
        str, typer.Option(metavar="LIST", help="Questions about lists, as `bench parallel` has them, and story.")
    ] = "copy,replace,remove,shuffle"
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help='Other tasks instead: a line is {"prompt": …, "answer": …}.',
        ),
    ] = None
    limit: Annotated[int, typer.Option(min=1, help="Texts of each task.")] = 12
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens of a text, at most.")] = 48


@dataclass(frozen=True)
class ReplayFlags:
    """Costs alone, at published acceptances."""

    replay: Annotated[
        bool, typer.Option("--replay", help="Fill as many tokens a pass as published, whatever the model says.")
    ] = False
    sequences: Annotated[str, typer.Option(metavar="B,B,…", help="Of --replay: texts at a time.")] = "1,8"
    prompts: Prompts = "own"
    repetitions: Rounds = 3


@app.command()
@o.grouped
def diffusion(
    *,
    subject: FilledSubject,
    machine: RuntimeFlags,
    what: WayFlags,
    replayed: ReplayFlags,
    json: o.Json = False,
) -> None:
    """Compare ways to decode a diffusion model: passes, rows, time, and how often the answer is right.

    `off` is the model read as an autoregressive one. Rows cost time on a CPU too: fewer passes of more rows need not be
    quicker. With --every each way stands beside `static` at as many passes. --replay measures what calls cost at the
    sizes of a larger model, beside `off` and beside the whole canvas without a cache, as llama.cpp runs it.

    \b
    Examples:
      edgedec bench diffusion
      edgedec bench diffusion -m nano-block --diffusion schedule=static --diffusion schedule=threshold:p=0.95
      edgedec bench diffusion --every --tasks copy,story --limit 24
      edgedec bench diffusion --as llama-1b --replay --sequences 1,8 -t 2
      edgedec bench diffusion --texts copies.jsonl -n 200 --json
    """
    from edgedec.bench.report import describe_opened

    with progress_bar(quiet=json) as show:
        if not replayed.replay and what.texts is None:
            _tasks(what)  # an unknown one is refused before anything is opened
        opened = machine.open(subject.path(show))
        found = (_replay if replayed.replay else _compare)(opened, what, replayed, show)
    report = {**describe_opened(opened, machine.used), "as": subject.geometry, "limit": what.limit, **found}
    if json:
        print_json(report)
    elif replayed.replay:
        _show_replay(report)
    else:
        _show(report)


def _tasks(what: WayFlags) -> Any:
    from edgedec.bench.diffusion import list_tasks, tasks_of

    return list_tasks(names(what.tasks), what.limit) if what.texts is None else tasks_of(what.texts)


def _compare(opened: Model, what: WayFlags, replayed: ReplayFlags, show: Any) -> dict[str, Any]:
    from edgedec.bench.diffusion import compare
    from edgedec.bench.diffusion_ways import at_equal_passes

    ways, skipped = _every(opened) if what.every else (list(what.ways or _WAYS), {})
    found = compare(opened, ways, _tasks(what), what.generate, partial(show, "texts"))
    costs: dict[str, Any] = {}
    for way, by_task in found.items():
        costs[way] = {task: cost.to_json() for task, cost in by_task.items()}
        for task, cost in costs[way].items():
            if (beside := at_equal_passes(found, way, task)) is not None:
                cost["static_at_these_passes"] = beside
    return {"ways": costs, "skipped": skipped}


def _every(opened: Model) -> Any:
    from edgedec.bench.diffusion_ways import every_way
    from edgedec.diffusion.decoding import DiffusionDecoding

    decoding = DiffusionDecoding.of(opened, "")
    if decoding is None:
        raise typer.BadParameter(f"{opened.bundle.manifest.name} is no diffusion model", param_hint="--every")
    return every_way(decoding.host)


def _replay(opened: Model, what: WayFlags, replayed: ReplayFlags, show: Any) -> dict[str, Any]:
    from edgedec.bench.diffusion_replay import AR, ReplayBench
    from edgedec.bench.prompts import prompts_named

    counts = parse_rows(replayed.sequences, "--sequences")
    bench = ReplayBench(opened, prompts_named(replayed.prompts), max(counts), what.generate)
    cells = bench.measure(counts, replayed.repetitions, partial(show, "rounds"))
    plain = {cell.sequences: cell for cell in cells if cell.name == AR}
    return {"generate": what.generate, "cells": [cell.to_json(plain[cell.sequences]) for cell in cells]}


def _show(r: dict[str, Any]) -> None:
    show_header(r, f"{r['limit']} texts of each task")
    rows = [(way, task, c) for way, by_task in r["ways"].items() for task, c in by_task.items()]
    cells = [
        (way, task, _quality(c), c["passes"], c["rows"], f"{c['ms_per_text']:.0f}", f"{c['tokens_per_pass']:.2f}",
         f"{c['tokens_per_s']:.0f}", _beside(c))
        for way, task, c in rows
    ]  # fmt: skip
    header = ("diffusion", "task", "right", "passes", "rows", "ms a text", "tokens a pass", "tokens/s")
    print_table(cells, (*header, "static so") if any(cell[-1] for cell in cells) else header)
    for way, why in r["skipped"].items():
        print(f"  left out: {way}: {why.partition(': ')[2] or why}")


def _quality(c: dict[str, Any]) -> str:
    """Right answers, or of stories nats a token and the share of different trigrams."""
    if "distinct_3" not in c:
        return f"{c['right']}/{c['texts']}"
    return f"{c['nats'] or 0:.2f} nats, {c['distinct_3']:.0%}"


def _beside(c: dict[str, Any]) -> str:
    found = c.get("static_at_these_passes")
    return "" if found is None or "distinct_3" in c else f"{found * c['texts']:.1f}/{c['texts']}"


def _show_replay(r: dict[str, Any]) -> None:
    show_header(r, f"{r['generate']} tokens a text, acceptances replayed")
    cells = [
        (c["sequences"], c["name"], f"{c['tokens_per_call']:.2f}", f"{c['rows_per_call']:.1f}",
         f"{sorted(c['tokens_per_s'])[len(c['tokens_per_s']) // 2]:.1f}", f"{c['over_off']:.2f}")
        for c in r["cells"]
    ]  # fmt: skip
    print_table(cells, ("texts", "decoding", "tokens a call", "rows a call", "tokens/s", "of off"))
