"""The picture of what `edgedec bench dial` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.cli.bench._about import plural
from edgedec.cli.bench._plot import STYLES, new_figure


def plot_dial(report: Mapping[str, Any], path: Path) -> None:
    """Speed over no drafts, and over the best fixed length, by the number of texts: a line for each acceptance."""
    figure = new_figure()
    figure.set_size_inches(10, 4)
    cells = report["cells"]
    titles = (("over_off", 0.98, "speed over no drafts"), ("over_best", 0.95, "speed over the best fixed length"))
    for axes, (key, bound, label) in zip(figure.subplots(1, 2), titles, strict=True):
        for i, right in enumerate(sorted({cell["acceptance"] for cell in cells})):
            color, mark = STYLES[i % len(STYLES)]
            points = sorted((cell["sequences"], cell[key]) for cell in cells if cell["acceptance"] == right)
            axes.plot(*zip(*points, strict=True), color=color, marker=mark, label=f"right {right:g}")
        axes.axhline(bound, color="0.35", linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("texts at a time")
        axes.set_ylabel(label)
        axes.grid(True, color="0.9")
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{report['model']}: {report['host']['cpu']}, {plural(report['threads'], 'thread')}", fontsize=11)
    figure.savefig(path, dpi=150)
