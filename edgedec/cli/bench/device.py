"""Steps of a GPU engine by rows, prefill, share of the memory's rate, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import parse_rows
from edgedec.cli.bench._flags import RowList

if TYPE_CHECKING:
    from edgedec.bench.device import DeviceCosts
    from edgedec.spec import ModelSpec


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def device(
    model: o.ModelName = "nano",
    engine: o.Engine = "auto",
    place: o.DeviceWord = "",
    kv: o.KVFormat = None,
    rows: RowList = "1,2,4,8,16,32,64",
    context: Annotated[int, typer.Option(min=1, help="Tokens before the rows of a step.")] = 256,
    prefill: Annotated[int, typer.Option(min=1, help="Tokens of the text that is read.")] = 4096,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Steps, after one to warm up.")] = 20,
    json: o.Json = False,
) -> None:
    """Measure what a step costs on a GPU, beside what its memory and its tensor cores can do.

    \b
    Examples:
      edgedec bench device -m ./smol
      edgedec bench device -m ./smol --device cuda:1
      edgedec bench device -m ./smol --rows 1,8,64 --context 1024 --json
    """
    from edgedec.bench.device import StepCost, measure

    counts = parse_rows(rows)
    # Without either, the GPU that most of this is about.
    engine = "cuda" if (engine, place) == ("auto", "") else engine
    opened = o.open_model(model, engine, 0, kv, device=place)
    stored = sum(t.stored_bytes for name, t in opened.bundle.manifest.tensors.items() if _is_read(name, opened.spec))
    total, done = 2 * len(counts), 0
    with progress_bar(quiet=json) as show:

        def after(step: StepCost) -> None:
            nonlocal done
            done += 1
            show("bench", done, total)

        found = measure(opened.runtime, stored, counts, context, prefill, repetitions, after)
    if json:
        print_json(found.to_json())
    else:
        show_costs(found)


def _is_read(name: str, spec: ModelSpec) -> bool:
    """Whether every step reads the whole tensor; of an embedding that is not the head it reads one row."""
    return name != "lookup" and (name != "embed" or spec.tied)


def show_costs(found: DeviceCosts) -> None:
    """A table of steps."""
    print("\n".join([f"{found.device}: {found.weight_bytes / 1e6:.0f} MB of weights a step", *found.used]))
    if not found.memory_rate:
        print("Shares are not known: no figures of this device.")
    elif not found.tensor_rate:
        print(f"Shares are of {found.memory_rate / 1e9:,.0f} GB/s of memory; of prefill they are not known.")
    lines = [
        [
            step.what,
            str(step.rows),
            f"{step.seconds * 1e3:.3f} ms",
            f"{step.clock * 1e3:.3f} ms",
            str(step.launches),
            f"{step.rows / step.seconds:,.0f}",
            f"{step.share:.0%}" if step.share else "",
        ]
        for step in found.steps
    ]
    print_table(lines, ["step", "rows", "GPU", "clock", "launches", "tokens/s", "share"])
