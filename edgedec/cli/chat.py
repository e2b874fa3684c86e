"""`edgedec chat`: turns, with the model's own chat template."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from edgedec.bundle.locate import NANO
from edgedec.cli import options as o
from edgedec.cli._chat import Chat
from edgedec.cli._groups import grouped
from edgedec.cli._processors import ProcessorWords, processors_for
from edgedec.cli._template import ChatTemplate, ChatTemplateFile, set_template
from edgedec.cli._timings import Stopwatch, about
from edgedec.text import template

ABOUT = (
    "nano is the small model that ships with edgedec. "
    "It tells little stories in simple English, and knows nothing else."
)
OPENINGS = (
    "Tell me a story about a dog",
    "Once upon a time, there was a little dragon",
    "One day, Lily found a key in the garden",
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@grouped
def chat(
    *,
    model: o.ModelName = "nano",
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", show_default=False, help="The first user turn.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", show_default=False, help="The same, from a file.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", show_default=False, help="The system message.")] = None,
    system_file: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="The same, from a file.")
    ] = None,
    single_turn: Annotated[bool, typer.Option("--single-turn", help="Leave after one answer.")] = False,
    chat_template: ChatTemplate = None,
    chat_template_file: ChatTemplateFile = None,
    generation: o.SeededGeneration,
    must: o.ConstraintFlags,
    processors: ProcessorWords = "",
    machine: o.MachineFlags,
    speculate: o.Speculate = "auto",
    learn: o.Learn = False,
    stats: o.ShowStats = False,
    verbose: o.Verbose = False,
) -> None:
    """Chat with a model.

    Piped lines are user turns; /help lists the commands.

    \b
    Examples:
      edgedec chat -m ./smol --system "Answer in one sentence."
      edgedec chat -m ./smol --temp 0 --stats
      printf 'Hello!\\n/stats\\n' | edgedec chat -m ./smol
    """
    first = _first_turn(prompt, file)
    system = _system(system, system_file)
    clock = Stopwatch(verbose)
    template.start()
    opened = machine.open(model)
    clock.lap(f"opened {opened.bundle.path}: {about(opened)}")
    set_template(opened, chat_template, chat_template_file)
    config = replace(generation.config(opened), processors=processors_for(opened, processors))
    # Refuses a bundle without a template now rather than at the first turn.
    opened.chat_prompt([{"role": "user", "content": "hello"}])
    session = machine.session(opened, speculate, learn)
    slide = machine.on_full is o.OnFull.slide
    conversation = Chat(session, replace(config, constraint=must.for_model(opened)), stats or verbose, slide)
    clock.lap("session, drafters, constraint")
    if system:
        conversation.system(system)
    interactive = sys.stdin.isatty()
    if interactive:
        print(banner(opened.bundle.manifest.name))
    lines = chain(first, _typed() if interactive else sys.stdin)
    for line in islice(lines, 1) if single_turn else lines:
        if not conversation.take(line.rstrip("\r\n")):
            break
    if learn:
        session.save_drafters()
    if conversation.failed and not interactive:
        raise typer.Exit(1)


def banner(name: str) -> str:
    """What is shown before the first turn: the model's name, and what the bundled one is."""
    lines = [f"{name}: /help lists the commands, Ctrl-C stops an answer, /exit leaves"]
    if name == NANO:
        lines += [ABOUT, *(f"  {opening}" for opening in ("Try one of these:", *OPENINGS))]
    return "\n".join(lines)


def _first_turn(prompt: str | None, file: Path | None) -> list[str]:
    if prompt is not None and file is not None:
        raise typer.BadParameter("--prompt and --file: give one of them")
    return [prompt] if prompt is not None else [] if file is None else [o.read_text(file)]


def _system(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise typer.BadParameter("--system and --system-file: give one of them")
    return text if file is None else o.read_text(file)


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
