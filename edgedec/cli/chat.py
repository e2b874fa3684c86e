"""`edgedec chat`: turns, with the model's own chat template."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from edgedec.cli import options as o
from edgedec.cli._chat import Chat
from edgedec.cli._groups import grouped
from edgedec.cli._stream import Limits

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@grouped
def chat(
    *,
    model: o.ModelName = "nano",
    system: Annotated[str | None, typer.Option(metavar="TEXT", show_default=False, help="The system message.")] = None,
    max_tokens: o.MaxTokens = -1,
    sampling: o.SeededSampling,
    stop: o.Stop = None,
    must: o.ConstraintFlags,
    machine: o.MachineFlags,
    spec: o.Spec = "auto",
    learn: o.Learn = False,
    stats: o.ShowStats = False,
) -> None:
    """Chat with a model.

    Piped lines are user turns; /help lists the commands.

    \b
    Examples:
      edgedec chat -m ./smol --system "Answer in one sentence."
      edgedec chat -m ./smol --temp 0 --stats
      printf 'Hello!\\n/stats\\n' | edgedec chat -m ./smol
    """
    opened = machine.open(model)
    chosen = sampling.for_model(opened)
    # Refuses a bundle without a template now rather than at the first turn.
    opened.chat_prompt([{"role": "user", "content": "hello"}])
    session = machine.session(opened, spec, learn)
    constraint = must.for_model(opened)
    talk = Chat(session, chosen, Limits(max_tokens, tuple(stop or ()), constraint=constraint), stats)
    if system:
        talk.system(system)
    asks = sys.stdin.isatty()
    if asks:
        name = opened.bundle.manifest.name
        print(f"{name}: /help lists the commands, Ctrl-C stops an answer, /exit leaves")
    for line in _typed() if asks else sys.stdin:
        if not talk.take(line.rstrip("\r\n")):
            break
    if learn:
        session.keep()
    if talk.failed and not asks:
        raise typer.Exit(1)


def _typed() -> Iterator[str]:
    """Lines from a terminal, until Ctrl-D; Ctrl-C drops the line."""
    try:
        import readline  # noqa: F401  (gives input() its editing and history)
    except ImportError:
        pass
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D leaves)")
        except EOFError:
            print()
            return
