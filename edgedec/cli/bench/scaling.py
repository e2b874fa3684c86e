"""Acceptance by the size of a drafter, and the best size and length here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench._about import parse_rows
from edgedec.cli.bench._flags import OutputFlags
from edgedec.cli.bench._plot_scaling import plot_scaling

if TYPE_CHECKING:
    from edgedec.bench.scaling import BestSize, Law, Point


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def scaling(
    *,
    model: o.ModelName = "nano",
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", metavar="BUNDLE", show_default=False, help="A small model; repeat it for more."),
    ] = None,
    exits: Annotated[
        str, typer.Option(metavar="N,N,…", show_default=False, help="Layers after which the model is left early.")
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Prompts of a category; 0 takes all.")] = 1,
    generate: Annotated[int, typer.Option("--generate", "-n", min=8, help="Tokens to generate a prompt.")] = 64,
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    output: OutputFlags,
) -> None:
    """Fit the scaling law of the drafters at hand.

    Acceptance is taken to grow with the logarithm of the weights that a step goes through, its cost with their number.
    The best size is searched between the smallest and the largest. Without --draft and --exits: exits of the model.

    \b
    Examples:
      edgedec bench scaling --exits 2,4,6 --plot law.png
      edgedec bench scaling -m ./smol --draft ./small --draft ./tiny --draft ./least --json
    """
    from edgedec.bench.prompts import choose_prompts, read_prompts
    from edgedec.bench.report import describe
    from edgedec.bench.scaling import best_length, best_size, fit, measure, row_costs
    from edgedec.bench.speculation import tasks_of
    from edgedec.sampling import Sampling

    output.check()
    opened = o.open_model(model, engine, threads, None)
    layers = _layers(exits, opened.spec.n_layers) if exits or not draft else []
    chosen = [prompt for prompt in choose_prompts(read_prompts(None), [], limit) if prompt.category != "random"]
    tasks = tasks_of(chosen, Sampling(), 0)
    with progress_bar(quiet=output.json) as show:
        points = measure(opened, draft or [], layers, tasks, generate, partial(show, "runs"))
    law, cost = fit(points), row_costs(opened.runtime)
    sizes = [point.parameters for point in points]
    best = best_size(law, (min(sizes), max(sizes)), cost)
    rows = [(point, *best_length(point.acceptance, point.step, cost)) for point in points]
    drafters = [{**asdict(point), "length": length, "speed": speed} for point, length, speed in rows]
    report = {
        **describe(opened.bundle),
        "drafters": drafters,
        "law": asdict(law),
        "best": asdict(best),
        "cost": {str(n): cost(n) for n in (1, 2, 4, 8)},
    }
    output.write(report, lambda _: _show(rows, law, best), plot_scaling)


def _layers(exits: str, n_layers: int) -> Sequence[int]:
    """The exits of the flag; without it some in the first two thirds."""
    if not exits:
        return _spread(n_layers)
    layers = parse_rows(exits, "--exits")
    if max(layers) >= n_layers:
        raise typer.BadParameter(f"--exits {exits}: the model has {n_layers} layers; leave it before the last")
    return layers


def _spread(layers: int) -> list[int]:
    """Up to four exits in the first two thirds."""
    return sorted({max(1, round(layers * part)) for part in (0.15, 0.3, 0.45, 0.6)} - {layers})


def _show(rows: list[tuple[Point, int, float]], law: Law, best: BestSize) -> None:
    table: list[tuple[Any, ...]] = [
        (
            point.name,
            f"{point.parameters:,}",
            f"{point.acceptance:.3f}",
            f"{law.acceptance(point.parameters):.3f}",
            f"{point.step:.2f}",
            length or "none",
            f"{speed:.2f}",
        )
        for point, length, speed in rows
    ]
    header = ("drafter", "weights a step", "accepted", "by the law", "step / call", "best length", "speed")
    print_table(table, header, "First tokens accepted; speed over plain decoding, from what was measured")
    print(f"\nacceptance = {law.a:.3f} {law.b:+.3f} log10(weights), R2 {law.r2:.2f}")
    print(f"step / call = {law.c:.3f} {law.d:+.3g} weights")
    length = f"length {best.length}" if best.length else "no drafting"
    print(f"predicted best: {best.parameters:,} weights a step, {length}, {best.speed:.2f} times plain decoding")
