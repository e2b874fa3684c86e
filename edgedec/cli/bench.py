"""`edgedec bench`: speed, load time and memory of a bundle on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import options as o
from edgedec.cli._bench_about import describe
from edgedec.cli._bench_batch import batch
from edgedec.cli._bench_c import c
from edgedec.cli._bench_cache import cache
from edgedec.cli._bench_device import device
from edgedec.cli._bench_dial import dial
from edgedec.cli._bench_kernels import kernels
from edgedec.cli._bench_peers import peers
from edgedec.cli._bench_scaling import scaling
from edgedec.cli._bench_spec import spec
from edgedec.cli._bench_targets import targets_command
from edgedec.cli._output import print_json, print_table, progress_bar, size

if TYPE_CHECKING:
    from edgedec.bench.timing import Ratio, Spread, TimingResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)


app.command()(batch)
app.command()(c)
app.command()(cache)
app.command()(device)
app.command()(dial)
app.command()(kernels)
app.command()(peers)
app.command()(scaling)
app.command()(spec)


@app.callback(invoke_without_command=True, subcommand_metavar="[COMMAND]")
def bench(
    ctx: typer.Context,
    model: o.ModelName = "nano",
    prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Tokens to read.")] = 512,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate, one a call.")] = 128,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Runs, after one to warm up.")] = 5,
    threads: o.Threads = 0,
    kv: Annotated[
        list[o.KV] | None, typer.Option(show_default=False, help="Cache format; repeat it to compare.")
    ] = None,
    engine: o.Engine = "auto",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default=False, help="Another engine on the same folder: genai."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A.json B.json", show_default=False, help="Measure nothing: show two --json reports side by side."
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Measure speed, load time and memory of a bundle here.

    Decoding is one token a call; a column of its own is the same text with drafts (--spec auto). It is text after
    random tokens, which may repeat itself: what drafts gain on real prompts is `edgedec bench spec`.
    Each configuration runs in a process of its own, and they take turns.

    \b
    Examples:
      edgedec bench -m ./smol
      edgedec bench -m ./smol -p 512 -n 128 -r 5 -t 4 --peer genai
      edgedec bench -m ./smol --kv f32 --kv int8 --json > new.json; edgedec bench --compare old.json new.json
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options_before(ctx)
        return
    if compare is not None:
        _compare(*compare, json)
        return
    from edgedec.bench.timing import Config
    from edgedec.bench.timing import bench as measure
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.cli._bench_engines import PEERS

    unknown = [name for name in peer or [] if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"--peer {unknown[0]}: must be one of {', '.join(PEERS)}")
    formats = [kind.value for kind in kv] if kv else [None]
    configs = [Config(engine, model, prompt, generate, threads, kind) for kind in formats]
    configs += [Config(name, model, prompt, generate, threads) for name in peer or []]
    about = {**describe(Bundle.open(find(model))), "prompt": prompt, "generate": generate, "repetitions": repetitions}
    with progress_bar(quiet=json) as show:
        results, ratios = measure(configs, repetitions, lambda done, total: show("bench", done, total))
    if json:
        rows = [result.to_json() for result in results]
        print_json({**about, "results": rows, "ratios": [asdict(ratio) for ratio in ratios]})
    else:
        _show(about, results, ratios)


def _compare(a: Path, b: Path, json: bool) -> None:
    from edgedec.cli import _bench_compare

    found = _bench_compare.compare(_bench_compare.read_report(a), _bench_compare.read_report(b))
    if json:
        print_json(found)
    else:
        _bench_compare.show(a, b, found)


def _refuse_options_before(ctx: typer.Context) -> None:
    """Options of `bench` itself mean nothing to a command after it: an error, not silence."""
    given = [name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        verb = ctx.invoked_subcommand
        raise typer.BadParameter(
            f"--{given[0]}: options of {verb} stand after it, as in edgedec bench {verb} -m ./smol"
        )


def _show(about: dict[str, Any], results: list[TimingResult], ratios: list[Ratio]) -> None:
    host, formats = about["host"], about["quantization"]
    print(f"{host['cpu']}, {host['cores']} cores, {host['os']}")
    print(
        f"{about['model']}: {formats.get('body', '')} body, {about['bits_per_weight']:.2f} bits a weight; "
        f"{about['prompt']} tokens read, {about['generate']} generated, "
        f"{about['repetitions']} times after a warm-up"
    )
    rows = [
        (
            r.config.label,
            r.facts["kv"],
            r.facts["threads"],
            _speed(r.prefill),
            _speed(r.decode),
            _speed(r.drafted) if r.drafted else "",
            f"{r.load_s:.2f} s",
            size(r.peak_bytes),
        )
        for r in results
    ]
    header = ("engine", "kv", "threads", "prefill tokens/s", "decode tokens/s", "with drafts", "load", "peak memory")
    print_table(rows, header, "Median (min to max)")
    if ratios:
        first = results[0].config.label
        pairs = [(f"{first} / {r.over}", _ratio(r.prefill), _ratio(r.decode)) for r in ratios]
        print_table(pairs, ("speed ratio", "prefill", "decode"), "Side by side, median (min to max)")


def _speed(s: Spread) -> str:
    return f"{s.median:.1f} ({s.min:.1f} to {s.max:.1f}, spread {s.spread:.0%})"


def _ratio(s: Spread) -> str:
    return f"{s.median:.2f} ({s.min:.2f} to {s.max:.2f})"


app.command("targets")(targets_command(_show))
