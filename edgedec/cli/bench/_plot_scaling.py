"""The picture of what `edgedec bench scaling` measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from pathlib import Path
from typing import Any

from edgedec.cli.bench._plot import STYLES, new_figure


def plot_scaling(report: Mapping[str, Any], path: Path) -> None:
    """Acceptance and cost of a step by the weights that it goes through, and the two lines of the law."""
    figure, law, points = new_figure(), report["law"], report["drafters"]
    figure.set_size_inches(10, 4)
    sizes = sorted(point["parameters"] for point in points)
    ends = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 32) for i in range(33)]
    lines = (
        ("acceptance", "accepted, of first guesses", [law["a"] + law["b"] * log10(n) for n in ends]),
        ("step", "a step, in calls of the target", [law["c"] + law["d"] * n for n in ends]),
    )
    for axes, (key, label, line) in zip(figure.subplots(1, 2), lines, strict=True):
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
    law_ = f"acceptance = {law['a']:.2f} {law['b']:+.2f} log10(weights), R2 {law['r2']:.2f}"
    figure.suptitle(f"{report['model']}: {report['host']['cpu']}; {law_}", fontsize=11)
    figure.savefig(path, dpi=150)


def _kind(point: Mapping[str, Any]) -> str:
    return "exits" if str(point["name"]).startswith("exit:") else "small models"
