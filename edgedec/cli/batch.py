"""`edgedec batch`: a file of prompts in, a file of texts out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json
from edgedec.cli._visible import plain_stderr

if TYPE_CHECKING:
    import edgedec
    from edgedec.offline import BatchJob, Progress
    from edgedec.offline.worker import Opening

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class RowFlags:
    """How the rows of the file are read and written."""

    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, max=1024, help="Texts at a time.")] = 16
    column: Annotated[str, typer.Option("--column", metavar="NAME", help="The column of prompts.")] = "prompt"
    force: Annotated[
        bool, typer.Option("--force", help="Start over: discard what an earlier run left, and replace OUT.")
    ] = False


@dataclass(frozen=True)
class WorkerFlags:
    """What runs the texts, here or on a Ray cluster."""

    threads: o.Threads = 0
    ctx_size: o.CtxSize = 0
    on_full: o.OnFullMode = o.OnFull.error
    kv: o.KVFormat = None
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="NAME", help="Runtime: auto (default), native, ort, reference; or ray: see below."
        ),
    ] = "auto"
    device: o.DeviceWord = ""
    lora: o.Lora = None
    speculate: o.Speculate = "auto"
    cache: o.CacheWords = "full"
    diffusion: o.DiffusionWords = ""
    workers: Annotated[
        int,
        typer.Option("--workers", min=0, metavar="N", show_default=False, help="Run on N workers of a Ray cluster."),
    ] = 0

    @property
    def on_ray(self) -> bool:
        return self.workers > 0 or self.engine == "ray"

    def opening(self, model: str) -> Opening:
        """How a worker opens the model."""
        from edgedec.offline.worker import Opening

        return Opening(
            model=model,
            engine="auto" if self.engine == "ray" else self.engine,
            threads=self.threads,
            kv=self.kv and self.kv.value,
            context=self.ctx_size or None,
            on_full=self.on_full.mode,
            speculate=self.speculate,
            lora=tuple(str(file.absolute()) for file in self.lora or ()),
            cache=self.cache,
            device=self.device,
            diffusion=self.diffusion,
        )

    def about(self, model: edgedec.Model) -> dict[str, object]:
        """Settings besides the options that the texts depend on; batch size and drafting do not change them."""
        adapter = o.open_lora(model, self.lora)
        return {
            "model": model.bundle.digest,
            "engine": model.runtime.name,
            "context": self.ctx_size,
            "on-full": self.on_full.value,
            "kv": self.kv and self.kv.value,
            "lora": adapter and adapter.digest,
            "cache": model.cache,
            **({"diffusion": model.diffusion} if model.diffusion else {}),
        }


@app.command()
@o.grouped
def batch(
    *,
    source: Annotated[str, typer.Argument(metavar="IN", help="JSONL, CSV or Parquet, by its ending; `-`: stdin.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="JSONL or Parquet, by its ending.")],
    model: o.ModelName = "nano",
    rows: RowFlags,
    generation: o.GenerationFlags,
    several: o.ChoiceFlags,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, show_default=False, help="Row i draws with SEED + i; random if left out."),
    ] = None,
    must: o.ConstraintFlags,
    shaping: o.ShapingFlags,
    worker: WorkerFlags,
    json: o.Json = False,
) -> None:
    """Continue many texts: from a file, to a file.

    A row has a `prompt` or `messages`, and may have options of its own (max_tokens, temperature, seed, n, stop,
    json_schema, regex, choices, processors, fuse, …); other columns come back with its result. Stopped at any moment,
    the same command continues.

    --engine ray: by the Ray cluster at RAY_ADDRESS, or one started here, on all its CPUs, a worker for each --threads
    of them (1), each on the engine that auto means; --workers N: by N of them, on any --engine.

    \b
    Examples:
      edgedec batch prompts.jsonl -o stories.jsonl -n 200 --temp 0.8 --seed 1
      edgedec batch questions.parquet -o answers.parquet -m ./smol -b 32 --engine ray
      cat requests.jsonl | edgedec batch - -o responses.jsonl
    """
    from edgedec.offline import BatchJob, Defaults

    constraint, opening = must.text(), worker.opening(model)
    opened = opening.open()
    job = BatchJob(
        Path(source),
        out,
        Defaults(
            generation.config(opened),
            constraint,
            column=rows.column,
            processors=shaping.processors,
            fuse=shaping.fuse,
            choices=several.choices,
        ),
        worker.about(opened),
        seed=seed,
        slots=rows.batch_size,
        force=rows.force,
        pipe=sys.stdin.buffer if source == "-" else None,
    )
    progress = _run(job, opened, opening, worker, quiet=json)
    if json:
        print_json(asdict(progress))
    print(_summary(progress, out), file=sys.stderr)


def _run(job: BatchJob, opened: edgedec.Model, opening: Opening, worker: WorkerFlags, quiet: bool) -> Progress:
    """Generate all texts, here or on Ray."""
    from edgedec.offline.cluster import run as run_on_ray

    with _bar(quiet) as show:
        try:
            if worker.on_ray:
                return run_on_ray(job, opening, worker.workers, show)
            return job.run(opened, opening.sessions(opened), show)
        except KeyboardInterrupt:
            print(f"stopped; the same command continues with {job.out}.partial", file=sys.stderr)
            raise


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr: rows, tokens per second, time left; nothing if that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = [rich.TextColumn(text) for text in ("{task.fields[rows]} rows", "{task.fields[speed]} tokens/s")]
    left = rich.TimeRemainingColumn(elapsed_when_finished=True)
    with rich.Progress(columns[0], rich.BarColumn(), columns[1], left, console=Console(file=plain_stderr())) as bar:
        task = bar.add_task("", total=None, rows=0, speed="-")
        first: list[int] = []

        def show(progress: Progress) -> None:
            # The rows of earlier runs are excluded from the estimate of the time left.
            first[:] = first or [progress.at if progress.kept else 0]
            total = None if progress.size is None else progress.size - first[0]
            seconds = bar.tasks[0].elapsed or 0
            speed = f"{progress.tokens / seconds:.0f}" if seconds > 0 else "-"
            failed = f" ({progress.failed} failed)" if progress.failed else ""
            rows = f"{progress.rows}{failed}"
            bar.update(task, completed=progress.at - first[0], total=total, rows=rows, speed=speed)

        yield show


def _summary(progress: Progress, out: Path) -> str:
    speed = progress.tokens / progress.seconds if progress.seconds else 0.0
    kept = f", {progress.kept} of them by an earlier run" if progress.kept else ""
    failed = f"; {progress.failed} failed, see their `error`" if progress.failed else ""
    torn = f"; {progress.cut} bytes of a torn line were cut off" if progress.cut else ""
    return (
        f"{out}: {progress.rows} rows{kept}{torn}{failed}; "
        f"{progress.tokens} tokens in {progress.seconds:.1f} s, {speed:.1f} tokens/s"
    )
