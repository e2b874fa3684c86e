"""`edgedec bench spec`: how much faster is each drafter than plain decoding?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _bench_sweep as _sweep
from edgedec.cli import _plot
from edgedec.cli import options as o
from edgedec.cli._bench_about import Plot, describe, expect, plural, spec_list
from edgedec.cli._bench_sweep import Sweep
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, print_table, progress_bar

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

_AS = "At the cost of a larger model: llama-1b, smollm-135m."
As = Annotated[str | None, typer.Option("--as", metavar="GEOMETRY", show_default=False, help=_AS)]


def spec(
    model: o.ModelName = "nano",
    geometry: As = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="JSON lines with category and prompt, or turns."),
    ] = None,
    drafters: Annotated[
        str, typer.Option(metavar="NAME,…", show_default=False, help="As --spec takes them; default: auto, and all.")
    ] = "",
    categories: Annotated[str, typer.Option(metavar="NAME,…", show_default=False, help="Of these only.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Prompts of a category; 0 takes all.")] = 0,
    generate: Annotated[int, typer.Option("--generate", "-n", min=2, help="Tokens to generate a prompt.")] = 128,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after a warm-up.")] = 3,
    temp: Annotated[float, typer.Option("--temp", "--temperature", min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed, reset for each prompt.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    engine: o.Engine = "auto",
    threads: o.Threads = 0,
    kv: o.KVFormat = None,
    sweep: Annotated[
        Sweep | None,
        typer.Option(show_default=False, help="Every exit with every length, beside what DEL chooses; no --drafters."),
    ] = None,
    exits: Annotated[
        str, typer.Option(metavar="N,…", show_default=False, help="Of --sweep exit: after these layers.")
    ] = "",
    lengths: Annotated[
        str, typer.Option(metavar="N,…", show_default=False, help="Of --sweep exit: so many drafted tokens.")
    ] = "",
    plot: Plot = None,
    json: o.Json = False,
) -> None:
    """Measure what each drafter gains, prompt by prompt.

    It says first how long it may take; Ctrl-C ends it with what was measured so far.
    Plain decoding and all drafters take turns on the same prompts; their answers must be the same. With --as
    the model is padded to the sizes of a larger one: its own text, at that one's cost (kept in the cache folder).

    \b
    Examples:
      edgedec bench spec
      edgedec bench spec --as smollm-135m --drafters auto --limit 1 -n 64 -r 1
      edgedec bench spec -m ./smol --prompts question.jsonl --drafters auto,copy,recycling --json
      edgedec bench spec --sweep exit --exits 2,4,6 --lengths 1,2,4 --categories story --plot sweep.png
    """
    from edgedec.bench.prompts import choose_prompts, read_prompts
    from edgedec.bench.speculation import Bench, tasks_of
    from edgedec.bench.speculation_results import results
    from edgedec.runtime import available_cores
    from edgedec.sampling import Sampling

    if sweep and drafters:
        raise typer.BadParameter("--sweep and --drafters: give one of them")
    if (exits or lengths) and not sweep:
        raise typer.BadParameter("--exits and --lengths: are of --sweep exit")
    chosen = choose_prompts(read_prompts(prompts), _list(categories), limit)
    tasks = tasks_of(chosen, Sampling(temperature=temp, seed=seed), seed)
    _plot.check(plot)
    threads = threads or available_cores()
    with progress_bar() as show:
        path = str(padded(model, geometry, show).path) if geometry else model
        opened = o.open_model(path, engine, threads, kv)
        bench = Bench(opened, tasks, generate, ignore_eos)
        grid = _sweep.exit_sweep(exits, lengths, opened.spec.n_layers) if sweep else None
        names = _sweep.names_of(grid) if grid else _drafters(drafters) or _every_drafter()
        measured = bench.measure(
            names,
            repetitions,
            not (drafters or grid),
            lambda done, total: show("runs", done, total),
            expect("bench spec"),
        )
        tasks = tasks[: measured.tasks]
    report = {
        **describe(opened.bundle),
        "as": geometry,
        "engine": opened.runtime.name,
        "threads": threads,
        "kv": opened.runtime.new_cache(1).kv,
        "generate": generate,
        "repetitions": repetitions,
        "temperature": temp,
        "seed": seed,
        "prompts": len(chosen),
        "tasks": [{"category": task.category, "begins": task.prompt.turns[0][:40]} for task in tasks],
        **results(measured, tasks),
    }
    if grid is not None:
        report["sweep"] = _sweep.swept(grid, report)
    for note in report["notes"]:
        print(f"edgedec bench spec: {note}", file=sys.stderr)
    if plot is not None:
        (_sweep.plot_sweep if grid else _plot.plot_spec)(report, plot)
    if json:
        print_json(report)
    else:
        (_sweep.show if grid else _show)(report, plot)
    if measured.interrupted:
        raise typer.Exit(130)


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _drafters(text: str) -> list[str]:
    """Plain decoding takes part anyway."""
    return [name for name in spec_list(text) if name != "off"]


def _every_drafter() -> list[str]:
    from edgedec.drafters import FAMILY

    return ["auto", *(name for name in FAMILY.names() if name != "off")]


def padded(model: str, geometry: str, show: Any, context: int = 0) -> Bundle:
    """The model at another's sizes, from the cache or made now; with so many positions, if it has fewer."""
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    padding = export_module("padding", "--as")
    source = Bundle.open(find(model))
    path = padding.padded_path(source, geometry, context)
    if not path.is_dir():
        print(f"edgedec bench: {source.manifest.name} as {geometry} is made once, in {path}", file=sys.stderr)
    found: Bundle = padding.padded(source, geometry, show, context)
    return found


