"""The speed of many texts at a time, beside one after another."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._about import end_if_interrupted, expect, parse_rows, plural, show_header, spec_list
from edgedec.cli.bench._flags import Rounds, RuntimeFlags, SubjectFlags

if TYPE_CHECKING:
    from edgedec.bench.batch import BatchMeasured, BatchWork, Contestant
    from edgedec.model import Model

    Others = AbstractContextManager[tuple[dict[str, Contestant], dict[str, str]]]

Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME", show_default=False, help="Another engine on the same weights: llama.cpp."),
]
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def batch(
    *,
    subject: SubjectFlags,
    sizes: Annotated[str, typer.Option("--sizes", "-b", metavar="B,B,…", help="Texts at a time.")] = "1,4,16,64",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many texts to generate.")] = 64,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate a prompt.")] = 64,
    specs: Annotated[str, typer.Option("--spec", metavar="HOW,…", help="How to draft.")] = "off,auto",
    repetitions: Rounds = 3,
    peer: Peers = None,
    served: Annotated[
        bool, typer.Option("--served", help="Also as streams of edgedec serve, to one client on this machine.")
    ] = False,
    machine: RuntimeFlags,
    json: o.Json = False,
) -> None:
    """Measure what batching gains.

    It says first how long it may take; Ctrl-C ends it with the turns that are whole.

    The same texts are generated one after another and in batches; they must be the same texts, or the exit code is
    1. Ways to draft are compared side by side, a step of each in turn. With --as the model is padded to the sizes
    of a larger one. llama.cpp is its llama-server if that is on PATH, and llama-cpp-python otherwise.

    \b
    Examples:
      edgedec bench batch
      edgedec bench batch --as smollm-135m --sizes 1,16 --spec off -t 1
      edgedec bench batch --prompts 1000 --peer llama.cpp --json
    """
    from edgedec.bench.batch import Ours, measure, work_of
    from edgedec.bench.prompts import read_prompts
    from edgedec.bench.report import describe_opened
    from edgedec.bench.served import Served

    counts, names = parse_rows(sizes, "--sizes"), spec_list(specs)
    _check(peer or [], names)
    threads = machine.used
    with progress_bar() as show:
        path = subject.path(show)
        opened = machine.open(path)
        work = work_of(opened, read_prompts(), prompts, generate)
        ours = {name: Ours(opened, name) for name in names}
        servers = {f"serve {name}": name for name in names} if served else {}
        with _others(opened, work, threads, peer or []) as (peers, skipped):
            peers |= {name: Served(path, spec, machine.words) for name, spec in servers.items()}
            found = measure(ours, peers, counts, work, repetitions, partial(show, "turns"), expect("bench batch"))
    found.skipped.update(skipped)
    report = {
        **describe_opened(opened, threads),
        "as": subject.geometry,
        "batch_invariant": opened.runtime.capabilities.batch_invariant,
        "prompts": prompts,
        "prompt_tokens": [len(min(work.prompts, key=len)), len(max(work.prompts, key=len))],
        "generate": generate,
        "repetitions": repetitions,
        "interrupted": found.interrupted,
        "sizes": list(counts),
        **found.report(names, servers),
    }
    print_json(report) if json else _show(report)
    _end(found, opened)


def _others(model: Model, work: BatchWork, threads: int, names: Sequence[str]) -> Others:
    """The other engines, and why some take no part."""
    from edgedec.bench.batch_peers import llama_contestant

    return llama_contestant(model, work, threads) if names else nullcontext(({}, {}))


def _check(peers: Sequence[str], specs: Sequence[str]) -> None:
    from edgedec.bench.llama_weights import LLAMA

    if unknown := [name for name in peers if name != LLAMA]:
        raise typer.BadParameter(f"--peer {unknown[0]}: must be {LLAMA}")
    if not specs:
        raise typer.BadParameter("--spec: name one or more, as in off,auto")


def _end(found: BatchMeasured, model: Model) -> None:
    """Leave with 1 if texts differ that must not."""
    if not found.identical and model.runtime.capabilities.batch_invariant:
        print("edgedec bench batch: texts are not what they are alone", file=sys.stderr)
        raise typer.Exit(1)
    end_if_interrupted(found.interrupted, "edgedec bench batch: interrupted; these are the turns that were whole")


def _show(r: dict[str, Any]) -> None:
    shortest, longest = r["prompt_tokens"]
    show_header(
        r,
        f"{plural(r['prompts'], 'prompt')} of {shortest} to {longest} tokens, "
        f"{r['generate']} tokens each, greedy, {plural(r['repetitions'], 'round')} after a warm-up",
    )
    sizes = list(map(str, (0, *r["sizes"])))
    header = ("texts at a time", "one by one", *sizes[1:])
    print_table(_lines(r["tokens_per_s"], sizes, ".0f"), header, "Tokens/s, reading included: median (min to max)")
    title = "Speed over one by one, runs of a round beside each other: median (min to max)"
    print_table(_lines(r["over_sequential"], sizes, ".2f"), header, title)
    if r["over_first"]:
        title = f"Speed over {next(iter(r['tokens_per_s']))}, a step of each in turn: median (min to max)"
        print_table(_lines(r["over_first"], sizes, ".3f"), header, title)
    for peer, ratios in r["over_peers"].items():
        print_table(_lines(ratios, sizes[1:], ".2f"), ("texts at a time", *sizes[1:]), f"Speed over {peer}")
    served = r["served_over_batch"]
    if served:
        rows = [
            *([f"{name} / batch", *line] for name, *line in _lines(served, sizes[1:], ".2f")),
            *([f"{name}, p95 in calls", *line] for name, *line in _lines(r["served_p95_calls"], sizes[1:], ".2f")),
        ]
        print_table(rows, ("streams", *sizes[1:]), "Server: speed over the batch; time between tokens")
    others = sum(n for by in r["differ"].values() for n in by.values())
    print(f"\nidentical: {'yes' if r['identical'] else f'no ({others} differ)'}")
    for name, reason in r["skipped"].items():
        print(f"left out {name}: {reason}")


def _lines(spreads: Mapping[str, Mapping[str, dict[str, float]]], sizes: Sequence[str], form: str) -> list[list[str]]:
    """A line for everyone, a cell for each size."""

    def cell(s: dict[str, float] | None) -> str:
        return "" if s is None else f"{s['median']:{form}} ({s['min']:{form}} to {s['max']:{form}})"

    return [[name, *(cell(by.get(size)) for size in sizes)] for name, by in spreads.items()]
