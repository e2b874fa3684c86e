"""The picture of what `edgedec bench scaling` measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from pathlib import Path
from typing import Any

from edgedec.cli.bench._plot import STYLES, new_figure

LABELS = {
    "data": ("tokens of training", "tokens a call"),
    "batch": ("texts at a time", "speed over plain decoding"),
}


def plot_scaling(report: Mapping[str, Any], path: Path) -> None:
    """Acceptance and cost of a step by the weights that it goes through, and the two lines of the law."""
    figure, law, points = new_figure(), report["law"], report["drafters"]
    laws = report.get("laws", {})
    figure.set_size_inches(10 + 5 * len(laws), 4)
    panels = figure.subplots(1, 2 + len(laws))
    sizes = sorted(point["parameters"] for point in points)
    ends = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 32) for i in range(33)]
    lines = (
        ("acceptance", "accepted, of first guesses", [law["a"] + law["b"] * log10(n) for n in ends]),
        ("step", "a step, in calls of the target", [law["c"] + law["d"] * n for n in ends]),
    )
    for axes, (key, label, line) in zip(panels[:2], lines, strict=True):
        kinds = sorted({_kind(point) for point in points})
        for kind, (color, mark) in zip(kinds, STYLES, strict=False):
            some = [(point["parameters"], point[key]) for point in points if _kind(point) == kind]
            axes.plot(*zip(*some, strict=True), mark, color=color, label=kind)
        axes.plot(ends, line, "-", color="0.35")
        axes.set_xscale("log")
        axes.set_xlabel("weights a step")
        axes.set_ylabel(label)
        axes.grid(True, color="0.9")
        axes.legend(frameon=False, fontsize=8)
    for axes, (name, found) in zip(panels[2:], laws.items(), strict=True):
        _plot_law(axes, found, *LABELS[name])
    law_ = f"acceptance = {law['a']:.2f} {law['b']:+.2f} log10(weights), R2 {law['r2']:.2f}"
    figure.suptitle(f"{report['model']}: {report['host']['cpu']}; {law_}", fontsize=11)
    figure.savefig(path, dpi=150)


def _plot_law(axes: Any, found: Mapping[str, Any], size: str, value: str) -> None:
    """Points and line of a law that is linear in a logarithm."""
    color, mark = STYLES[0]
    x = [point["size"] for point in found["points"]]
    axes.plot(x, [point["value"] for point in found["points"]], mark, color=color)
    axes.plot(x, [found["a"] + found["b"] * log10(n) for n in x], "-", color="0.35")
    axes.set_xscale("log")
    axes.set_xlabel(size)
    axes.set_ylabel(f"{value}, R2 {found['r2']:.2f}")
    axes.grid(True, color="0.9")


def _kind(point: Mapping[str, Any]) -> str:
    return "exits" if str(point["name"]).startswith("exit:") else "small models"
