"""`edgedec bench batch`: the speed of many texts at a time against one after another."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import options as o
from edgedec.cli._bench_about import describe, expect, parse_rows, plural, spec_list
from edgedec.cli._bench_peers import write_weights
from edgedec.cli._bench_spec import As, padded
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.extras import install_command

if TYPE_CHECKING:
    from edgedec.bench.batch import BatchMeasured, BatchWork, Contestant
    from edgedec.model import Model

PEER = "llama.cpp"
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME", show_default=False, help="Another engine on the same weights: llama.cpp."),
]


def batch(
    model: o.ModelName = "nano",
    geometry: As = None,
    sizes: Annotated[str, typer.Option("--sizes", "-b", metavar="B,B,…", help="Texts at a time.")] = "1,4,16,64",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many texts to generate.")] = 64,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate a prompt.")] = 64,
    specs: Annotated[str, typer.Option("--spec", metavar="HOW,…", help="How to draft.")] = "off,auto",
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after a warm-up.")] = 3,
    peer: Peers = None,
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    json: o.Json = False,
) -> None:
    """Measure what batching gains.

    It says first how long it may take; Ctrl-C ends it with the turns that are whole.

    The same texts are generated one after another and in batches, in turns; they must be the same texts, or the exit
    code is 1. With --as the model is padded to the sizes of a larger one. llama.cpp is its llama-server if that is on
    PATH, and llama-cpp-python otherwise.

    \b
    Examples:
      edgedec bench batch
      edgedec bench batch --as smollm-135m --sizes 1,16 --spec off -t 1
      edgedec bench batch --prompts 1000 --peer llama.cpp --json
    """
    from edgedec.bench.batch import Ours, measure, work_of
    from edgedec.bench.prompts import read_prompts
    from edgedec.runtime import available_cores

    counts, names = parse_rows(sizes, "--sizes"), spec_list(specs)
    if unknown := [name for name in peer or [] if name != PEER]:
        raise typer.BadParameter(f"--peer {unknown[0]}: must be {PEER}")
    if not names:
        raise typer.BadParameter("--spec: name one or more, as in off,auto")
    threads = threads or available_cores()
    with progress_bar() as show:
        path = str(padded(model, geometry, show).path) if geometry else model
        opened = o.open_model(path, engine, threads, kv)
        work = work_of(opened, read_prompts(), prompts, generate)
        ours = {name: Ours(opened, name) for name in names}
        with _peers(opened, work, threads) if peer else _no_peers() as (peers, skipped):
            found = measure(ours, peers, counts, work, repetitions, partial(show, "turns"), expect("bench batch"))
    found.skipped.update(skipped)
    report = {
        **describe(opened.bundle),
        "as": geometry,
        "engine": opened.runtime.name,
        "batch_invariant": opened.runtime.capabilities.batch_invariant,
        "threads": threads,
        "kv": opened.runtime.new_cache(1).kv,
        "prompts": prompts,
        "prompt_tokens": [len(min(work.prompts, key=len)), len(max(work.prompts, key=len))],
        "generate": generate,
        "repetitions": repetitions,
        "interrupted": found.interrupted,
        "sizes": list(counts),
        **_results(found, names),
    }
    if json:
        print_json(report)
    else:
        _show(report)
    if not found.identical and opened.runtime.capabilities.batch_invariant:
        print("edgedec bench batch: texts are not what they are alone", file=sys.stderr)
        raise typer.Exit(1)
    if found.interrupted:
        print("edgedec bench batch: interrupted; these are the turns that were whole", file=sys.stderr)
        raise typer.Exit(130)


@contextmanager
def _no_peers() -> Iterator[tuple[dict[str, Contestant], dict[str, str]]]:
    yield {}, {}


@contextmanager
def _peers(model: Model, work: BatchWork, threads: int) -> Iterator[tuple[dict[str, Contestant], dict[str, str]]]:
    """llama.cpp on the same weights, while it is measured; or no peer, and why."""
    from edgedec.bench.batch_peers import SERVER, LlamaDecode, LlamaServer
    from edgedec.bench.timing import BenchWorker, Config
    from edgedec.errors import EdgedecError

    binary = which(SERVER)
    if binary is None and find_spec("llama_cpp") is None:
        yield {}, {PEER: f"needs {SERVER} on PATH, or llama-cpp-python: {install_command('peers')}"}
        return
    with ExitStack() as stack:
        path = Path(stack.enter_context(TemporaryDirectory(prefix="edgedec-"))) / "weights.gguf"
        if reason := write_weights(model.bundle, path):
            yield {}, {PEER: reason}
            return
        if binary is not None:
            yield {LlamaServer.name: LlamaServer(binary, str(path), threads)}, {}
            return
        longest = work.longest - work.tokens
        config = Config(PEER, str(model.bundle.path), longest, work.tokens, threads, gguf=str(path))
        try:
            worker = stack.enter_context(BenchWorker(config))
        except EdgedecError as error:
            yield {}, {PEER: str(error)}
            return
        yield {LlamaDecode.name: LlamaDecode(worker)}, {}


def _results(found: BatchMeasured, names: Sequence[str]) -> dict[str, Any]:
    """Speeds by size, 0 for the loop; ours over the loop beside it, and over each peer at the same size."""
    from edgedec.bench.batch import SEQUENTIAL

    def ratios(name: str, sizes: Iterable[int], other: str, base: int | None = None) -> dict[str, Any]:
        return {str(size): asdict(found.ratio(name, size, other, size if base is None else base)) for size in sizes}

    speeds = {
        name: {str(size): asdict(found.speed(name, size)) for size in sorted(by)} for name, by in found.speeds.items()
    }
    peers = {name: sorted(by) for name, by in found.speeds.items() if name not in names}
    return {
        "tokens_per_s": speeds,
        "over_sequential": {name: ratios(name, sorted(found.speeds[name]), name, SEQUENTIAL) for name in names},
        "over_peers": {peer: {name: ratios(name, sizes, peer) for name in names} for peer, sizes in peers.items()},
        "identical": found.identical,
        "differ": {name: {str(size): n for size, n in by.items() if n} for name, by in found.differ.items()},
        "skipped": found.skipped,
    }


def _show(r: dict[str, Any]) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    shortest, longest = r["prompt_tokens"]
    print(
        f"{r['model']}: {r['bits_per_weight']:.2f} bits a weight, {r['engine']}, {plural(r['threads'], 'thread')}, "
        f"KV {r['kv']}; {plural(r['prompts'], 'prompt')} of {shortest} to {longest} tokens, "
        f"{r['generate']} tokens each, greedy, {plural(r['repetitions'], 'round')} after a warm-up"
    )
    sizes = list(map(str, (0, *r["sizes"])))
    header = ("texts at a time", "one by one", *sizes[1:])
    print_table(_lines(r["tokens_per_s"], sizes, ".0f"), header, "Tokens/s, reading included: median (min to max)")
    title = "Speed over one by one, runs of a round beside each other: median (min to max)"
    print_table(_lines(r["over_sequential"], sizes, ".2f"), header, title)
    for peer, ratios in r["over_peers"].items():
        print_table(_lines(ratios, sizes[1:], ".2f"), ("texts at a time", *sizes[1:]), f"Speed over {peer}")
    others = sum(n for by in r["differ"].values() for n in by.values())
    print(f"\nidentical: {'yes' if r['identical'] else f'no ({others} differ)'}")
    for name, reason in r["skipped"].items():
        print(f"left out {name}: {reason}")


def _lines(spreads: Mapping[str, Mapping[str, dict[str, float]]], sizes: Sequence[str], form: str) -> list[list[str]]:
    """A line for everyone, a cell for each size."""

    def cell(s: dict[str, float] | None) -> str:
        return "" if s is None else f"{s['median']:{form}} ({s['min']:{form}} to {s['max']:{form}})"

    return [[name, *(cell(by.get(size)) for size in sizes)] for name, by in spreads.items()]
