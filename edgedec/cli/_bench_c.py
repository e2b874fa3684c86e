"""`edgedec bench c`: libedgedec beside the Python package and llama.cpp's programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import options as o
from edgedec.cli._bench_about import describe, plural
from edgedec.cli._bench_peers import write_weights
from edgedec.cli._bench_spec import As, padded
from edgedec.cli._output import print_json, print_table, progress_bar, size
from edgedec.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgedec.bench.c_library import TimedProgram
    from edgedec.bundle.folder import Bundle


def c(
    model: o.ModelName = "nano",
    geometry: As = None,
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
    from edgedec.bench.c_library import measure
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.runtime import available_cores

    with progress_bar(quiet=json) as show, TemporaryDirectory(prefix="edgedec-") as folder:
        bundle = padded(model, geometry, show) if geometry else Bundle.open(find(model))
        threads = threads or available_cores()
        arguments = [str(bundle.path), str(generate), str(threads), kv or bundle.manifest.kv_formats[0]]
        found, skipped = _programs(bundle, Path(folder), arguments)
        measure(found, repetitions, lambda done, total: show("turns", done, total))
    about = {"threads": threads, "generate": generate, "repetitions": repetitions, "kv": arguments[3]}
    engines = {program.name: program.to_json() for program in found}
    report = {**describe(bundle), **about, "engines": engines, "skipped": skipped}
    print_json(report) if json else _show(report)


def _programs(bundle: Bundle, folder: Path, arguments: list[str]) -> tuple[list[TimedProgram], dict[str, str]]:
    """Who takes part, and why the others do not."""
    from edgedec.bench import c_library

    found, skipped = [c_library.library(folder, arguments), c_library.python(arguments)], {}
    gguf, tokens, threads = folder / "weights.gguf", int(arguments[1]), int(arguments[2])
    others: dict[str, Callable[[], TimedProgram]] = {
        "llama.cpp (C)": lambda: c_library.llama_library(folder, gguf, tokens, threads),
        "llama.cpp": lambda: c_library.llama_cpp(gguf, tokens, threads),
    }
    for name, make in others.items():
        try:
            program = make()
            if not gguf.exists() and (reason := write_weights(bundle, gguf)):
                raise RuntimeUnavailable(reason)
            found.append(program)
        except RuntimeUnavailable as error:
            skipped[name] = str(error).removeprefix(f"{name}: ")
    return found, skipped


def _show(r: dict[str, Any]) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
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
