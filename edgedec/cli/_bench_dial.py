"""`edgedec bench dial`: is drafting ever slower than not drafting, at any acceptance and any load?"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _plot, _plot_dial
from edgedec.cli import options as o
from edgedec.cli._bench_about import Plot, describe, expect, parse_rows, plural
from edgedec.cli._bench_spec import As, padded
from edgedec.cli._output import print_json, print_table, progress_bar

if TYPE_CHECKING:
    from edgedec.bench.dial import Cell


def dial(
    model: o.ModelName = "nano",
    geometry: As = None,
    acceptance: Annotated[
        str, typer.Option("--acceptance", metavar="P,P,…", help="How often a guess is right if the one before was.")
    ] = "0,0.3,0.7,0.9",
    sequences: Annotated[
        str, typer.Option("--sequences", "-b", metavar="B,B,…", help="Texts at a time.")
    ] = "1,4,16,64",
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N,…", help="Fixed lengths to compare with.")
    ] = "1,2,4,8",
    generate: Annotated[int, typer.Option("--generate", "-n", min=4, help="Tokens to measure of each text.")] = 96,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after a warm-up.")] = 3,
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    plot: Plot = None,
    json: o.Json = False,
) -> None:
    """Measure drafts against none, at any acceptance and load.

    A drafter that knows the text guesses each token rightly as often as told. How many of its guesses run is decided as
    in any generation; the same texts are made without drafts and with fixed lengths, in turns. It says first how long
    it may take; Ctrl-C ends it with the cells that are measured.

    \b
    Examples:
      edgedec bench dial --as smollm-135m
      edgedec bench dial --as llama-1b --sequences 1,16 --acceptance 0,0.7 -r 1 --plot dial.png
    """
    from edgedec.bench.dial import DialBench
    from edgedec.bench.prompts import read_prompts
    from edgedec.runtime import available_cores

    counts, fixed = parse_rows(sequences, "--sequences"), parse_rows(lengths, "--lengths")
    rights = chances(acceptance)
    _plot.check(plot)
    threads = threads or available_cores()
    with progress_bar() as show:
        path = str(padded(model, geometry, show).path) if geometry else model
        opened = o.open_model(path, engine, threads, kv)
        bench = DialBench(opened, read_prompts(), max(counts), generate)
        cells, interrupted = bench.measure(
            rights, counts, fixed, repetitions, partial(show, "runs"), expect("bench dial")
        )
    report = {
        **describe(opened.bundle),
        "as": geometry,
        "engine": opened.runtime.name,
        "threads": threads,
        "kv": opened.runtime.new_cache(1).kv,
        "generate": generate,
        "repetitions": repetitions,
        "interrupted": interrupted,
        "cells": [_facts(cell) for cell in cells],
    }
    if plot is not None:
        _plot_dial.plot_dial(report, plot)
    if json:
        print_json(report)
    else:
        _show(report)
    if interrupted:
        print("edgedec bench dial: interrupted; these are the cells that were measured", file=sys.stderr)
        raise typer.Exit(130)


def chances(text: str) -> list[float]:
    """ "0,0.7" -> [0.0, 0.7]."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= p <= 1 for p in found):
        raise typer.BadParameter(f"--acceptance {text}: must be numbers from 0 to 1 with commas between")
    return sorted(set(found))


def _facts(cell: Cell) -> dict[str, Any]:
    return {
        "acceptance": cell.right,
        "sequences": cell.sequences,
        "tokens_per_s": cell.speeds,
        "over_off": cell.over_off,
        "best": cell.best,
        "over_best": cell.over_best,
    }


def _show(r: dict[str, Any]) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    print(
        f"{r['model']}: {r['bits_per_weight']:.2f} bits a weight, {r['engine']}, {plural(r['threads'], 'thread')}, "
        f"KV {r['kv']}; {r['generate']} tokens of each text, {plural(r['repetitions'], 'round')} after a warm-up"
    )
    cells = r["cells"]
    counts = sorted({cell["sequences"] for cell in cells})
    header = ("a guess is right", *(plural(n, "text") for n in counts))
    for key, title in (
        ("over_off", "Speed over no drafts (median of runs beside each other)"),
        ("over_best", "Speed over the best fixed length"),
        ("best", "Which that is"),
    ):
        print_table(_lines(cells, counts, key), header, title)
    slowest, off = min(cell["over_off"] for cell in cells), min(cell["over_best"] for cell in cells)
    print(f"\nleast: {slowest:.3f} of no drafts, {off:.3f} of the best fixed length")


def _lines(cells: list[dict[str, Any]], counts: list[int], key: str) -> list[list[str]]:
    by = {(cell["acceptance"], cell["sequences"]): cell[key] for cell in cells}
    rights = sorted({cell["acceptance"] for cell in cells})

    def text(value: object) -> str:
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

    return [[f"{right:g}", *(text(by.get((right, n))) for n in counts)] for right in rights]
