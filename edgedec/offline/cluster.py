"""The same job through Ray Data: a stream of chunks of rows, mapped by a pool of workers.

The driver reads the rows and keeps the journal, so a run on a cluster can be continued by a run without one, and the
other way round. The driver sends rows no faster than results arrive: Ray bounds the bytes between its operators, but
not the distance between a slow text and the others. Workers need edgedec and the bundle's folder, not the input.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError
from edgedec.extras import install_command
from edgedec.offline.job import BatchJob, Progress, Show
from edgedec.offline.journal import Journal
from edgedec.offline.reading import Row
from edgedec.offline.worker import ChunkQueue, Opening, Worker, pack, unpack

# A worker processes several chunks at a time, so that no slot is empty at the end of a chunk.
_CHUNKS = 4
# How often the workers may die, each, while no row is finished.
_RETRIES = 3
# Seconds between checks for lost machines.
_LOOK_S = 10.0
_KEPT = "what is finished is kept for the same command"
# Defaults, overridden by the environment: no log output of Ray's core on the screen, no usage reports.
_UNSAID = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}


def run(job: BatchJob, opening: Opening, workers: int = 0, show: Show = lambda _: None) -> Progress:
    """As `BatchJob.run`, by `workers` (0: as many as have room) of the cluster at RAY_ADDRESS, or of a local one."""
    with _cluster() as library:
        workers, threads = room(_cpus(library), workers, opening.threads)
        # Workers have folders of their own to start from.
        path = Path(opening.model)
        model = str(path.absolute()) if (path / MANIFEST).is_file() else opening.model
        made = partial(_generate, library, job, replace(opening, model=model, threads=threads), workers)
        return job.journaled(made, show)


@contextmanager
def _cluster() -> Iterator[Any]:
    """Ray, started and stopped here unless it runs already. Its prints of retried calls are discarded."""
    library = ray()
    began = not library.is_initialized()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        if began:
            _begin(library)
        try:
            yield library
        finally:
            if began:
                library.shutdown()


def _begin(library: Any) -> None:
    unsaid = {name: value for name, value in _UNSAID.items() if name not in os.environ}
    os.environ.update(unsaid)
    try:
        _reach(os.environ.get("RAY_ADDRESS", ""))
        with _hushed():
            library.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (library.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise RuntimeUnavailable(f"Ray: {_last_line(error)}; RAY_ADDRESS names the cluster, if any") from error
    finally:
        for name in unsaid:
            del os.environ[name]


def _reach(address: str) -> None:
    """Fail at once if nothing listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=5).close()


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence stderr below Python: Ray's core prints a line about its log level before it applies it."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def ray() -> Any:
    try:
        import ray as library
        import ray.data
    except ImportError:
        raise RuntimeUnavailable(f"--engine ray needs Ray: {install_command('ray')}") from None
    return library


