"""The picture of what `edgedec bench cache` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.cli.bench._about import plural
from edgedec.cli.bench._plot import STYLES, new_figure


def plot_cache(report: Mapping[str, Any], path: Path) -> None:
    """Quality by budget, a panel a task; ratios of reading and of a step by context."""
    quality, costs = report.get("quality", {}), report.get("policies", {})
    known = {key for found in costs.values() for facts in found.values() for key in facts}
    ratios = tuple(key for key in ("prefill_ratio", "step_ratio") if key in known)
    panels = len(quality) + len(ratios)
    if not panels:
        return
    figure = new_figure()
    figure.set_size_inches(4.2 * panels, 4)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for (task, found), panel in zip(quality.items(), axes, strict=False):
        for i, (name, values) in enumerate(item for item in found.items() if item[0] != "full"):
            points = sorted((float(budget), value) for budget, value in values.items())
            _line(panel, points, name, i)
        panel.axhline(found["full"]["1"], color="0.35", linestyle="--")
        panel.set_xlabel("share of the tokens kept")
        panel.set_ylabel("perplexity" if task == "story" else "share that is right")
        panel.set_title(task, fontsize=10)
    for key, panel in zip(ratios, axes[len(quality) :], strict=True):
        for i, (name, contexts) in enumerate(item for item in costs.items() if item[0] != "full"):
            _line(panel, sorted((int(context), facts[key]) for context, facts in contexts.items()), name, i)
        panel.axhline(1, color="0.35", linestyle="--")
        panel.set_xscale("log", base=2)
        panel.set_xlabel("tokens of the prompt")
        panel.set_title(key.replace("_ratio", ": whole cache over policy"), fontsize=10)
    for panel in axes:
        panel.grid(True, color="0.9")
    axes[-1].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.suptitle(f"{report['model']}: {report['host']['cpu']}, {plural(report['threads'], 'thread')}", fontsize=11)
    figure.savefig(path, dpi=150)


def _line(panel: Any, points: list[tuple[float, float]], name: str, style: int) -> None:
    color, mark = STYLES[style % len(STYLES)]
    dashes = ("-", "--", ":", "-.")[style // len(STYLES) % 4]
    panel.plot(*zip(*points, strict=True), color=color, marker=mark, linestyle=dashes, markersize=4, label=name)
