"""Drafting beside not drafting, at any acceptance and any load."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench._about import end_if_interrupted, expect, parse_rows, plural, show_header
from edgedec.cli.bench._flags import OutputFlags, Prompts, Rounds, RuntimeFlags, SubjectFlags
from edgedec.cli.bench._plot_dial import plot_dial

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def dial(
    *,
    subject: SubjectFlags,
    acceptance: Annotated[
        str, typer.Option("--acceptance", metavar="P,P,…", help="How often a guess is right if the one before was.")
    ] = "0,0.3,0.7,0.9",
    sequences: Annotated[
        str, typer.Option("--sequences", "-b", metavar="B,B,…", help="Texts at a time.")
    ] = "1,4,16,64",
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N,…", help="Fixed lengths to compare with.")
    ] = "1,2,4,8",
    prompts: Prompts = "own",
    generate: Annotated[int, typer.Option("--generate", "-n", min=4, help="Tokens to measure of each text.")] = 96,
    repetitions: Rounds = 3,
    machine: RuntimeFlags,
    output: OutputFlags,
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
    from edgedec.bench.prompts import prompts_named
    from edgedec.bench.report import describe_opened

    counts, fixed = parse_rows(sequences, "--sequences"), parse_rows(lengths, "--lengths")
    rights, texts = chances(acceptance), prompts_named(prompts)
    output.check()
    with progress_bar() as show:
        opened = machine.open(subject.path(show))
        bench = DialBench(opened, texts, max(counts), generate)
        cells, interrupted = bench.measure(
            rights, counts, fixed, repetitions, partial(show, "runs"), expect("bench dial")
        )
    report = {
        **describe_opened(opened, machine.used),
        "as": subject.geometry,
        "generate": generate,
        "repetitions": repetitions,
        "interrupted": interrupted,
        "cells": [cell.to_json() for cell in cells],
    }
    output.write(report, _show, plot_dial)
    end_if_interrupted(interrupted, "edgedec bench dial: interrupted; these are the cells that were measured")


def chances(text: str) -> list[float]:
    """ "0,0.7" -> [0.0, 0.7]."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= p <= 1 for p in found):
        raise typer.BadParameter(f"--acceptance {text}: must be numbers from 0 to 1 with commas between")
    return sorted(set(found))


def _show(r: dict[str, Any]) -> None:
    rounds = f"{plural(r['repetitions'], 'round')} after a warm-up"
    show_header(r, f"{r['generate']} tokens of each text, {rounds}")
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
