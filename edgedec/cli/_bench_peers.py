"""`edgedec bench peers`: our engines beside others on the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _plot
from edgedec.cli import options as o
from edgedec.cli._bench_about import Context, Plot, RowList, describe, parse_rows, plural
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.extras import install_command

if TYPE_CHECKING:
    from edgedec.bench.peers import Standing
    from edgedec.bench.timing import Config, Spread
    from edgedec.bundle.folder import Bundle

# What each is called here, and by the process that measures it.
NAMES = {"native": "native", "onnxruntime": "ort", "onnxruntime-genai": "genai", "llama.cpp": "llama.cpp"}


def peers(
    model: o.ModelName = "nano",
    rows: RowList = "1,2,4,8,16,32",
    prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Tokens to read.")] = 512,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate, one a call.")] = 16,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Turns, after one to warm up.")] = 5,
    threads: o.Threads = 0,
    context: Context = 64,
    engines: Annotated[str, typer.Option(metavar="NAME,…", help="Engines that take part.")] = ",".join(NAMES),
    plot: Plot = None,
    json: o.Json = False,
) -> None:
    """Measure our engines beside others on the same weights.

    \b
    Examples:
      edgedec bench peers -m ./smol
      edgedec bench peers -m ./smol --rows 1,4,16 -p 256 -r 5 -t 4 --plot peers.png
      edgedec bench peers -m ./smol --engines native,llama.cpp --json
    """
    from edgedec.bench.peers import Rounds, compare
    from edgedec.bench.row_costs import check_rows
    from edgedec.bench.timing import Config
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.runtime import available_cores

    names, rounds = _names(engines), Rounds(parse_rows(rows), context, repetitions)
    _plot.check(plot)
    bundle = Bundle.open(find(model))
    check_rows(bundle.spec, rounds.counts, context)
    check_rows(bundle.spec, [generate + 1], prompt)
    threads = threads or available_cores()
    configs = {name: Config(NAMES[name], model, prompt, generate, threads) for name in names}
    with progress_bar(quiet=json) as show, _with_gguf(configs, bundle) as (ready, left_out):
        standings, skipped = compare(ready, rounds, left_out, lambda done, total: show("turns", done, total))
    about = {"threads": threads, "context": context, "prompt": prompt, "generate": generate, "repetitions": repetitions}
    report = {**describe(bundle), **about, **_results(standings, rounds.counts), "skipped": skipped}
    if plot is not None:
        _plot.plot_peers(report, plot)
    if json:
        print_json(report)
    else:
        _show(report, plot)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(f"--engines {name!r}: must be some of {', '.join(NAMES)}")
    return names


@contextmanager
def _with_gguf(configs: Mapping[str, Config], bundle: Bundle) -> Iterator[tuple[dict[str, Config], dict[str, str]]]:
    """The configurations, llama.cpp's with the weights as it reads them while they are measured; or without
    it, and why."""
    name = "llama.cpp"
    others = {other: config for other, config in configs.items() if other != name}
    if name not in configs:
        yield others, {}
        return
    with TemporaryDirectory(prefix="edgedec-") as folder:
        path = Path(folder) / "weights.gguf"
        reason = convert(bundle, path)
        if reason is None:
            yield {other: replace(c, gguf=str(path)) if other == name else c for other, c in configs.items()}, {}
        else:
            yield others, {name: reason}


def convert(bundle: Bundle, path: Path) -> str | None:
    """Write the weights for llama.cpp's library; why not, if not."""
    if find_spec("llama_cpp") is None:
        return f"needs llama-cpp-python: {install_command('peers')}"
    return write_weights(bundle, path)


def write_weights(bundle: Bundle, path: Path) -> str | None:
    """The weights as llama.cpp reads them; why not, if not."""
    from edgedec.errors import RuntimeUnavailable

    try:
        import_module("edgedec.export.gguf").write_gguf(bundle, path)
    except (RuntimeUnavailable, OSError) as error:
        return str(error)
    return None


def _results(standings: Mapping[str, Standing], counts: Sequence[int]) -> dict[str, Any]:
    """Everyone's numbers, and the speed of the first over each of the others'."""
    first, *others = standings
    return {
        "engines": {name: standing.to_json(counts) for name, standing in standings.items()},
        "base": first,
        "ratios": {name: _ratios(standings[first].faster_than(standings[name])) for name in others},
    }


def _ratios(found: Mapping[str, Spread]) -> dict[str, Any]:
    """{"prefill", "decode", "rows": {"1": …}}, each with median, min, max, spread."""
    rows = {part: asdict(spread) for part, spread in found.items() if part.isdecimal()}
    return {part: asdict(spread) for part, spread in found.items() if part not in rows} | {"rows": rows}


def _show(r: dict[str, Any], plot: Path | None) -> None:
    print(f"{r['host']['cpu']}, {r['host']['cores']} cores, {r['host']['os']}")
    print(
        f"{r['model']}: {r['quantization'].get('body', '')} body, {r['bits_per_weight']:.2f} bits a weight, "
        f"{plural(r['threads'], 'thread')}; {r['prompt']} tokens read, {r['generate']} generated, "
        f"rows after {r['context']} tokens, {r['repetitions']} turns each after a warm-up"
    )
    engines = r["engines"]
    counts = list(engines[r["base"]]["rows"])
    costs = [(name, *(f"{e['rows'][k]:.3g}" for k in counts), e["logits"]) for name, e in engines.items()]
    print_table(costs, ("rows of a call", *counts, "logits"), "Median ms")
    speeds = [(name, *_speeds(e), e["kv"]) for name, e in engines.items()]
    header: tuple[str, ...] = (
        "engine",
        "prefill tokens/s",
        "decode tokens/s",
        "with drafts",
        "load",
        "peak memory",
        "kv",
    )
    print_table(speeds, header, "Median")
    if r["ratios"]:
        header = (f"{r['base']} over", *(f"{k} rows" for k in counts), "prefill", "decode")
        ratios = [
            (name, *(_span(q["rows"][k]) for k in counts), _span(q["prefill"]), _span(q["decode"]))
            for name, q in r["ratios"].items()
        ]
        print_table(ratios, header, "Speed ratio, turns beside each other, median (min to max)")
    for name, reason in r["skipped"].items():
        print(f"\nskipped {name}: {reason}")
    if plot is not None:
        print(f"plot: {plot}")


def _speeds(engine: dict[str, Any]) -> tuple[str, ...]:
    prefill, decode = engine["prefill_tok_s"], engine["decode_tok_s"]
    drafts = f"{engine['drafted_tok_s']:.1f}" if engine["drafted_tok_s"] else ""
    return f"{prefill:.1f}", f"{decode:.1f}", drafts, f"{engine['load_s']:.2f} s", f"{engine['peak_rss_mb']:.0f} MB"


def _span(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"