def room(cpus: list[int], workers: int, threads: int) -> tuple[int, int]:
    """Workers, and threads of each, on machines with so many CPUs; what is 0 follows from the other.

    room([8, 4], 0, 2) == (6, 2); room([8, 4], 3, 0) == (3, 4): each has to find its CPUs on one machine.
    """
    most = max(cpus, default=0)
    if not threads:
        fitting = (t for t in range(most, 0, -1) if sum(n // t for n in cpus) >= workers)
        threads = next(fitting, 1) if workers else 1
    if threads > most:
        raise UsageError(f"--threads {threads}: no machine of the Ray cluster has more than {most} CPUs; ask for fewer")
    return workers or sum(n // threads for n in cpus), threads


def _cpus(library: Any) -> list[int]:
    return [int(node["Resources"].get("CPU", 0)) for node in library.nodes() if node["Alive"]]


def _generate(
    library: Any, job: BatchJob, opening: Opening, workers: int, journal: Journal, progress: Progress, show: Show
) -> None:
    rows = _Ahead(job, journal, progress, workers)
    if rows.done():
        return
    queue = library.remote(num_cpus=0, label_selector=_here(library))(ChunkQueue).remote(workers * (1 + _RETRIES))
    arguments = (replace(job, pipe=None), opening, journal.header, queue)
    with _results(library, arguments, workers) as found, _watched(library, rows, queue):
        while not rows.done():
            for chunk in rows.chunks():
                queue.give.remote(chunk)
            made = next(found, None)
            if made is None:
                raise RuntimeUnavailable(f"Ray: its workers left rows undone; {_KEPT}")
            if isinstance(made, EdgedecError):
                raise made
            row = rows.flying.pop(made.number, None)
            if row is None:  # made twice
                continue
            journal.add(made.number, row.digest, made.out, made.failed)
            progress.tokens += made.tokens
            progress.rows, progress.failed = len(journal.done), journal.failed
            show(progress)


@contextmanager
def _watched(library: Any, rows: _Ahead, queue: Any) -> Iterator[None]:
    """The results. Chunks of a lost machine may wait in Ray for a new one; without progress they are sent again."""
    over = Event()

    def watch() -> None:
        before, cpus = list(rows.flying), sum(_cpus(library))
        while not over.wait(_LOOK_S):
            flying, now = list(rows.flying), sum(_cpus(library))
            if flying == before and now < cpus:
                for chunk in rows.again():
                    queue.give.remote(chunk)
                cpus = now
            before, cpus = flying, max(cpus, now)

    watcher = Thread(target=watch, name="edgedec-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class _Ahead:
    """The remaining rows in chunks, sent while workers have room. `flying`: chunks that were sent and have no result
    yet."""

    def __init__(self, job: BatchJob, journal: Journal, progress: Progress, workers: int) -> None:
        self._rows, self._journal, self._window = job.rows(journal, progress), journal, job.window
        self._size = max(1, 2 * job.slots // _CHUNKS)
        # Twice the chunks that a worker processes at a time, so that the next one is there when it finishes one.
        self._most = 2 * _CHUNKS * self._size * workers
        self._next = next(self._rows, None)
        self.flying: dict[int, Row] = {}

    def done(self) -> bool:
        return self._next is None and not self.flying

    def chunks(self) -> Iterator[list[Row]]:
        while len(self.flying) + self._size <= self._most and (chunk := list(self._chunk())):
            yield chunk

    def again(self) -> Iterator[list[Row]]:
        rows = iter(list(self.flying.values()))
        while chunk := list(islice(rows, self._size)):
            yield chunk

    def _chunk(self) -> Iterator[Row]:
        for _ in range(self._size):
            row = self._next
            # Bound the distance between a slow text and the others.
            if row is None or row.number >= self._journal.done.low + self._window:
                return
            self.flying[row.number] = row
            self._next = next(self._rows, None)
            yield row


@contextmanager
def _results(library: Any, arguments: tuple[Any, ...], workers: int) -> Iterator[Iterator[Any]]:
    """The results of the workers, as they arrive."""
    with _quiet():
        found = _unpacked(_dataset(library, arguments, workers))
        try:
            yield found
        except library.exceptions.RayError as error:
            raise RuntimeUnavailable(f"Ray: {_last_line(error)}; {_KEPT}") from error
        finally:
            found.close()


def _dataset(library: Any, arguments: tuple[Any, ...], workers: int) -> Any:
    _, opening, _, queue = arguments
    pool = library.data.ActorPoolStrategy(
        size=workers,
        max_concurrent_calls_per_actor=_CHUNKS,
        max_tasks_in_flight_per_actor=2 * _CHUNKS,
        enable_true_multi_threading=True,
    )
    # The one task that reads waits most of the time, and needs no CPU.
    rows = library.data.read_datasource(
        _source(library, queue), override_num_blocks=1, num_cpus=0, label_selector=_here(library)
    )
    return rows.map_batches(
        Worker,
        fn_constructor_args=arguments,
        batch_size=None,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=opening.threads,
    )


def _source(library: Any, queue: Any) -> Any:
    """The queue as a data source of Ray Data."""
    from ray.data.block import BlockMetadata

    def chunks() -> Iterator[Any]:
        if not library.get(queue.may_read.remote()):
            raise RuntimeError("the task that passes the rows on died")
        while True:  # until the job is over
            yield pack(library.get(queue.take.remote()))

    class Rows(library.data.Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[Any]:
            return [library.data.ReadTask(chunks, BlockMetadata(None, None, None, None))]

    return Rows()


def _here(library: Any) -> dict[str, str]:
    """The driver's machine, without which the job ends in any case."""
    return {"ray.io/node-id": library.get_runtime_context().get_node_id()}


def _last_line(error: Exception) -> str:
    """The last line of an error's message, after stack frames and hints."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:300]


def _unpacked(dataset: Any) -> Generator[Any]:
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from unpack(table)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray Data without progress bars and logs; blocks are delivered at once, not when they are large."""
    from ray.data import DataContext

    log, context = logging.getLogger("ray.data"), DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = 1
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with DataContext.current(context):
            yield
    finally:
        log.setLevel(level)
