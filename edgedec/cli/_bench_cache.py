"""`edgedec bench cache`: what do cache policies save, and what do they lose?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _bench_cache_peers as others
from edgedec.cli import _plot
from edgedec.cli import options as o
from edgedec.cli._bench_about import Plot, describe, expect, parse_rows, plural, spec_list
from edgedec.cli._bench_spec import As, padded
from edgedec.cli._output import duration, print_json, print_table, progress_bar
from edgedec.cli._plot_cache import plot_cache

if TYPE_CHECKING:
    import edgedec
    from edgedec.bench.cache_peers import Peer

_NAME = "bench cache"


def cache(
    model: o.ModelName = "nano",
    geometry: As = None,
    context: Annotated[
        str, typer.Option("--context", metavar="N,N,…", show_default=False, help="Costs after so many tokens.")
    ] = "",
    policies: Annotated[
        str, typer.Option(metavar="NAME,…", show_default=False, help="As --cache takes them; default: all.")
    ] = "",
    budgets: Annotated[
        str, typer.Option(metavar="X,X,…", help="Of quality: shares of the tokens.")
    ] = "0.1,0.2,0.3,0.5",
    tasks: Annotated[str, typer.Option(metavar="NAME,…", help="Of quality.")] = "story,copy,needle,pairs,keys",
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Stories; default: the model's own.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Cases of a task.")] = 4,
    steps: Annotated[
        bool, typer.Option("--steps", help="Costs of steps only: long prompts are filled in, not read.")
    ] = False,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds of costs.")] = 1,
    peers: Annotated[
        str, typer.Option(metavar="NAME,…", show_default=False, help="Other engines beside costs: llama.cpp.")
    ] = "",
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    plot: Plot = None,
    json: o.Json = False,
) -> None:
    """Measure what cache policies save and what they lose, beside the whole cache.

    Quality is measured on the model itself; with --context or --as also (with --as only) reading time, step time and
    memory after prompts of so many tokens. Ratios are of the whole cache over the policy. It says first how long it may
    take; Ctrl-C ends it with what was measured so far.

    \b
    Examples:
      edgedec bench cache
      edgedec bench cache --tasks copy --policies snapkv,h2o --limit 1
      edgedec bench cache --as smollm-135m --context 8192,32768 --kv int8 --json
      edgedec bench cache --as smollm-135m --context 8192,32768 --policies lserve,quest,sentencekv --steps
      edgedec bench cache --as smollm-135m --context 8192 --kv int8 --policies fastkv --peers llama.cpp
    """
    _plot.check(plot)
    contexts = parse_rows(context, "--context") if context else ()
    if geometry and not contexts:
        contexts = (2048, 8192)
    names, shares, chosen, beside = spec_list(policies), _shares(budgets), _tasks(tasks), others.checked(peers)
    with progress_bar() as show:
        path = str(padded(model, geometry, show, max(contexts) + 128).path) if geometry else model
        opened = o.open_model(path, engine, threads, kv)
        for name in names:
            opened.policy(name)  # what would be refused is refused now
        names = names or _usable(opened)
        report: dict[str, Any] = {
            **describe(opened.bundle),
            "as": geometry,
            "engine": opened.runtime.name,
            "threads": opened.runtime.capabilities.threads,
            "kv": opened.runtime.new_cache(1).kv,
            "lossy": "every policy: another text than with the whole cache",
            "interrupted": False,
        }
        if not geometry:
            told = "" if text is None else o.read_text(text)
            _quality(opened, chosen, limit, told, names, shares, show, report)
        if contexts and not report["interrupted"]:
            with others.opened(opened, path, beside, steps, report) as engines:
                _costs(opened, contexts, names, (repetitions, steps), engines, show, report)
    if plot is not None:
        plot_cache(report, plot)
    if json:
        print_json(report)
    else:
        _print(report, plot)
    if report["interrupted"]:
        raise typer.Exit(130)


def _usable(model: edgedec.Model) -> list[str]:
    """The policies that model and engine can use; the others are named with the reason."""
    from edgedec.errors import UsageError
    from edgedec.policies import FAMILY

    found = []
    for name in FAMILY.names():
        if name == "vision":
            continue  # drops rows of images, of which these texts have none
        try:
            model.policy(name)
            found.append(name)
        except UsageError as error:
            print(f"edgedec {_NAME}: left out: {error}", file=sys.stderr)
    return found


def _shares(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < share <= 1 for share in found):
        raise typer.BadParameter(f"--budgets {text}: must be numbers above 0, up to 1, with commas between")
    return found


def _tasks(text: str) -> list[str]:
    from edgedec.bench.cache_quality import TASKS

    found = [part.strip() for part in text.split(",")]
    for task in found:
        if task not in TASKS:
            raise typer.BadParameter(f"--tasks {text}: no task {task!r}; there are: {', '.join(TASKS)}")
    return found


def _quality(
    model: edgedec.Model,
    tasks: list[str],
    limit: int,
    text: str,
    names: list[str],
    shares: list[float],
    show: Any,
    report: dict[str, Any],
) -> None:
    from time import perf_counter

    from edgedec.bench.cache_quality import QualityBench

    bench, began = QualityBench(model, tasks, model.spec.context_length, limit, text), perf_counter()
    one = bench.measure([], [], lambda done, total: None)
    if not one.interrupted:
        expect(_NAME)((perf_counter() - began) * len(names) * len(shares))
        one = bench.measure(names, shares, lambda done, total: show("quality", done, total))
    report["quality"], report["interrupted"] = one.report(), one.interrupted


def _costs(
    model: edgedec.Model,
    contexts: tuple[int, ...],
    names: list[str],
    how: tuple[int, bool],
    engines: dict[str, Peer],
    show: Any,
    report: dict[str, Any],
) -> None:
    """how: rounds, and whether only steps are measured."""
    from edgedec.bench.cache_cost import CostBench

    bench = CostBench(model, contexts, names, how[1], engines)
    result = bench.measure(how[0], lambda done, total: show("costs", done, total), expect(_NAME))
    report["policies"], report["interrupted"] = result.report(), result.interrupted
    if engines:
        report["peers"] = result.peer_report()
    for name, reason in result.peers.left_out.items():
        others.leave_out(report, name, reason)


def _print(r: dict[str, Any], plot: Path | None) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    print(f"{r['model']}: {r['engine']}, {plural(r['threads'], 'thread')}, KV {r['kv']}. Lossy: {r['lossy']}")
    for task, found in r.get("quality", {}).items():
        whole, policies = found["full"]["1"], {name: values for name, values in found.items() if name != "full"}
        budgets = sorted({budget for values in policies.values() for budget in values}, key=float)
        rows = [
            (name, *(f"{values[b]:.3f}" if b in values else "" for b in budgets)) for name, values in policies.items()
        ]
        unit = "perplexity, lower is better" if task == "story" else "share that is right"
        header = ("policy", *("no budget" if b == "1" else f"{float(b):.0%}" for b in budgets))
        print_table(rows, header, f"{task}: {unit}; whole cache {whole:.3f}")
    costs = [
        (
            name,
            context,
            f"{f['prefill_ratio']:.2f}" if "prefill_ratio" in f else "",
            f"{f['step_ratio']:.2f}",
            duration(f["prefill_s"]) if "prefill_s" in f else "",
            f"{f['step_ms']:.2f}",
            f"{f['memory_mb']:.1f}",
        )
        for name, found in r.get("policies", {}).items()
        for context, f in found.items()
    ]
    if costs:
        header = ("policy", "context", "prefill ratio", "step ratio", "prefill", "step ms", "memory MB")
        print_table(costs, header, "Costs; ratios: whole cache over policy")
    others.show(r)
    if plot is not None:
        print(f"plot: {plot}")
