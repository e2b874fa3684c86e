"""Requests to texts: many sequences in one continuous batch, replaced as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.errors import ContextFull, EdgedecError
from edgedec.fusion import make_shaping
from edgedec.offline.parser import RequestParser
from edgedec.offline.row import RowRequest, RowResult
from edgedec.search.choices import likelihood
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
        self.running: dict[int, _RowTexts] = {}
        self.tokens = 0

    @property
    def full(self) -> bool:
        return sum(row.left for row in self.running.values()) >= self._slots

    def add(self, number: int, request: RowRequest) -> None:
        """Start a text, or end it at once with an error."""
        if request.error:
            self._ended.append((number, request, RowResult(error=request.error)))
            return
        self._kept = self._kept or self._new_session()  # if that fails, all rows would
        row = _RowTexts(request)
        try:
            config = self._config(request)
            for choice in range(request.choices.texts):
                self._start(number, row, request.choices.config(config, choice, request.stride))
        except EdgedecError as error:
            row.fail(RowResult(error=str(error)))
            self.running.pop(number, None)
            self._ended.append((number, request, row.result()))

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

    def _config(self, request: RowRequest) -> GenerationConfig:
        """The row's config, with its constraint and its processors."""
        config = request.config
        if request.constraint is not None:
            config = config.override({"constraint": self._parser.constraint(*request.constraint)})
        if request.processors or request.fuse:
            shaping = make_shaping(self._parser.model, request.fuse, request.processors)
            config = config.override({"processors": shaping})
        return config

    def _start(self, number: int, row: _RowTexts, config: GenerationConfig) -> None:
        """Start one of the texts of a row."""
        request = row.request
        session = self._new_session(**({} if request.diffusion is None else {"diffusion": request.diffusion}))
        text = _Text(session, request.ids, config)

        def on_token(token: Token | None) -> None:
            if token is not None:
                self.tokens += 1
                if text.push(token) and text.job is not None:
                    self._batch.cancel(text.job)
                return
            row.end(text, self._batch.cancel)
            text.job = None  # breaks a reference cycle, so that the cache is freed at once
            if not row.left and self.running.pop(number, None) is not None:
                self._ended.append((number, request, row.result()))

        text.job = session.submit(self._batch, request.ids, on_token, config)
        row.texts.append(text)
        self.running[number] = row


class _RowTexts:
    """The texts of a row. left: how many have not ended."""

    def __init__(self, request: RowRequest) -> None:
        self.request, self.texts, self.left = request, list[_Text](), request.choices.texts
        self._found = dict[_Text, RowResult]()
        self._failed: RowResult | None = None

    def end(self, text: _Text, cancel: Callable[[Job], None]) -> None:
        """Note that a text has ended; an error ends the row's others."""
        found = text.result()
        self._found[text] = found
        self.left -= 1
        if found.error and self._failed is None:
            self.fail(found, cancel)

    def fail(self, found: RowResult, cancel: Callable[[Job], None] = Job.end) -> None:
        """End the row with an error."""
        self._failed = found
        for other in self.texts:
            if other.job is not None and other not in self._found:
                cancel(other.job)

    def result(self) -> RowResult:
        """The row's result, once all its texts have ended: its error, or the texts that are given."""
        if self._failed is not None:
            return self._failed
        found = [self._found[text] for text in self.texts]
        first, *others = self.request.choices.best(found, lambda one: one.score)
        return replace(first, others=tuple(others), written=sum(one.generated for one in found))


class _Text:
    """A text while it is generated."""

    def __init__(self, session: Session, ids: Sequence[int], config: GenerationConfig) -> None:
        self.session, self._config = session, config
        self.job: Job | None = None
        self._stream = TextStream(session.model.tokenizer, config.stop, ids)
        self._pieces, self._tokens = list[str](), list[Token]()
        self._stopped = False

    def push(self, token: Token) -> bool:
        """Add a token; returns whether a stop string ended the text."""
        text, self._stopped = self._stream.push(token)
        self._pieces.append(text)
        self._tokens.append(token)
        return self._stopped

    def result(self) -> RowResult:
        """The text's result after its end."""
        stats, sampling = self.session.stats, self._config.sampling
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
        text, score = "".join(self._pieces), likelihood(self._tokens)
        return RowResult(text, finish, stats.prompt, stats.generated, seed, score=score)
