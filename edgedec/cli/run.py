"""`edgedec run`: continue a text."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import options as o
from edgedec.cli._groups import grouped
from edgedec.cli._output import print_json
from edgedec.cli._processors import ProcessorWords, processors_for
from edgedec.cli._stream import Generation, describe, stats_line
from edgedec.cli._timings import Stopwatch, about
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@grouped
def run(
    *,
    model: o.ModelName = "nano",
    prompt: o.Prompt = None,
    file: o.PromptFile = None,
    generation: o.SeededGeneration,
    must: o.ConstraintFlags,
    processors: ProcessorWords = "",
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
    no_echo: Annotated[bool, typer.Option("--no-echo", help="Print only what is new.")] = False,
    json: o.Json = False,
    stats: o.ShowStats = False,
    verbose: o.Verbose = False,
    logprobs: o.Logprobs = None,
) -> None:
    """Continue a text, streaming it to stdout.

    \b
    Examples:
      edgedec run -p "Once upon a time" -n 200 --seed 7
      edgedec run -m ./smol -f notes.txt --temp 0 --no-echo --spec off --stats
      echo "The cat" | edgedec run --json --logprobs 3
    """
    if logprobs is not None and not json:
        raise typer.BadParameter("--logprobs: needs --json")
    if session is not None and not session.parent.is_dir():
        raise UsageError(f"--session {session}: there is no folder {session.parent}")
    resumes = session is not None and session.exists()
    text = o.read_prompt(prompt, file, optional=resumes)
    clock = Stopwatch(verbose)
    opened = machine.open(model)
    clock.lap(f"opened {opened.bundle.path}: {about(opened)}")
    config = replace(generation.config(opened), logprobs=logprobs, constraint=must.for_model(opened))
    config = replace(config, processors=processors_for(opened, processors))
    live = machine.session(opened, speculate, learn)
    clock.lap("session, drafters, constraint")
    if session is not None and resumes:
        live.load(session)
    if not resumes:  # a resumed session brings the state of its draws; a new seed would discard it
        config = o.with_seed(config)
    made = Generation(live, config)
    before = opened.tokenizer.decode(live.ids) if text is None else text
    ids = None if text is None else opened.tokenizer.encode(text)
    clock.lap(f"tokenizer, {len(ids or live.ids)} tokens of prompt")
    try:
        _write(made, ids, before, not no_echo, json)
    finally:
        if session is not None and made.tokens:
            live.save(session)
        if learn:
            live.save_drafters()
        clock.generated(live.stats)
        if (stats or verbose) and not json:
            print(stats_line(made.stats()), file=sys.stderr)


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
