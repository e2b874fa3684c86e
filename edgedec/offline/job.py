"""An offline batch: rows are read, generated, recorded in a journal, and written in input order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgedec.decoding.config import OPTIONS
from edgedec.errors import UsageError
from edgedec.fusion import make_shaping
from edgedec.offline.journal import Entry, Journal
from edgedec.offline.parser import RequestParser
from edgedec.offline.reading import Row, format_of, length, reading
from edgedec.offline.row import ONE, Defaults, RowRequest, RowResult
from edgedec.offline.runner import BatchRunner
from edgedec.offline.writing import write
from edgedec.search import check_search

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

# The most rows between the first unfinished row and the last one read; a few integers are kept for each of them.
WINDOW = 4096


@dataclass
class Progress:
    """Finished rows, of this run and earlier ones; `failed`: those with errors; `kept`: those of earlier runs.

    `tokens` of this run; `at` of `size`: how much of the input is read (`size` None: unknown).
    """

    rows: int = 0
    failed: int = 0
    kept: int = 0
    tokens: int = 0
    at: int = 0
    size: int | None = None
    seconds: float = 0.0
    cut: int = 0


Show = Callable[[Progress], None]


@dataclass(frozen=True)
class BatchJob:
    """`source` -> `out`. The journal of finished rows is `out`.partial; after an interruption the job can be run again.

    about: other settings that the texts depend on (engine, context …), by name: a journal is only continued if they are
    equal. force: start over, and replace existing files. pipe: read rows (JSONL) from it instead of `source`.
    """

    source: Path
    out: Path
    defaults: Defaults
    about: Mapping[str, object]
    seed: int | None = None
    slots: int = 16
    window: int = WINDOW
    force: bool = False
    pipe: IO[bytes] | None = None

    def run(self, model: Model, new_session: Callable[..., Session], show: Show = lambda _: None) -> Progress:
        """Generate all rows and write the output; `show` gets the progress after each step."""
        return self.journaled(partial(self._generate, model, new_session), show)

    def journaled(
        self,
        generate: Callable[[Journal, Progress, Callable[[Progress], None]], None],
        show: Show,
    ) -> Progress:
        """Run `generate`, which fills the journal, and write the output from it."""
        began = time.monotonic()
        journal = self._open()
        try:
            done = len(journal.done)
            progress = Progress(done, journal.failed, done, size=self._size(), cut=journal.cut)
            generate(journal, progress, show)
            if journal.done.above:
                raise UsageError(f"{self.source}: has fewer rows than {journal.path} has finished; --force starts over")
            write(self.out, format_of(self.out), journal.results)
            progress.seconds = time.monotonic() - began
            journal.remove()
        finally:
            journal.close()
        return progress

    def rows(self, journal: Journal, progress: Progress) -> Iterator[Row]:
        """The unfinished rows; an error if a finished row differs from the input's."""
        before, known = journal.done.copy(), journal.entries()
        with reading(self.source, self._format(), self.pipe) as found:
            for row in found:
                progress.at = row.at
                if row.number in before:
                    self._same(row, next(known), journal)
                else:
                    yield row
        if next(known, None) is not None:
            raise UsageError(f"{self.source}: has fewer rows than {journal.path} has finished; --force starts over")

    def parser(self, model: Model, header: Mapping[str, Any]) -> RequestParser:
        """The parser of the rows, with the journal's seed; UsageError for an invalid constraint or processors."""
        found = RequestParser(model, replace(self.defaults, seed=header["seed"]), header["created"], header["job"])
        if self.defaults.constraint is not None:
            found.constraint(*self.defaults.constraint)
        make_shaping(model, self.defaults.fuse, self.defaults.processors)
        if self.defaults.config.search:
            check_search(self.defaults.config.search)
        return found

    def _generate(
        self,
        model: Model,
        new_session: Callable[..., Session],
        journal: Journal,
        progress: Progress,
        show: Show,
    ) -> None:
        parser, rows, digests = self.parser(model, journal.header), self.rows(journal, progress), dict[int, str]()
        runner = BatchRunner(parser, new_session, self.slots)
        row = next(rows, None)
        while row is not None or digests:
            while row is not None and not runner.full and row.number < journal.done.low + self.window:
                digests[row.number] = row.digest
                runner.add(row.number, parser.parse(row.number, row.data, row.error))
                row = next(rows, None)
                # Rows with errors end at once, and must not pile up.
                if len(digests) > 2 * self.slots:
                    break
            if row is None:
                runner.finish()
            for number, request, result in runner.step():
                _keep(journal, number, digests.pop(number), request, result)
            progress.rows, progress.failed, progress.tokens = len(journal.done), journal.failed, runner.tokens
            show(progress)

    def _open(self) -> Journal:
        path = self.out.with_name(f"{self.out.name}.partial")
        if format_of(self.out) == "csv":
            raise UsageError(f"{self.out}: the output is JSONL or Parquet; name it so")
        header = self._header()
        if self.out.exists() and not self.force and not path.exists():
            raise UsageError(f"{self.out}: exists already; choose another place or pass --force")
        if self.out.exists() and self.pipe is None and self.out.samefile(self.source):
            raise UsageError(f"{self.out}: is the input; choose another place")
        if not self.out.parent.is_dir():
            raise UsageError(f"{self.out}: there is no folder {self.out.parent}")
        journal = Journal(path, force=self.force)
        try:
            if len(journal.done):
                self._fits(journal, header)
            else:
                seed = secrets.randbits(32) if self.seed is None else self.seed
                journal.begin({**header, "seed": seed, "created": int(time.time()), "job": secrets.token_hex(8)})
        except BaseException:
            journal.close()
            raise
        return journal

    def _header(self) -> dict[str, Any]:
        config = vars(self.defaults.config)
        values = {**config, **vars(config["sampling"])}
        options = {name: values[name] for name in OPTIONS if name != "seed"}
        defaults = {"constraint": self.defaults.constraint, "column": self.defaults.column}
        about = {**self.about, **defaults, **options}
        if self.defaults.processors:
            about["processors"] = self.defaults.processors
        if self.defaults.fuse:
            about["fuse"] = self.defaults.fuse
        about |= {name: value for name, value in vars(self.defaults.choices).items() if value != vars(ONE)[name]}
        return {
            "input": {"format": self._format(), "size": self._size()},
            "about": {name: _plain(value) for name, value in about.items()},
        }

    def _fits(self, journal: Journal, header: Mapping[str, Any]) -> None:
        """UsageError for a journal of another input or other options."""
        was, now = journal.header["about"], header["about"]
        for name in sorted({*was, *now}):
            if was.get(name) != now.get(name):
                self._refuse(journal, f"was started with {name} {was.get(name)}, not {now.get(name)}")
        if self.seed is not None and self.seed != journal.header["seed"]:
            self._refuse(journal, f"was started with seed {journal.header['seed']}, not {self.seed}")
        if journal.header["input"] != header["input"]:
            self._refuse(journal, "was started with another input")

    def _same(self, row: Row, entry: Entry, journal: Journal) -> None:
        if row.number != entry.row or row.digest != entry.digest:
            self._refuse(journal, f"was started with another input (row {row.number} is not the same)")

    def _refuse(self, journal: Journal, why: str) -> None:
        raise UsageError(f"{journal.path}: {why}; continue as it was started, or pass --force to start over")

    def _format(self) -> str:
        return "jsonl" if self.pipe is not None else format_of(self.source)

    def _size(self) -> int | None:
        if self.pipe is not None:
            return None
        if not self.source.exists():
            raise UsageError(f"{self.source}: no such file")
        return length(self.source, self._format()) if self.source.is_file() else None


def _keep(journal: Journal, number: int, digest: str, request: RowRequest, result: RowResult) -> None:
    journal.add(number, digest, request.write(result), bool(result.error))


def _plain(value: object) -> str:
    """The value as text that is equal in every process."""
    return repr(sorted(value) if isinstance(value, frozenset) else value)
