"""The speed and start-up of libedgedec, beside the Python package and llama.cpp's programs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, progress_bar, size
from edgedec.cli.bench._about import plural, show_host
from edgedec.cli.bench._flags import SubjectFlags

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def c(
    *,
    subject: SubjectFlags,
    generate: Annotated[int, typer.Option("--generate", "-n", min=2, help="Tokens to generate, one a call.")] = 200,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Turns, after one to warm up.")] = 5,
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    json: o.Json = False,
) -> None:
    """Measure libedgedec in a C program, the Python package, and llama.cpp: its library if llama-cpp-python is
    installed, its programs if they are on PATH.

    Start-up is from the start of a process to its first token; every turn is a process of its own.

    \b
    Examples:
      edgedec bench c
      edgedec bench c --as smollm-135m -n 64 -r 3 -t 2
      edgedec bench c -m ./smol --json
    """
    from edgedec.bench.c_library import measure, programs_for
    from edgedec.bench.report import describe
    from edgedec.runtime import available_cores

    with progress_bar(quiet=json) as show, TemporaryDirectory(prefix="edgedec-") as folder:
        bundle = subject.bundle(show)
        threads = threads or available_cores()
        arguments = [str(bundle.path), str(generate), str(threads), kv or bundle.manifest.kv_formats[0]]
        found, skipped = programs_for(bundle, Path(folder), arguments)
        measure(found, repetitions, lambda done, total: show("turns", done, total))
    about = {"threads": threads, "generate": generate, "repetitions": repetitions, "kv": arguments[3]}
    engines = {program.name: program.to_json() for program in found}
    report = {**describe(bundle), **about, "engines": engines, "skipped": skipped}
    print_json(report) if json else _show(report)


def _show(r: dict[str, Any]) -> None:
    show_host(r)
    print(
        f"{r['model']}: {r['bits_per_weight']:.2f} bits a weight, KV {r['kv']}, {plural(r['threads'], 'thread')}; "
        f"{r['generate']} tokens, {plural(r['repetitions'], 'turn')} each after a warm-up"
    )
    rows = [(name, *_cells(engine)) for name, engine in r["engines"].items()]
    header = ("engine", "first token ms", "tokens/s", "peak MB", "outside of forward calls", "library")
    print_table(rows, header, "Median (least to most)")
    for name, reason in r["skipped"].items():
        print(f"\nskipped {name}: {reason}")


def _cells(engine: dict[str, Any]) -> tuple[str, ...]:
    spans = [
        f"{s['median']:.{digits}f} ({s['min']:.{digits}f} to {s['max']:.{digits}f})"
        for s, digits in ((engine["first_token_ms"], 1), (engine["tokens_per_second"], 1), (engine["peak_mb"], 0))
    ]
    outside = "" if engine["overhead"] is None else f"{engine['overhead']:.2%}"
    return (*spans, outside, "" if engine["bytes"] is None else size(engine["bytes"]))
