"""Pictures of what `edgedec bench kernels`, `peers` and `spec` measured. Matplotlib is an extra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from edgedec.cli.bench._about import plural

FORMATS = (".png", ".svg", ".pdf")
# Colours that differ for the colour-blind too, and a mark each.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def check(path: Path | None) -> None:
    """UsageError before measuring if the picture cannot be drawn."""
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise typer.BadParameter(f"--plot {path}: must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"--plot {path}: there is no such folder")
    new_figure()


def plot_kernels(report: Mapping[str, Any], path: Path) -> None:
    """One engine's curve over this host's floors."""
    counts = [int(k) for k in report["rows"]]
    figure, axes = _axes(report, f"what a call of k rows costs on {report['engine']}", counts)
    floors = report["floor_ms"]
    for name, label, dashes in (("read", "memory floor", "--"), ("int8", "arithmetic floor", ":")):
        if floors[name] is not None:
            axes.plot(counts, list(floors[name].values()), dashes, color="0.35", label=label)
    _curve(axes, report["engine"], report["rows"], report["spread"], 0)
    _save(figure, axes, path)


def plot_peers(report: Mapping[str, Any], path: Path) -> None:
    """Everyone's curves."""
    engines = report["engines"]
    counts = [int(k) for k in next(iter(engines.values()))["rows"]]
    figure, axes = _axes(report, "what a call of k rows costs, same weights", counts)
    for i, (name, engine) in enumerate(engines.items()):
        label = name if engine["logits"] == "all rows" else f"{name} (logits of the last row only)"
        _curve(axes, label, engine["rows"], engine["spread"]["rows"], i)
    _save(figure, axes, path)


def plot_spec(report: Mapping[str, Any], path: Path) -> None:
    """Speed ratios with their intervals and their least, and acceptance by depth."""
    drafters, figure = report["drafters"], new_figure()
    figure.set_size_inches(12, max(4.5, 0.45 * len(drafters)))
    ratios, depths = figure.subplots(1, 2, width_ratios=(1, 1))
    # A fusion has a long name: a line for each two of its drafters.
    names = [re.sub(r"(\+[^+]+\+)", r"\1\n", name) for name in drafters]
    for i, found in enumerate(drafters.values()):
        color, mark = STYLES[i % len(STYLES)]
        mean, (low, high) = found["speed_ratio_mean"], found["speed_ratio_interval"]
        ratios.errorbar([mean], [i], xerr=[[mean - low], [high - mean]], color=color, marker=mark, capsize=3)
        ratios.plot([found["speed_ratio_min"]], [i], "|", color=color, markersize=9)
        shares = _often(found["acceptance_by_depth"], found["drafts_by_depth"])
        if shares:
            depths.plot(range(1, len(shares) + 1), shares, color=color, marker=mark, markersize=4, label=names[i])
    ratios.axvline(1, color="0.35", linestyle="--")
    ratios.set_yticks(range(len(names)), names)
    ratios.invert_yaxis()
    ratios.set_xlabel("speed over plain decoding: mean, 95% interval; bar: least")
    depths.set_xlabel("depth in the draft")
    depths.set_ylabel("accepted, of drafts that deep")
    depths.set_ylim(0, 1)
    if depths.lines:
        depths.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    for axes in (ratios, depths):
        axes.grid(True, color="0.9")
    figure.suptitle(f"{report['model']}: {report['host']['cpu']}, {plural(report['threads'], 'thread')}", fontsize=11)
    figure.savefig(path, dpi=150)


def _often(shares: list[float], drafts: list[int]) -> list[float]:
    """The shares of those depths that were drafted a twentieth as often as the first, at least."""
    return [share for share, n in zip(shares[:12], drafts, strict=False) if 20 * n >= drafts[0]]


def _curve(axes: Any, label: str, rows: Mapping[str, float], spread: Mapping[str, Any], style: int) -> None:
    """Medians, with bars from the least to the largest."""
    color, mark = STYLES[style % len(STYLES)]
    least = [ms - spread[k]["min"] for k, ms in rows.items()]
    most = [spread[k]["max"] - ms for k, ms in rows.items()]
    counts = [int(k) for k in rows]
    axes.errorbar(
        counts, list(rows.values()), yerr=[least, most], color=color, marker=mark, markersize=5, capsize=3, label=label
    )


def _axes(report: Mapping[str, Any], title: str, counts: list[int]) -> tuple[Any, Any]:
    figure = new_figure()
    axes = figure.add_subplot()
    bits = f"{report['bits_per_weight']:.2f} bits a weight"
    where = f"{report['host']['cpu']}, {plural(report['threads'], 'thread')}"
    axes.set_title(f"{report['model']}, {bits}: {title}\n{where}", fontsize=11)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(k) for k in counts])
    axes.set_xlabel(f"rows of a call, after {report['context']} tokens")
    axes.set_ylabel("milliseconds")
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.grid(True, color="0.9")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def new_figure() -> Any:
    from edgedec.errors import RuntimeUnavailable
    from edgedec.extras import install_command

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RuntimeUnavailable(f"--plot needs matplotlib: {install_command('plot')}") from None
    return Figure(figsize=(8, 5.2), layout="constrained")
