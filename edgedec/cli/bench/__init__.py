"""`edgedec bench`: speed, load time and memory of a bundle on this machine.

Each file of this folder without an underscore is a benchmark of its own, `edgedec bench NAME`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, progress_bar
from edgedec.plugins import Family

if TYPE_CHECKING:
    from edgedec.bench.timing import Config

FAMILY: Family[Any] = Family("edgedec.cli.bench", "benchmark", where="edgedec bench")


class Benchmarks(TyperGroup):
    """The benchmarks of the folder, each imported when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(FAMILY.names())  # type: ignore[assignment]  # names, for suggestions only

    def list_commands(self, ctx: Any) -> list[str]:
        return list(FAMILY.names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in FAMILY:
            return None
        command = typer.main.get_command(FAMILY.file(cmd_name).app)
        command.name = cmd_name
        return command


app = typer.Typer(cls=Benchmarks, add_completion=False, rich_markup_mode=None)


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
        _show_two(*compare, json)
        return
    from edgedec.bench.timing import Config

    _check_peers(peer or [])
    formats = [kind.value for kind in kv] if kv else [None]
    configs = [Config(engine, model, prompt, generate, threads, kind) for kind in formats]
    configs += [Config(name, model, prompt, generate, threads) for name in peer or []]
    _measure(configs, repetitions, json)


def _check_peers(names: list[str]) -> None:
    from edgedec.bench.engines import PEERS

    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"--peer {unknown[0]}: must be one of {', '.join(PEERS)}")


def _measure(configs: list[Config], repetitions: int, json: bool) -> None:
    """Run the configurations in turns, and print the report."""
    from edgedec.bench.report import describe
    from edgedec.bench.timing import bench as measure
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.cli.bench._speeds import show_speeds

    first = configs[0]
    facts = {"prompt": first.prompt, "generate": first.generate, "repetitions": repetitions}
    bundle = Bundle.open(find(first.model))
    bundle.require_decoder()
    about = {**describe(bundle), **facts}
    with progress_bar(quiet=json) as show:
        results, ratios = measure(configs, repetitions, lambda done, total: show("bench", done, total))
    if json:
        rows = [result.to_json() for result in results]
        print_json({**about, "results": rows, "ratios": [asdict(ratio) for ratio in ratios]})
    else:
        show_speeds(about, results, ratios)


def _show_two(a: Path, b: Path, json: bool) -> None:
    from edgedec.cli.bench import _compare

    found = _compare.compare(_compare.read_report(a), _compare.read_report(b))
    if json:
        print_json(found)
    else:
        _compare.show(a, b, found)


def _refuse_options_before(ctx: typer.Context) -> None:
    """Options of `bench` itself mean nothing to a command after it: an error, not silence."""
    given = [name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        verb = ctx.invoked_subcommand
        raise typer.BadParameter(
            f"--{given[0]}: options of {verb} stand after it, as in edgedec bench {verb} -m ./smol"
        )
