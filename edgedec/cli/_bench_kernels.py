"""`edgedec bench kernels`: the cost of a call by number of rows, and of MoE blocks by distinct experts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _plot
from edgedec.cli import options as o
from edgedec.cli._bench_about import Context, Plot, RowList, describe, parse_rows, plural
from edgedec.cli._output import print_json, print_table, progress_bar

if TYPE_CHECKING:
    from edgedec.bench.row_costs import Work
    from edgedec.cli._ceilings import Ceilings
    from edgedec.model import Model

# Rows of the calls by number of experts.
_EXPERT_ROWS = 16


def kernels(
    model: o.ModelName = "nano",
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    rows: RowList = "1,2,3,4,6,8,12,16,32",
    context: Context = 64,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after one to warm up.")] = 7,
    plot: Plot = None,
    json: o.Json = False,
) -> None:
    """Measure what a call of k rows costs, beside this host's limits.

    Of a mixture-of-experts model also by the number of distinct experts that the rows choose.

    \b
    Examples:
      edgedec bench kernels -m ./smol
      edgedec bench kernels -m ./smol --engine ort -t 2 --rows 1,4,16 --plot cost.png
      edgedec bench kernels -m ./smol --json
    """
    from edgedec.bench.row_costs import Work, row_costs
    from edgedec.bench.timing import Spread
    from edgedec.cli._ceilings import Ceilings
    from edgedec.runtime import available_cores

    counts = parse_rows(rows)
    _plot.check(plot)
    threads = threads or available_cores()
    opened = o.open_model(model, engine, threads, kv)
    work = Work.of(opened.bundle.manifest)
    ceilings = Ceilings(threads, work.weight_bytes)

    with progress_bar(quiet=json) as show:

        def after(done: int) -> None:
            ceilings.probe()
            show("rounds", done, repetitions + 1)

        seconds = row_costs(opened.runtime, counts, context, repetitions, after)
        by_experts = _experts(opened, repetitions)
    costs = {k: Spread.of([1000 * s for s in seconds[k]]) for k in counts}
    report = {
        **describe(opened.bundle),
        "engine": opened.runtime.name,
        "isa": opened.runtime.capabilities.isa or None,
        "threads": threads,
        "kv": opened.runtime.new_cache(1).kv,
        "context": context,
        "repetitions": repetitions,
        **_numbers({k: cost.median for k, cost in costs.items()}, work, ceilings),
        "spread": {str(k): asdict(cost) for k, cost in costs.items()},
        "experts": by_experts,
    }
    if plot is not None:
        _plot.plot_kernels(report, plot)
    if json:
        print_json(report)
    else:
        _show(report, plot)


def _experts(model: Model, repetitions: int) -> dict[str, Any] | None:
    """ms of a call through the mixture-of-experts blocks by number of distinct experts; None without such blocks."""
    from edgedec.bench.experts import expert_costs, moe_blocks
    from edgedec.bench.timing import Spread

    blocks = moe_blocks(model.bundle)
    if not blocks:
        return None
    most = max(block.n_experts for block in blocks.values())
    wanted = [2**i for i in range(most.bit_length()) if 2**i <= most]
    seconds = expert_costs(model.runtime, model.bundle, wanted, _EXPERT_ROWS, repetitions)
    costs = {str(n): asdict(Spread.of([1000 * s for s in each])) for n, each in seconds.items()}
    return {"rows": _EXPERT_ROWS, "blocks": len(blocks), "ms": costs}


def _numbers(ms: dict[int, float], work: Work, ceilings: Ceilings) -> dict[str, Any]:
    """Everything that follows from the medians: keys are numbers of rows, as JSON has them."""
    read, int8 = ceilings.read_gb_s, ceilings.int8_gmac_s
    return {
        "rows": {str(k): cost for k, cost in ms.items()},
        "ratio": {str(k): cost / ms[1] for k, cost in ms.items()} if 1 in ms else None,
        "gb_s": {str(k): work.weight_bytes / cost / 1e6 for k, cost in ms.items()},
        "gmac_s": {str(k): work.macs * k / cost / 1e6 for k, cost in ms.items()},
        "weight_bytes_per_call": work.weight_bytes,
        "macs_per_row": work.macs,
        "ceilings": ceilings.to_json(),
        "floor_ms": {
            "read": read and {str(k): work.weight_bytes / read / 1e6 for k in ms},
            "int8": int8 and {str(k): work.macs * k / int8 / 1e6 for k in ms},
        },
    }


def _show(r: dict[str, Any], plot: Path | None) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    print(
        f"{r['model']}: {r['bits_per_weight']:.2f} bits a weight, {r['engine']}, {plural(r['threads'], 'thread')}, "
        f"KV {r['kv']}; rows after {r['context']} tokens, {r['repetitions']} rounds after a warm-up"
    )
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
    if plot is not None:
        print(f"plot: {plot}")


def _ceilings(read_gb_s: float | None, int8_gmac_s: float | None, reason: str | None) -> str:
    read = "" if read_gb_s is None else f"{read_gb_s:.1f} GB/s"
    int8 = "" if int8_gmac_s is None else f"{int8_gmac_s:.0f} G int8 multiply-adds/s"
    return ", ".join(part for part in (read, int8) if part) or f"unknown, {reason or 'the probes found nothing'}"
