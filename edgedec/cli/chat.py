"""`edgedec chat`: turns, with the model's own chat template."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from edgedec.bundle.locate import NANO
from edgedec.cli import _flags as o
from edgedec.cli._chat import Chat
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


@dataclass(frozen=True)
class TurnFlags:
    """The first turns, and whether more follow."""

    prompt: Annotated[str | None, o.option("--prompt", "-p", metavar="TEXT", help="The first user turn.")] = None
    file: Annotated[Path | None, o.option("--file", "-f", metavar="FILE", help="The same, from a file.")] = None
    system: Annotated[str | None, o.option(metavar="TEXT", help="The system message.")] = None
    system_file: Annotated[Path | None, o.option(metavar="FILE", help="The same, from a file.")] = None
    single_turn: Annotated[bool, typer.Option("--single-turn", help="Leave after one answer.")] = False

    def first(self) -> list[str]:
        """The first user turn, if it was given."""
        text = _text_of(self.prompt, self.file, "--prompt and --file")
        return [] if text is None else [text]

    def system_message(self) -> str | None:
        return _text_of(self.system, self.system_file, "--system and --system-file")


@app.command()
@o.grouped
def chat(
    *,
    model: o.ModelName = "nano",
    turns: TurnFlags,
    its_template: o.TemplateFlags,
    generation: o.SeededGeneration,
    must: o.ConstraintFlags,
    shaping: o.ShapingFlags,
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
    first, system = turns.first(), turns.system_message()
    clock = Stopwatch(verbose)
    template.start()
    opened = machine.open(model)
    clock.lap(f"opened {opened.bundle.path}: {about(opened)}")
    its_template.apply(opened)
    config = replace(generation.config(opened), processors=shaping.for_model(opened))
    # A bundle without a template fails here, not at the first turn.
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
    _converse(conversation, chain(first, _typed() if interactive else sys.stdin), turns.single_turn)
    if learn:
        session.save_drafters()
    if conversation.failed and not interactive:
        raise typer.Exit(1)


def _converse(conversation: Chat, lines: Iterable[str], once: bool) -> None:
    """Answer each line, or only the first, until a line ends the chat."""
    for line in islice(lines, 1) if once else lines:
        if not conversation.take(line.rstrip("\r\n")):
            break


def banner(name: str) -> str:
    """What is shown before the first turn: the model's name, and what the bundled one is."""
    lines = [f"{name}: /help lists the commands, Ctrl-C stops an answer, /exit leaves"]
    if name == NANO:
        lines += [ABOUT, *(f"  {opening}" for opening in ("Try one of these:", *OPENINGS))]
    return "\n".join(lines)


def _text_of(text: str | None, file: Path | None, flags: str) -> str | None:
    """A text that is given directly or as a file."""
    if text is not None and file is not None:
        raise typer.BadParameter(f"{flags}: give one of them")
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