def _show(r: dict[str, Any], plot: Path | None) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    sampled = f"temperature {r['temperature']:g}" if r["temperature"] else "greedy"
    print(
        f"{r['model']}: {r['bits_per_weight']:.2f} bits a weight, {r['engine']}, {plural(r['threads'], 'thread')}, "
        f"KV {r['kv']}; {plural(r['prompts'], 'prompt')}, {r['generate']} tokens each, {sampled}, "
        f"{plural(r['repetitions'], 'round')} after a warm-up"
    )
    print(f"plain decoding: {r['plain_tok_s']:.1f} tokens/s")
    drafters = r["drafters"]
    rows = [
        (
            name,
            f"{d['speed_ratio_mean']:.2f} ({d['speed_ratio_interval'][0]:.2f} to {d['speed_ratio_interval'][1]:.2f})",
            _geometric(d["not_copied"]),
            f"{d['speed_ratio_min']:.2f}",
            f"{d['tokens_per_call']:.2f}",
            f"{d['tok_s']:.1f}",
            f"{d['between_calls']:.1%}",
            _percent(d["accepted"], d["proposed"]),
            " ".join(f"{share:.2f}" for share in d["acceptance_by_depth"][:6]),
            "yes" if d["identical"] else f"no ({len(d['differ'])} differ)",
        )
        for name, d in drafters.items()
    ]
    drafted = ("between calls", "accepted", "by depth", "same text")
    header = ("drafter", "speed ratio", "not copies", "least", "tokens/call", "tokens/s", *drafted)
    print_table(
        rows, header, "Speed over plain decoding beside it: mean, geometric mean without copies (95% intervals)"
    )
    if drafters:
        categories = list(next(iter(drafters.values()))["by_category"])
        table = [(name, *(_pair(d["by_category"][c]) for c in categories)) for name, d in drafters.items()]
        print_table(table, ("drafter", *categories), "By category: mean speed ratio (least), tokens a call")
    for name, reason in r["skipped"].items():
        print(f"\nleft out {name}: {reason}")
    if plot is not None:
        print(f"plot: {plot}")


def _geometric(found: dict[str, Any]) -> str:
    if not found["prompts"]:
        return ""
    return f"{found['speed_ratio_geometric']:.2f} ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})"


def _pair(numbers: dict[str, float]) -> str:
    return f"{numbers['speed_ratio_mean']:.2f} ({numbers['speed_ratio_min']:.2f}) {numbers['tokens_per_call']:.2f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""
