"""Several sessions that write at the same time: one forward for all, each text what it would be alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import UsageError
from edgedec.given_options import with_options
from edgedec.search.choices import Choices, likelihood
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
    batch = _batch(sessions)
    texts = [_Written(batch, one, stops) for one in sessions]
    for i, text in enumerate(texts):
        text.start(None, max_tokens=max_tokens, stop=stops, **_own(options, i))
    batch.run()
    return [text.result() for text in texts]


@dataclass(frozen=True)
class WrittenText:
    """One of several texts of a prompt. tokens: with their log-probabilities, if these were asked for; finish: why it
    ended; seed: with which it is written again alone; score: its mean log-probability, 0 if not known; search: what its
    search took, empty without one."""

    text: str
    tokens: tuple[Token, ...]
    finish: str
    seed: int | None
    score: float
    stats: Stats
    search: dict[str, Any]


def several(
    session: Session,
    prompt: str | Sequence[int] | None,
    n: int,
    best_of: int = 0,
    config: GenerationConfig | None = None,
    **options: Any,
) -> list[WrittenText]:
    """n texts after `prompt` (None: after the session's text), written side by side: as many as `best_of` (0: n), of
    which the n likeliest are given, the best first. The prompt is read once. Text i has the seed s + i, s random if
    left out; of a beam search it is the i-th best. The session's own text stays as it is. options: those of
    `Session.tokens`."""
    choices, model = Choices(n, best_of), session.model
    config = with_options(model, config, options)
    choices.check(config)
    if config.sampling.seed is None:
        config = config.override({"seed": secrets.randbits(32)})
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    forks = [session.fork() for _ in range(choices.texts)]
    batch = _batch(forks)
    texts = [_Written(batch, fork, config.stop, session.ids if ids is None else ids) for fork in forks]
    for i, text in enumerate(texts):
        text.start(ids, config=choices.config(config, i))
    batch.run()
    return choices.best([text.written() for text in texts], lambda one: one.score)


def _batch(sessions: Sequence[Session]) -> Batch:
    batch = Batch(sessions[0].model.runtime, tokens=1 << 62, most=len(sessions))
    batch.last = True  # further texts do not come
    return batch


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

    def __init__(
        self, batch: Batch, session: Session, stops: Sequence[str], before: Sequence[int] | None = None
    ) -> None:
        self._batch, self._session, self._before = batch, session, list(session.ids if before is None else before)
        self._stream = TextStream(session.model.tokenizer, stops, self._before)
        self._text, self._stopped, self._tokens = "", False, list[Token]()
        self._job: Job | None = None
        self._seed: int | None = None

    def start(self, ids: Sequence[int] | None, config: GenerationConfig | None = None, **options: Any) -> None:
        """Begin the text after `ids`, None: after the session's."""
        take: Callable[[Token | None], None] = self._take
        if config is not None and config.sampling.temperature > 0:
            self._seed = config.sampling.seed
        self._job = self._session.submit(self._batch, ids, take, config, **options)

    def _take(self, token: Token | None) -> None:
        if token is None or self._stopped:
            return
        self._tokens.append(token)
        text, self._stopped = self._stream.push(token)
        self._text += text
        if self._stopped and self._job is not None:
            self._batch.cancel(self._job)

    def result(self) -> str:
        """The text, which is the session's afterwards; the error that ended it, if one did."""
        self._end()
        session = self._session
        if self._stopped:
            session.rewrite([*self._before, *written(session.model.tokenizer, self._before, self._made(), self._text)])
        return self._text

    def written(self) -> WrittenText:
        """The text with what is known of it; the error that ended it, if one did."""
        self._end()
        stats, score = self._session.stats, likelihood(self._tokens)
        report = self._session.search_report()
        return WrittenText(self._text, tuple(self._tokens), stats.finish, self._seed, score, stats, report)

    def _end(self) -> None:
        """Raise what ended it, if something did; else note whether a stop string has."""
        assert self._job is not None, "it was started"
        if self._job.error is not None:
            raise self._job.error
        if not self._stopped:
            text, self._stopped = self._stream.flush()
            self._text += text
        if self._stopped:
            self._session.stats.finish = "stop"

    def _made(self) -> list[int]:
        return self._session.ids[len(self._before) :]
