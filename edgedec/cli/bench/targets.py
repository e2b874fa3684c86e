"""Every engine that is here, on every device of it, on one bundle, in one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli.bench._speeds import show_speeds
from edgedec.errors import RuntimeUnavailable

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def targets(
    model: o.ModelName = "nano",
    prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Tokens to read.")] = 128,
    generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate, one a call.")] = 64,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Runs, after one to warm up.")] = 5,
    threads: o.Threads = 0,
    trust_code: o.TrustCode = False,
    json: o.Json = False,
) -> None:
    """Measure every engine that is here on one bundle, in turns: ort on each of its devices.

    \b
    Examples:
      edgedec bench targets -m ./smol
      edgedec bench targets -m ./smol --trust-code -t 2 --json
    """
    from edgedec.bench.engines_here import engines_here
    from edgedec.bench.report import describe
    from edgedec.bench.timing import Config, bench
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    bundle = Bundle.open(find(model))
    bundle.require_decoder()
    present, absent = engines_here(bundle, trust_code)
    configs = [
        Config(engine, model, prompt, generate, threads, trust_code=trust_code, device=device)
        for engine, device in present
    ]
    about = {**describe(bundle), "prompt": prompt, "generate": generate, "repetitions": repetitions}
    with progress_bar(quiet=json) as show:
        results, ratios = bench(
            configs,
            repetitions,
            lambda done, total: show("bench", done, total),
            lambda config, why: absent.update({config.label: why}),
        )
    if not results:
        raise RuntimeUnavailable(f"{bundle.path}: no engine can open it here; see edgedec targets")
    if json:
        rows = [result.to_json() for result in results]
        print_json({**about, "results": rows, "ratios": [asdict(ratio) for ratio in ratios], "absent": absent})
        return
    show_speeds(about, results, ratios)
    print_table(list(absent.items()), ("not here", "why"), "Not measured")
