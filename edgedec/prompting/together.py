"""Several sessions that write at the same time: one forward for all, each text what it would be alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import UsageError
from edgedec.text.stream import TextStream
from edgedec.verbs import written

if TYPE_CHECKING:
    from edgedec.session import Session


def gen_each(sessions: Sequence[Session], max_tokens: int, stop: str | Sequence[str] = (), **options: Any) -> list[str]:
    """As `Session.gen` of each of these sessions, side by side. A seed s is s + i for session i, so that forks write
    different texts. options: those of `Session.tokens`; a constraint is forked for each."""
    if not sessions:
        return []
    if any(one.model is not sessions[0].model for one in sessions):
        raise UsageError("sessions of several models: give sessions of one")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    batch = Batch(sessions[0].model.runtime, tokens=1 << 62, most=len(sessions))
    texts = [_Written(batch, one, stops) for one in sessions]
    for i, text in enumerate(texts):
        text.start(max_tokens=max_tokens, stop=stops, **_own(options, i))
    batch.last = True
    batch.run()
    return [text.result() for text in texts]


def _own(options: dict[str, Any], i: int) -> dict[str, Any]:
    """The options of text i: a random stream and a constraint of its own."""
    found = dict(options)
    if found.get("seed") is not None:
        found["seed"] += i
    if hasattr(found.get("constraint"), "fork"):
        found["constraint"] = found["constraint"].fork()
    if found.get("processors") and not isinstance(found["processors"], str):
        found["processors"] = tuple(processor.fork() for processor in found["processors"])
    return found


class _Written:
    """A text while it is written."""

    def __init__(self, batch: Batch, session: Session, stops: Sequence[str]) -> None:
        self._batch, self._session, self._before = batch, session, session.ids
        self._stream = TextStream(session.model.tokenizer, stops, self._before)
        self._text, self._stopped = "", False
        self._job: Job | None = None

    def start(self, **options: Any) -> None:
        take: Callable[[Token | None], None] = self._take
        self._job = self._session.submit(self._batch, None, take, **options)

    def _take(self, token: Token | None) -> None:
        if token is None or self._stopped:
            return
        text, self._stopped = self._stream.push(token)
        self._text += text
        if self._stopped and self._job is not None:
            self._batch.cancel(self._job)

    def result(self) -> str:
        """The text; the error that ended it, if one did."""
        assert self._job is not None, "it was started"
        if self._job.error is not None:
            raise self._job.error
        if not self._stopped:
            text, self._stopped = self._stream.flush()
            self._text += text
        session = self._session
        if self._stopped:
            session.stats.finish = "stop"
            session.rewrite([*self._before, *written(session.model.tokenizer, self._before, self._made(), self._text)])
        return self._text

    def _made(self) -> list[int]:
        return self._session.ids[len(self._before) :]
