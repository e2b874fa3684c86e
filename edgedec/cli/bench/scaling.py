"""Acceptance by the size of a drafter, and the best size and length here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench._about import parse_rows
from edgedec.cli.bench._flags import OutputFlags
from edgedec.cli.bench._plot_scaling import LABELS, plot_scaling

if TYPE_CHECKING:
    from edgedec.bench.scaling import BestSize, Law, Point
    from edgedec.bench.scaling_laws import LawPoint, LogLaw

    Fitted = tuple[list[LawPoint], LogLaw]


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
    trained: Annotated[
        list[str] | None,
        typer.Option(
            "--trained",
            metavar="TOKENS=BUNDLE",
            show_default=False,
            help="A bundle whose --head was trained on so many tokens; repeat it: three or more.",
        ),
    ] = None,
    head: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="The head of --trained, as --spec names it.")
    ] = "",
    batch: Annotated[
        str, typer.Option(metavar="N,N,…", show_default=False, help="Texts at a time: three sizes or more.")
    ] = "",
    spec: Annotated[str, typer.Option(metavar="SPEC", help="How to draft in batches.")] = "auto",
    limit: Annotated[int, typer.Option(min=0, help="Prompts of a category; 0 takes all.")] = 1,
    generate: Annotated[int, typer.Option("--generate", "-n", min=8, help="Tokens to generate a prompt.")] = 64,
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    output: OutputFlags,
) -> None:
    """Fit the scaling laws of the drafters at hand: by capacity, training data and batch.

    Acceptance is taken to grow with the logarithm of the weights that a step goes through, its cost with their number.
    The best size is searched between the smallest and the largest. Without --draft and --exits: exits of the model.
    --trained fits tokens a call to the logarithm of the tokens of training, --batch the speed over plain decoding to
    that of the texts at a time.

    \b
    Examples:
      edgedec bench scaling --exits 2,4,6 --plot law.png
      edgedec bench scaling -m ./smol --draft ./small --draft ./tiny --draft ./least --json
      edgedec bench scaling --head eagle3 --trained 1e5=./a --trained 4e5=./b --trained 16e5=./c --batch 1,2,4,8
    """
    from edgedec.bench.prompts import choose_prompts, read_prompts
    from edgedec.bench.report import describe
    from edgedec.bench.scaling import best_length, best_size, fit, measure, row_costs
    from edgedec.bench.scaling_laws import by_batch, by_data, fit_log
    from edgedec.bench.speculation import tasks_of
    from edgedec.sampling import Sampling

    output.check()
    copies, at_once = _trained(trained or [], head), parse_rows(batch, "--batch") if batch else []
    opened = o.open_model(model, engine, threads, None)
    layers = _layers(exits, opened.spec.n_layers) if exits or not draft else []
    chosen = [prompt for prompt in choose_prompts(read_prompts(None), [], limit) if prompt.category != "random"]
    tasks = tasks_of(chosen, Sampling(), 0)
    with progress_bar(quiet=output.json) as show:
        points = measure(opened, draft or [], layers, tasks, generate, partial(show, "runs"))
    more: dict[str, Fitted] = {}
    if copies:
        found = by_data(head, copies, tasks, generate, lambda path: o.open_model(path, engine, threads, None))
        more["data"] = found, fit_log(found, "--trained")
    if at_once:
        found = by_batch(opened, spec, at_once, chosen, generate)
        more["batch"] = found, fit_log(found, "--batch")
    law, cost = fit(points), row_costs(opened.runtime)
    sizes = [point.parameters for point in points]
    best = best_size(law, (min(sizes), max(sizes)), cost)
    rows = [(point, *best_length(point.acceptance, point.step, cost)) for point in points]
    report = {
        **describe(opened.bundle),
        "drafters": [{**asdict(point), "length": length, "speed": speed} for point, length, speed in rows],
        "law": asdict(law),
        "best": asdict(best),
        "laws": {name: _law(*fitted) for name, fitted in more.items()},
        "cost": {str(n): cost(n) for n in (1, 2, 4, 8)},
    }
    output.write(report, lambda _: _show(rows, law, best, more), plot_scaling)


def _law(points: list[LawPoint], law: LogLaw) -> dict[str, Any]:
    return {"points": [point._asdict() for point in points], **asdict(law)}


def _trained(words: Sequence[str], head: str) -> dict[int, str]:
    """The bundles of --trained by the tokens of training."""
    found = dict[int, str]()
    for word in words:
        count, _, path = word.partition("=")
        try:
            found[round(float(count))] = path
        except (ValueError, OverflowError):
            path = ""
        if not path:
            raise typer.BadParameter(f"--trained {word}: must be TOKENS=BUNDLE, as in --trained 1e6=./smol-eagle3")
    if bool(found) != bool(head):
        raise typer.BadParameter("--trained and --head: give both, as in --head eagle3 --trained 1e6=./smol-eagle3")
    return found


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


def _show(rows: list[tuple[Point, int, float]], law: Law, best: BestSize, more: Mapping[str, Fitted]) -> None:
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
    for name, (points, line) in more.items():
        size, value = LABELS[name]
        print_table([(f"{n:,}", f"{x:.2f}", f"{line.at(n):.2f}") for n, x in points], (size, value, "by the law"), "")
        print(f"\n{value} = {line.a:.3f} {line.b:+.3f} log10({size}), R2 {line.r2:.2f}")
