"""`edgedec bench spec --sweep exit`: its options, its table, its picture."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli._bench_about import parse_rows, plural
from edgedec.cli._output import print_table
from edgedec.cli._plot import new_figure

if TYPE_CHECKING:
    from edgedec.bench.sweep import ExitSweep


class Sweep(StrEnum):
    """What may be swept."""

    exit = "exit"


def exit_sweep(exits: str, lengths: str, n_layers: int) -> ExitSweep:
    """The pairs that were asked for; some, if nothing was."""
    from edgedec.bench.sweep import GAMMAS, ExitSweep, usual_exits

    found = ExitSweep(
        parse_rows(exits, "--exits") if exits else usual_exits(n_layers),
        parse_rows(lengths, "--lengths") if lengths else GAMMAS,
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


def show(report: Mapping[str, Any], plot: Path | None) -> None:
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
    if plot is not None:
        print(f"plot: {plot}")


def plot_sweep(report: Mapping[str, Any], path: Path) -> None:
    """Speed by length, a line for each exit; DEL's choice across."""
    from edgedec.cli._plot import STYLES

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
