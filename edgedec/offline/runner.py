"""Requests to texts: many sequences in one continuous batch, replaced as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.errors import ContextFull, EdgedecError
from edgedec.fusion import make_shaping
from edgedec.offline.parser import RequestParser
from edgedec.offline.row import RowRequest, RowResult
from edgedec.text.stream import TextStream

if TYPE_CHECKING:
    from edgedec.session import Session

# Admission is by the number of texts.
_ANY = 1 << 62


class BatchRunner:
    """A runner of at most `slots` texts at a time; each text is the same as if it were generated alone."""

    def __init__(self, parser: RequestParser, new_session: Callable[..., Session], slots: int) -> None:
        self._parser, self._new_session, self._slots = parser, new_session, slots
        self._batch = Batch(parser.model.runtime, tokens=_ANY, most=slots)
        # Unused, but keeps shared objects such as draft heads open between texts.
        self._kept: Session | None = None
        self._ended: deque[tuple[int, RowRequest, RowResult]] = deque()
        self.running: dict[int, _Text] = {}
        self.tokens = 0

    @property
    def full(self) -> bool:
        return len(self.running) >= self._slots

    def add(self, number: int, request: RowRequest) -> None:
        """Start a text, or end it at once with an error."""
        if request.error:
            self._ended.append((number, request, RowResult(error=request.error)))
            return
        self._kept = self._kept or self._new_session()  # if that fails, all rows would
        try:
            way = {} if request.diffusion is None else {"diffusion": request.diffusion}
            session = self._new_session(**way)
            self.running[number] = self._start(number, request, session)
        except EdgedecError as error:
            self._ended.append((number, request, RowResult(error=str(error))))

    def finish(self) -> None:
        """Note that no further texts come."""
        self._batch.last = True

    def step(self) -> Iterator[tuple[int, RowRequest, RowResult]]:
        """One forward for all texts; returns the texts that ended."""
        if self.running:
            self._batch.step()
            # The caches of ended texts are kept as prefixes, as many as texts run at a time.
            self._batch.prefixes.evict(lambda: len(self._batch.prefixes) <= self._slots)
        while self._ended:
            yield self._ended.popleft()

    def _start(self, number: int, request: RowRequest, session: Session) -> _Text:
        config = request.config
        if request.constraint is not None:
            config = config.override({"constraint": self._parser.constraint(*request.constraint)})
        if request.processors or request.fuse:
            shaping = make_shaping(self._parser.model, request.fuse, request.processors)
            config = config.override({"processors": shaping})
        text = _Text(session, request)

        def on_token(token: Token | None) -> None:
            if token is None:
                self.running.pop(number, None)
                self._ended.append((number, request, text.result()))
                text.job = None  # breaks a reference cycle, so that the cache is freed at once
                return
            self.tokens += 1
            if text.push(token) and text.job is not None:
                self._batch.cancel(text.job)

        text.job = session.submit(self._batch, request.ids, on_token, config)
        return text


class _Text:
    """A text while it is generated."""

    def __init__(self, session: Session, request: RowRequest) -> None:
        self.session, self.request = session, request
        self.job: Job | None = None
        self._stream = TextStream(session.model.tokenizer, request.config.stop, request.ids)
        self._pieces: list[str] = []
        self._stopped = False

    def push(self, token: Token) -> bool:
        """Add a token; returns whether a stop string ended the text."""
        text, self._stopped = self._stream.push(token)
        self._pieces.append(text)
        return self._stopped

    def result(self) -> RowResult:
        """The row's result after the text's end."""
        stats, sampling = self.session.stats, self.request.config.sampling
        error = None if self.job is None else self.job.error
        # A context that ran full ends the text; one that is too small for the prompt is an error.
        full = isinstance(error, ContextFull) and stats.generated > 0
        if error is not None and not full:
            return RowResult(error=str(error))
        if not self._stopped:
            text, self._stopped = self._stream.flush()
            self._pieces.append(text)
        finish = "stop" if self._stopped else "context" if full else stats.finish
        seed = sampling.seed if sampling.temperature > 0 else None
        return RowResult("".join(self._pieces), finish, stats.prompt, stats.generated, seed)
