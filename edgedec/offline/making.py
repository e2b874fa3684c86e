"""What to generate -> texts: a pool of sessions in one continuous batch, refilled as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgedec.decoding.batching import Batch, Job
from edgedec.decoding.loop import Token
from edgedec.errors import ContextFull, EdgedecError
from edgedec.offline.asking import Asked, Asker, Result
from edgedec.text.tokenizer import Detokenizer, StopStrings

if TYPE_CHECKING:
    from edgedec.session import Session


class Maker:
    """At most `slots` texts at a time; each of them is what its session would say alone."""

    def __init__(self, asker: Asker, new_session: Callable[[], Session], slots: int) -> None:
        self._asker, self._new_session, self._slots = asker, new_session, slots
        self._batch = Batch(asker.model.runtime, tokens=1 << 62, most=slots)
        self._free: list[Session] = []
        self._ended: deque[tuple[int, Asked, Result]] = deque()
        self.running: dict[int, _Text] = {}
        self.tokens = 0

    @property
    def full(self) -> bool:
        return len(self.running) >= self._slots

    def put(self, number: int, asked: Asked) -> None:
        """A text begins, or is refused at once."""
        if asked.error:
            self._ended.append((number, asked, Result(error=asked.error)))
            return
        session = self._take()
        try:
            must = None if asked.must is None else self._asker.constraint(asked.must)
            text = _Text(number, asked, session, self)
            text.job = session.submit(
                self._batch,
                asked.ids,
                text.tell,
                max_tokens=asked.max_tokens,
                sampling=asked.sampling,
                ignore_eos=asked.ignore_eos,
                constraint=must,
            )
            self.running[number] = text
        except EdgedecError as error:
            self._free.append(session)
            self._ended.append((number, asked, Result(error=str(error))))

    def step(self) -> Iterator[tuple[int, Asked, Result]]:
        """One call for all, and the texts that it ended."""
        if self.running:
            self._batch.step()
        while self._ended:
            yield self._ended.popleft()

    def end(self, text: _Text) -> None:
        self.running.pop(text.number, None)
        self._free.append(text.session)
        self._ended.append((text.number, text.asked, text.result()))

    def cancel(self, job: Job) -> None:
        self._batch.cancel(job)

    def _take(self) -> Session:
        """The session that ended last: its cache is the warmest. They are made as they are needed."""
        return self._free.pop() if self._free else self._new_session()


class _Text:
    """A text in the making."""

    def __init__(self, number: int, asked: Asked, session: Session, maker: Maker) -> None:
        self.number, self.asked, self.session, self.maker = number, asked, session, maker
        self.job: Job | None = None
        self._detokenizer = Detokenizer(session.model.tokenizer, prompt_ids=asked.ids)
        self._stops = StopStrings(asked.stop)
        self._pieces: list[str] = []
        self._hit = False

    def tell(self, token: Token | None) -> None:
        if token is None:
            self.maker.end(self)
        elif not self._hit:
            self.maker.tokens += 1
            text, self._hit = self._stops.push(self._detokenizer.push(token))
            self._pieces.append(text)
            if self._hit and self.job is not None:
                self.maker.cancel(self.job)

    def result(self) -> Result:
        stats = self.session.stats
        error = None if self.job is None else self.job.error
        # A context that ran full ends the text; one that is too small for the prompt is a mistake.
        full = isinstance(error, ContextFull) and stats.generated > 0
        if error is not None and not full:
            return Result(error=str(error))
        if not self._hit:
            text, hit = self._stops.push(self._detokenizer.flush())
            rest, late = self._stops.flush()
            self._pieces += [text, rest]
            self._hit = hit or late
        finish = "stop" if self._hit else "context" if full else stats.finish
        seed = self.asked.sampling.seed if self.asked.sampling.temperature > 0 else None
        return Result("".join(self._pieces), finish, stats.prompt, stats.generated, seed)
