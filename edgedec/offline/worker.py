"""The parts of a cluster job: workers, each with a model and one continuous batch, and their queue of rows."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from edgedec.drafters import Tables
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError
from edgedec.offline.job import BatchJob
from edgedec.offline.reading import Row
from edgedec.offline.runner import BatchRunner

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session


@dataclass(frozen=True)
class Opening:
    """How to open the model, here or on another machine."""

    model: str = "nano"
    engine: str = "auto"
    threads: int = 0
    kv: str | None = None
    context: int | None = None
    on_full: Literal["error", "slide"] = "error"
    speculate: str = "auto"
    lora: tuple[str, ...] = ()
    cache: str = "full"
    device: str = ""
    diffusion: str = ""

    def open(self) -> Model:
        from edgedec.model import open as open_model

        return open_model(
            self.model,
            engine=self.engine,
            device=self.device,
            threads=self.threads,
            kv=self.kv,
            prefix_tokens=0,
            cache=self.cache,
            diffusion=self.diffusion,
        )

    def sessions(self, model: Model) -> Callable[..., Session]:
        """A function that creates sessions for one thread, whose drafters share learned tables; its argument: how a
        diffusion model decodes."""
        tables: Tables = {}
        adapter = model.adapter(*self.lora) if self.lora else None
        return lambda diffusion=None: model.session(
            context=self.context,
            on_full=self.on_full,
            speculate=self.speculate,
            tables=tables,
            adapter=adapter,
            diffusion=diffusion,
        )


class Made(NamedTuple):
    """A row's number and its place in the output."""

    number: int
    out: dict[str, Any]
    failed: bool
    tokens: int


def pack(*values: object) -> Any:
    """Rows for Ray Data in one column, for values without an Arrow type."""
    import pyarrow

    return pyarrow.table({"packed": pyarrow.array([pickle.dumps(value) for value in values], pyarrow.large_binary())})


def unpack(table: Any) -> list[Any]:
    return [pickle.loads(packed) for packed in table["packed"].to_pylist()]


class ChunkQueue:
    """An actor: a queue of chunks of rows, from the driver to the workers."""

    def __init__(self, most: int) -> None:
        """most: the number of workers that may start without a row being finished; the end of a worker makes room for
        another."""
        self._chunks: asyncio.Queue[list[Row]] = asyncio.Queue()
        self._most, self._started, self._read = most, 0, False

    async def give(self, chunk: list[Row]) -> None:
        self._started = 0
        self._chunks.put_nowait(chunk)

    async def take(self) -> list[Row]:
        return await self._chunks.get()

    async def may_read(self) -> bool:
        """True once: a task that Ray restarts would read later rows as the first ones."""
        was, self._read = self._read, True
        return not was

    async def may_start(self) -> bool:
        self._started += 1
        return self._started <= self._most


class Worker:
    """Called with a chunk by each of several threads; one thread of its own generates the texts of all of them."""

    def __init__(self, job: BatchJob, opening: Opening, header: dict[str, Any], queue: Any) -> None:
        self._wrong: EdgedecError | None = None
        self._due: SimpleQueue[tuple[Row, Future[Made]]] = SimpleQueue()
        # Keyed by a counter, because a row may arrive twice if Ray lost the connection to a worker.
        self._waiting: dict[int, tuple[int, Future[Made]]] = {}
        self._keys = count()
        try:
            _may_start(queue)
            model = opening.open()
            _same(model, job)
            self._parser = job.parser(model, header)
        except EdgedecError as error:
            self._wrong = error
            return
        self._runner = BatchRunner(self._parser, opening.sessions(model), job.slots)
        Thread(target=self._work, name="edgedec-worker", daemon=True).start()

    def __call__(self, table: Any) -> Iterator[Any]:
        """Each row's `Made`, in the order of the rows: Ray counts on it when it does a call again. In one block, as
        Ray's driver never forgets a block. Instead of them, an EdgedecError if this worker cannot do anything.
        """
        if self._wrong is not None:
            yield pack(self._wrong)
            return
        answers: list[Future[Made]] = []
        for row in (row for chunk in unpack(table) for row in chunk):
            answers.append(Future())
            self._due.put((row, answers[-1]))
        yield pack(*[answer.result() for answer in answers])

    def _work(self) -> None:
        while True:
            try:
                self._step()
            except Exception as error:
                for _, answer in self._waiting.values():
                    answer.set_exception(error)
                self._waiting.clear()

    def _step(self) -> None:
        runner = self._runner
        while not runner.full and (not self._waiting or not self._due.empty()):
            (row, answer), key = self._due.get(), next(self._keys)
            self._waiting[key] = row.number, answer
            runner.add(key, self._parser.parse(row.number, row.data, row.error))
        for key, request, result in runner.step():
            number, answer = self._waiting.pop(key)
            answer.set_result(Made(number, request.write(result), bool(result.error), result.generated))


def _may_start(queue: Any) -> None:
    """Reject a worker after too many starts, because a row may crash every worker."""
    import ray

    if not ray.get(queue.may_start.remote()):
        raise RuntimeUnavailable("Ray: its workers die again and again; what is finished is kept for the same command")


def _same(model: Model, job: BatchJob) -> None:
    """An error unless the worker's model and engine are those of the job, so that texts do not depend on the worker."""
    for name, found in (("engine", model.runtime.name), ("model", model.bundle.digest)):
        expected = job.about.get(name, found)
        if found != expected:
            raise UsageError(
                f"{name}: a worker opens {found!r}, not {expected!r} as is opened here; "
                "give all machines the same bundle and engine, or name --engine and --workers"
            )
