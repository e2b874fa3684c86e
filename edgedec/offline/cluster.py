"""The same job on a Ray cluster: one actor a worker, each with a model and a continuous batch of its own.

The driver reads the rows, hands them out in chunks (a few in flight at a time, so memory stays bounded) and keeps the
journal: a run on a cluster is gone on with by a run without one, and the other way round. Workers need edgedec and the
bundle's folder, not the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.offline.job import Job, Progress, Show
from edgedec.offline.journal import Journal
from edgedec.offline.making import Maker
from edgedec.offline.reading import Row

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

# Chunks of a worker that are under way: it finds the next one there when it has done one.
_AHEAD = 2
# Rows of a chunk for each text at a time: the more, the less a worker waits for the last of a chunk.
_FOLD = 4


@dataclass(frozen=True)
class Opening:
    """How to open the model, here or on another machine."""

    model: str = "nano"
    engine: str = "auto"
    threads: int = 0
    kv: str | None = None
    context: int | None = None
    on_full: Literal["error", "slide"] = "error"
    spec: str = "auto"

    def open(self) -> Model:
        from edgedec.model import open as open_model

        return open_model(self.model, engine=self.engine, threads=self.threads, kv=self.kv)

    def session(self, model: Model) -> Session:
        return model.session(context=self.context, on_full=self.on_full, spec=self.spec)


def run(job: Job, opening: Opening, workers: int, show: Show = lambda _: None) -> Progress:
    """As `Job.run`, by `workers` actors."""
    library = ray()
    library.init(ignore_reinit_error=True, log_to_driver=False)
    return job.journaled(partial(_generate, library, job, opening, workers), show)


def ray() -> Any:
    try:
        import ray as library
    except ImportError:
        raise RuntimeUnavailable("--ray needs Ray: pip install 'edgedec[ray]'") from None
    return library


class Worker:
    """What an actor is: rows in, finished rows out."""

    def __init__(self, job: Job, opening: Opening, header: dict[str, Any]) -> None:
        model = opening.open()
        self.engine, self.digest = model.runtime.name, model.bundle.digest
        self._asker = job.asker(model, header)
        self._maker = Maker(self._asker, lambda: opening.session(model), job.slots)

    def about(self) -> tuple[str, str]:
        return self.engine, self.digest

    def make(self, rows: list[Row]) -> tuple[list[tuple[int, str, dict[str, Any], bool]], int]:
        """Number, digest, result, whether it failed; and the tokens made."""
        maker, left = self._maker, iter(rows)
        made: list[tuple[int, str, dict[str, Any], bool]] = []
        digests = {row.number: row.digest for row in rows}
        before = maker.tokens
        while len(made) < len(rows):
            while not maker.full and (row := next(left, None)) is not None:
                maker.put(row.number, self._asker.ask(row.number, row.data, row.error))
            made += [(n, digests[n], asked.write(found), bool(found.error)) for n, asked, found in maker.step()]
        return made, maker.tokens - before


def _generate(
    library: Any, job: Job, opening: Opening, workers: int, journal: Journal, progress: Progress, show: Show
) -> None:
    told = replace(job, pipe=None)
    new: Callable[..., Any] = library.remote(num_cpus=max(opening.threads, 1))(Worker).remote
    actors = [new(told, opening, journal.header) for _ in range(workers)]
    try:
        _same(library.get([actor.about.remote() for actor in actors]), job)
        rows = job.rows(journal, progress)
        flying: dict[Any, Any] = {}
        idle = actors * _AHEAD
        while True:
            # One slow text must not let the others run ahead without end.
            while idle and len(journal.done.above) < job.window and (chunk := list(islice(rows, job.slots * _FOLD))):
                actor = idle.pop(0)
                flying[actor.make.remote(chunk)] = actor
            if not flying:
                break
            (ready,), _ = library.wait(list(flying), num_returns=1)
            idle.append(flying.pop(ready))
            made, tokens = library.get(ready)
            for number, digest, out, failed in made:
                journal.add(number, digest, out, failed)
            progress.tokens += tokens
            progress.rows, progress.failed = len(journal.done), journal.failed
            show(progress)
    finally:
        for actor in actors:
            library.kill(actor)


def _same(found: list[tuple[str, str]], job: Job) -> None:
    """Texts must not depend on who makes them."""
    expected = {(job.about.get("engine", engine), job.about.get("model", digest)) for engine, digest in found}
    if len({*found, *expected}) > 1:
        raise UsageError("--ray: not all workers open the same bundle on the same engine; name --engine")
