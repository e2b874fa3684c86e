"""`edgedec bench spec --sweep exit`: its options, its table, its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table
from edgedec.cli.bench._about import parse_rows, plural
from edgedec.cli.bench._plot import STYLES, new_figure

if TYPE_CHECKING:
    from edgedec.bench.sweep import ExitSweep


class Sweep(StrEnum):
    """What may be swept."""

    exit = "exit"


@dataclass(frozen=True)
class SweepFlags:
    """Every exit with every length, instead of drafters."""

    sweep: Annotated[
        Sweep | None,
        o.option(help="Every exit with every length, beside what DEL chooses; no --drafters."),
    ] = None
    exits: Annotated[str, o.option(metavar="N,…", help="Of --sweep exit: after these layers.")] = ""
    lengths: Annotated[str, o.option(metavar="N,…", help="Of --sweep exit: so many drafted tokens.")] = ""

    def check(self, drafters: str) -> None:
        """UsageError for flags that do not fit together."""
        if self.sweep and drafters:
            raise typer.BadParameter("--sweep and --drafters: give one of them")
        if (self.exits or self.lengths) and not self.sweep:
            raise typer.BadParameter("--exits and --lengths: are of --sweep exit")

    def pairs(self, n_layers: int) -> ExitSweep | None:
        """The pairs of exit and length to measure, some if none are given; None without --sweep."""
        from edgedec.bench.sweep import GAMMAS, ExitSweep, usual_exits

        if not self.sweep:
            return None
        found = ExitSweep(
            parse_rows(self.exits, "--exits") if self.exits else usual_exits(n_layers),
            parse_rows(self.lengths, "--lengths") if self.lengths else GAMMAS,
        )
        found.check(n_layers)
        return found


def names_of(sweep: ExitSweep) -> list[str]:
    """The drafters to measure."""
    return [*sweep.pairs(), sweep.choice]


def swept(sweep: ExitSweep, report: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the report that is about the sweep."""
    from edgedec.bench.sweep import swept as of

    return of(sweep, report)


def show(report: Mapping[str, Any]) -> None:
    """A line for each exit, a column for each length."""
    found, choice = report["sweep"], report["sweep"]["choice"]
    gammas, at = _axes(found)
    layers = list(dict.fromkeys(layer for layer, _ in at))
    rows = [(f"after {layer}", *(_cell(at[layer, gamma]) for gamma in gammas)) for layer in layers]
    print(f"{report['model']}: {report['host']['cpu']}, {plural(report['threads'], 'thread')}")
    print_table(rows, ("exit", *(plural(g, "token") for g in gammas)), "Speed over plain decoding, tokens a call")
    best = found["best"]
    print(f"\nbest fixed: after {best['layer']} layers, {plural(best['gamma'], 'token')}: {_cell(best)}")
    print(f"DEL's choice: {_cell(choice)}, {found['over_best']:.2f} of the best fixed")
    wrong = sum(not cell["identical"] for cell in (*found["cells"], choice))
    print(f"same text: {'yes' if not wrong else f'not with {wrong} of them'}")


def plot_sweep(report: Mapping[str, Any], path: Path) -> None:
    """Speed by length, a line for each exit; DEL's choice across."""
    found, figure = report["sweep"], new_figure()
    axes, (gammas, at) = figure.add_subplot(), _axes(found)
    for i, layer in enumerate(dict.fromkeys(layer for layer, _ in at)):
        color, mark = STYLES[i % len(STYLES)]
        speeds = [at[layer, gamma]["speed"] for gamma in gammas]
        dashes = "-" if i < len(STYLES) else "--"
        axes.plot(gammas, speeds, dashes, color=color, marker=mark, label=f"exit after {layer}")
    axes.axhline(found["choice"]["speed"], color="0.1", label="DEL's choice")
    axes.axhline(1, color="0.35", linestyle=":")
    axes.set_xlabel("drafted tokens a call")
    axes.set_ylabel("speed over plain decoding")
    axes.grid(True, color="0.9")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"{report['model']}: {report['host']['cpu']}, {plural(report['threads'], 'thread')}", fontsize=11)
    figure.savefig(path, dpi=150)


def _axes(found: Mapping[str, Any]) -> tuple[list[int], dict[tuple[int, int], Mapping[str, Any]]]:
    """The lengths, and the cells by exit and length."""
    at = {(cell["layer"], cell["gamma"]): cell for cell in found["cells"]}
    return sorted({gamma for _, gamma in at}), at


def _cell(cell: Mapping[str, Any]) -> str:
    return f"{cell['speed']:.2f} {cell['tokens_per_call']:.2f}"
