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
    from edgedec.bench.trace import Tape
    from edgedec.opened import OpenedModel

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
    """Write a page of how a text was drafted, filled or searched.

    \b
    Examples:
      edgedec trace -p "Once upon a time" -n 200 -o trace.html
      edgedec trace -m ./smol -f notes.txt --temp 0 --spec copy+recycling --force
      edgedec trace -m nano-block -p "Once upon a time" -n 60 --diffusion schedule=bacd
      edgedec trace -p "Once upon a time" -n 40 --temp 0 --search beam:width=4
    """
    _check_out(out, force)
    text = source.text()
    opened = machine.open(model)
    made = Generation(machine.session(opened, speculate), o.with_seed(generation.config(opened)))
    ids = opened.tokenizer.encode(text)
    html, report = _page(made, ids, text, speculate)
    with replacing(out) as file:
        file.write(html.encode())
    _report(out, report, json)
    if "search" not in report:
        warn_unused(speculate, report)


def _page(generation: Generation, ids: list[int], text: str, speculate: str) -> tuple[str, dict[str, Any]]:
    """The page of a generation, by its kind, and its report."""
    if generation.config.search:
        return _searched(generation, ids, text, speculate)
    if generation.session.diffusion_report():
        return _filled(generation, ids, text)
    return _drafted(generation, ids, text, speculate)


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


def _about(model: OpenedModel, generation: Generation, speculate: str) -> dict[str, Any]:
    from edgedec.version import __version__

    return {
        "version": __version__,
        "model": model.bundle.manifest.name,
        "engine": model.runtime.name,
        "spec": speculate,
        "temperature": generation.config.sampling.temperature,
    }


def _filled(generation: Generation, ids: list[int], text: str) -> tuple[str, dict[str, Any]]:
    """The page of a text that a diffusion model fills, and its report."""
    from edgedec.bench.fill_page import fill_page
    from edgedec.bench.trace import Spelling

    model, passes = generation.session.model, list[Any]()
    for _ in generation.session.stream(ids, generation.config, trace=passes):
        pass
    report = _about(model, generation, "off") | generation.stats()
    about = report | report["diffusion"]
    spell = Spelling(model.tokenizer, ids[0])
    return fill_page(passes, about, text, len(ids), report["generated_tokens"], spell), report


def _searched(generation: Generation, ids: list[int], text: str, speculate: str) -> tuple[str, dict[str, Any]]:
    """The page of a search, and its report."""
    from edgedec.bench.search_page import search_page
    from edgedec.bench.trace import Spelling

    model, branches = generation.session.model, list[Any]()
    answer = "".join(piece.text for piece in generation.session.stream(ids, generation.config, trace=branches))
    report = _about(model, generation, speculate) | generation.stats()
    about = {key: value for key, value in report.items() if key != "speculation"}
    return search_page(branches, about, text, answer, Spelling(model.tokenizer, ids[0])), report


def _drafted(generation: Generation, ids: list[int], text: str, speculate: str) -> tuple[str, dict[str, Any]]:
    """The page of a text that was drafted, and its report."""
    from edgedec.bench.trace import Spelling, page

    model, tape = generation.session.model, _tape(generation, ids, speculate)
    report = _about(model, generation, speculate) | generation.stats()
    about = {key: value for key, value in report.items() if key != "speculation"}  # the page counts for itself
    drafters = state_texts(report["speculation"])
    return page(tape, about, text, Spelling(model.tokenizer, ids[0]), drafters), report


def _report(out: Path, report: dict[str, Any], json: bool) -> None:
    if json:
        print_json({"path": str(out), **report})
        return
    tokens, calls = report["generated_tokens"], report["calls"]
    speed = f", {report['decode_tokens_per_s']:.1f} tokens/s" if report["decode_tokens_per_s"] else ""
    print(f"{out}: {tokens} tokens in {calls} calls, {tokens / max(calls, 1):.2f} a call{speed}")
