"""`edgedec run`: continue a text."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._drafting import warn_unused
from edgedec.cli._output import print_json
from edgedec.cli._several import Several
from edgedec.cli._stream import Generation, describe, stats_line
from edgedec.cli._timings import Stopwatch, about
from edgedec.errors import UsageError
from edgedec.session import Session

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class ReportFlags:
    """What is printed, and how."""

    no_echo: Annotated[bool, typer.Option("--no-echo", help="Print only what is new.")] = False
    json: o.Json = False
    stats: o.ShowStats = False
    verbose: o.Verbose = False
    logprobs: o.Logprobs = None

    def check(self) -> None:
        if self.logprobs is not None and not self.json:
            raise typer.BadParameter("--logprobs: needs --json")

    def show_stats(self, generation: Generation) -> None:
        if (self.stats or self.verbose) and not self.json:
            print(stats_line(generation.stats()), file=sys.stderr)


@app.command()
@o.grouped
def run(
    *,
    model: o.ModelName = "nano",
    source: o.PromptFlags,
    generation: o.SeededGeneration,
    several: o.ChoiceFlags,
    must: o.ConstraintFlags,
    shaping: o.ShapingFlags,
    machine: o.MachineFlags,
    speculate: o.Speculate = "auto",
    learn: o.Learn = False,
    session: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Saved session: loaded if there, saved at the end. A prompt is the whole text, and what it "
            "shares with the saved text is not read again; without a prompt the saved text is continued.",
        ),
    ] = None,
    report: ReportFlags,
) -> None:
    """Continue a text, streaming it to stdout.

    \b
    Examples:
      edgedec run -p "Once upon a time" -n 200 --seed 7
      edgedec run -m ./smol -f notes.txt --temp 0 --no-echo --spec off --stats
      edgedec run -p "Once upon a time" -n 40 --temp 0.8 --n-cmpl 3
      echo "The cat" | edgedec run --json --logprobs 3
    """
    report.check()
    choices = several.choices
    if choices.texts > 1:
        _check_several(session, learn)
    saved = _saved(session)
    text = source.text() if saved is None else source.text_or_none()
    clock = Stopwatch(report.verbose)
    opened = machine.open(model)
    clock.lap(f"opened {opened.bundle.path}: {about(opened)}")
    config = replace(generation.config(opened), logprobs=report.logprobs, constraint=must.for_model(opened))
    config = replace(config, processors=shaping.for_model(opened))
    live = machine.session(opened, speculate, learn)
    clock.lap("session, drafters, constraint")
    if saved is None:
        config = o.with_seed(config)
    else:  # it has its random state, which a new seed would discard
        live.load(saved)
    if choices.texts > 1:
        _write_several(Several(live, config, choices), source.text(), report)
        return
    made = Generation(live, config)
    before = opened.tokenizer.decode(live.ids) if text is None else text
    ids = None if text is None else opened.tokenizer.encode(text)
    clock.lap(f"tokenizer, {len(ids or live.ids)} tokens of prompt")
    try:
        _write(made, ids, before, not report.no_echo, report.json)
    finally:
        _keep(live, session if made.tokens else None, learn)
        clock.generated(live.stats)
        report.show_stats(made)
    warn_unused(speculate, made.stats())


def _check_several(session: Path | None, learn: bool) -> None:
    """UsageError for flags that go with one text only."""
    if session or learn:
        flag = "--session" if session else "--learn"
        raise UsageError(f"{flag}: keeps one text; leave out --n-cmpl and --best-of")


def _write_several(texts: Several, prompt: str, report: ReportFlags) -> None:
    ids = texts.session.model.tokenizer.encode(prompt)
    texts.write(ids, prompt, not report.no_echo, report.json)
    if (report.stats or report.verbose) and not report.json:
        print(texts.stats_line(), file=sys.stderr)


def _saved(session: Path | None) -> Path | None:
    """The file of --session if it exists, else None; an error now if it could not be written later."""
    if session is not None and not session.parent.is_dir():
        raise UsageError(f"--session {session}: there is no folder {session.parent}")
    return session if session is not None and session.exists() else None


def _keep(live: Session, file: Path | None, learn: bool) -> None:
    """Save the session, and what drafters learned."""
    if file is not None:
        live.save(file)
    if learn:
        live.save_drafters()


def _write(generation: Generation, ids: list[int] | None, before: str, echo: bool, json: bool) -> None:
    if json:
        print_json(_report(generation, before, "".join(generation.pieces(ids))))
        return
    sys.stdout.write(before if echo else "")
    sys.stdout.flush()
    try:
        for piece in generation.pieces(ids):
            sys.stdout.write(piece)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except BaseException:
        sys.stdout.write("\n")  # the message about it begins on a line of its own
        raise
    sys.stdout.write("\n")


def _report(generation: Generation, prompt: str, text: str) -> dict[str, Any]:
    report: dict[str, Any] = {
        "prompt": prompt,
        "text": text,
        "tokens": [token.token for token in generation.tokens],
        "finish_reason": generation.session.finish_reason,
        "stats": generation.stats(),
    }
    if generation.config.logprobs is not None:
        tokenizer = generation.session.model.tokenizer
        report["logprobs"] = [describe(token, tokenizer) for token in generation.tokens]
    return report
