"""The cost of a call by number of rows, and of MoE blocks by distinct experts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench._about import parse_rows, plural, show_header
from edgedec.cli.bench._flags import Context, OutputFlags, RowList, RuntimeFlags
from edgedec.cli.bench._plot import plot_kernels

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def kernels(
    *,
    model: o.ModelName = "nano",
    machine: RuntimeFlags,
    rows: RowList = "1,2,3,4,6,8,12,16,32",
    context: Context = 64,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after one to warm up.")] = 7,
    output: OutputFlags,
) -> None:
    """Measure what a call of k rows costs, beside this host's limits.

    Of a mixture-of-experts model also by the number of distinct experts that the rows choose.

    \b
    Examples:
      edgedec bench kernels -m ./smol
      edgedec bench kernels -m ./smol --engine ort -t 2 --rows 1,4,16 --plot cost.png
      edgedec bench kernels -m ./smol --json
    """
    from edgedec.bench.kernels import kernel_costs
    from edgedec.bench.report import describe_opened

    counts = parse_rows(rows)
    output.check()
    threads = machine.used
    opened = machine.open(model)
    with progress_bar(quiet=output.json) as show:
        found = kernel_costs(opened, counts, context, repetitions, threads, partial(show, "rounds"))
    report = {
        **describe_opened(opened, threads),
        "isa": opened.runtime.capabilities.isa or None,
        "context": context,
        "repetitions": repetitions,
        **found,
    }
    output.write(report, _show, plot_kernels)


def _show(r: dict[str, Any]) -> None:
    show_header(r, f"rows after {r['context']} tokens, {r['repetitions']} rounds after a warm-up")
    floors = [floor for floor in r["floor_ms"].values() if floor]
    table = [
        (
            k,
            f"{ms:.3g} ({r['spread'][k]['min']:.3g} to {r['spread'][k]['max']:.3g})",
            f"{r['ratio'][k]:.2f}" if r["ratio"] else "",
            f"{r['gb_s'][k]:.1f}",
            f"{r['gmac_s'][k]:.1f}",
            f"{max(floor[k] for floor in floors):.3g}" if floors else "",
        )
        for k, ms in r["rows"].items()
    ]
    header = ("rows", "ms", "to one row", "GB/s", "G mult-adds/s", "floor ms")
    print_table(table, header, "Median (min to max)")
    if r["experts"]:
        ms = r["experts"]["ms"].items()
        cells = [(n, f"{cost['median']:.3g} ({cost['min']:.3g} to {cost['max']:.3g})") for n, cost in ms]
        title = f"Calls of {r['experts']['rows']} rows through {plural(r['experts']['blocks'], 'MoE block')}"
        print_table(cells, ("distinct experts", "ms"), title)
    print(f"\nThis host at most: {_ceilings(**r['ceilings'])}")


def _ceilings(read_gb_s: float | None, int8_gmac_s: float | None, reason: str | None) -> str:
    read = "" if read_gb_s is None else f"{read_gb_s:.1f} GB/s"
    int8 = "" if int8_gmac_s is None else f"{int8_gmac_s:.0f} G int8 multiply-adds/s"
    return ", ".join(part for part in (read, int8) if part) or f"unknown, {reason or 'the probes found nothing'}"
