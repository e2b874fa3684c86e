"""Our engines beside others on the same weights."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench._about import parse_rows, plural, show_host
from edgedec.cli.bench._flags import Context, OutputFlags, RowList
from edgedec.cli.bench._plot import plot_peers

# What each is called here, and by the process that measures it.
NAMES = {"native": "native", "onnxruntime": "ort", "onnxruntime-genai": "genai", "llama.cpp": "llama.cpp"}


_SPEEDS = ("engine", "prefill tokens/s", "decode tokens/s", "with drafts", "load", "peak memory", "kv")
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def peers(
    *,
    model: o.ModelName = "nano",
    rows: RowList = "1,2,4,8,16,32",
    prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Tokens to read.")] = 512,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate, one a call.")] = 16,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Turns, after one to warm up.")] = 5,
    threads: o.Threads = 0,
    context: Context = 64,
    engines: Annotated[str, typer.Option(metavar="NAME,…", help="Engines that take part.")] = ",".join(NAMES),
    output: OutputFlags,
) -> None:
    """Measure our engines beside others on the same weights.

    \b
    Examples:
      edgedec bench peers -m ./smol
      edgedec bench peers -m ./smol --rows 1,4,16 -p 256 -r 5 -t 4 --plot peers.png
      edgedec bench peers -m ./smol --engines native,llama.cpp --json
    """
    from edgedec.bench.llama_weights import with_weights
    from edgedec.bench.peers import Rounds, compare, results
    from edgedec.bench.report import describe
    from edgedec.bench.row_costs import check_rows
    from edgedec.bench.timing import Config
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.runtime import available_cores

    names, rounds = _names(engines), Rounds(parse_rows(rows), context, repetitions)
    output.check()
    bundle = Bundle.open(find(model))
    bundle.require_decoder()
    check_rows(bundle.spec, rounds.counts, context)
    check_rows(bundle.spec, [generate + 1], prompt)
    threads = threads or available_cores()
    configs = {name: Config(NAMES[name], model, prompt, generate, threads) for name in names}
    with progress_bar(quiet=output.json) as show, with_weights(configs, bundle) as (ready, left_out):
        standings, skipped = compare(ready, rounds, left_out, partial(show, "turns"))
    about = {"threads": threads, "context": context, "prompt": prompt, "generate": generate, "repetitions": repetitions}
    report = {**describe(bundle), **about, **results(standings, rounds.counts), "skipped": skipped}
    output.write(report, _show, plot_peers)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(f"--engines {name!r}: must be some of {', '.join(NAMES)}")
    return names


def _show(r: dict[str, Any]) -> None:
    show_host(r)
    print(
        f"{r['model']}: {r['quantization'].get('body', '')} body, {r['bits_per_weight']:.2f} bits a weight, "
        f"{plural(r['threads'], 'thread')}; {r['prompt']} tokens read, {r['generate']} generated, "
        f"rows after {r['context']} tokens, {r['repetitions']} turns each after a warm-up"
    )
    engines = r["engines"]
    counts = list(engines[r["base"]]["rows"])
    costs = [(name, *(f"{e['rows'][k]:.3g}" for k in counts), e["logits"]) for name, e in engines.items()]
    print_table(costs, ("rows of a call", *counts, "logits"), "Median ms")
    print_table([(name, *_speeds(e), e["kv"]) for name, e in engines.items()], _SPEEDS, "Median")
    if r["ratios"]:
        header = (f"{r['base']} over", *(f"{k} rows" for k in counts), "prefill", "decode")
        ratios = [
            (name, *(_span(q["rows"][k]) for k in counts), _span(q["prefill"]), _span(q["decode"]))
            for name, q in r["ratios"].items()
        ]
        print_table(ratios, header, "Speed ratio, turns beside each other, median (min to max)")
    for name, reason in r["skipped"].items():
        print(f"\nskipped {name}: {reason}")


def _speeds(engine: dict[str, Any]) -> tuple[str, ...]:
    prefill, decode = engine["prefill_tok_s"], engine["decode_tok_s"]
    drafts = f"{engine['drafted_tok_s']:.1f}" if engine["drafted_tok_s"] else ""
    return f"{prefill:.1f}", f"{decode:.1f}", drafts, f"{engine['load_s']:.2f} s", f"{engine['peak_rss_mb']:.0f} MB"


def _span(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"
