"""`edgedec trace`: a generation as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._drafting import state_texts, warn_unused
from edgedec.cli._output import print_json
from edgedec.cli._stream import Generation
from edgedec.errors import UsageError
from edgedec.storage.files import replacing

if TYPE_CHECKING:
    import edgedec
    from edgedec.bench.trace import Tape

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def trace(
    *,
    model: o.ModelName = "nano",
    source: o.PromptFlags,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("trace.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    speculate: o.Speculate = "auto",
    generation: o.SeededGeneration,
    machine: o.MachineFlags,
    json: o.Json = False,
) -> None:
    """Write a page that shows how a text was drafted.

    \b
    Examples:
      edgedec trace -p "Once upon a time" -n 200 -o trace.html
      edgedec trace -m ./smol -f notes.txt --temp 0 --spec copy+recycling --force
    """
    _check_out(out, force)
    text = source.text()
    opened = machine.open(model)
    made = Generation(machine.session(opened, speculate), o.with_seed(generation.config(opened)))
    ids = opened.tokenizer.encode(text)
    tape = _tape(made, ids, speculate)
    report = _about(opened, made, speculate) | made.stats()
    _write(out, tape, report, text, opened, ids[0])
    _report(out, report, json)
    warn_unused(speculate, report)


def _check_out(out: Path, force: bool) -> None:
    """Check the output file before the generation."""
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    if out.exists() and not force:
        raise UsageError(f"--out {out}: exists already; choose another place or pass --force")


def _tape(generation: Generation, ids: list[int], speculate: str) -> Tape:
    from edgedec.bench.trace import Tape

    # A single drafter leaves its drafts unnamed.
    tape = Tape("draft" if speculate == "auto" or "+" in speculate else speculate.partition(":")[0])
    return tape.run(generation.session.stream(ids, generation.config, trace=tape.steps))


def _about(model: edgedec.Model, generation: Generation, speculate: str) -> dict[str, Any]:
    from edgedec.version import __version__

    return {
        "version": __version__,
        "model": model.bundle.manifest.name,
        "engine": model.runtime.name,
        "spec": speculate,
        "temperature": generation.config.sampling.temperature,
    }


def _write(out: Path, tape: Tape, report: dict[str, Any], text: str, model: edgedec.Model, anchor: int) -> None:
    from edgedec.bench.trace import Spelling, page

    about = {key: value for key, value in report.items() if key != "speculation"}  # the page counts for itself
    drafters = state_texts(report["speculation"])
    html = page(tape, about, text, Spelling(model.tokenizer, anchor), drafters)
    with replacing(out) as file:
        file.write(html.encode())


def _report(out: Path, report: dict[str, Any], json: bool) -> None:
    if json:
        print_json({"path": str(out), **report})
        return
    tokens, calls = report["generated_tokens"], report["calls"]
    speed = f", {report['decode_tokens_per_s']:.1f} tokens/s" if report["decode_tokens_per_s"] else ""
    print(f"{out}: {tokens} tokens in {calls} calls, {tokens / max(calls, 1):.2f} a call{speed}")
