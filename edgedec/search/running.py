"""A search as the loop of a runner or a batch."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.gathering import held_besides
from edgedec.decoding.messages import Completed, ForkLoop, Stats, Together, Token, Waiting
from edgedec.errors import UsageError
from edgedec.search.branch import Branch
from edgedec.search.found import FoundText, SearchResult
from edgedec.search.host import SearchHost
from edgedec.search.making import FAMILY, make_search, parse_search, rows_besides
from edgedec.search.record import BranchTrace, SearchRecord
from edgedec.search.room import Room


class SearchRun:
    """The search of one generation. `loop`: for the runner; `width`: its branches at most."""

    def __init__(self, host: SearchHost, context: Context, config: GenerationConfig, stats: Stats) -> None:
        self.words, self.name = config.search, parse_search(config.search).name
        self._strategy = make_search(host, config.search)
        if context.sinks is not None:
            raise UsageError(f"--search {self.words}: a sliding context (--on-full slide) has no branches")
        self.width = self._strategy.width
        self.room = Room(host, context, config, stats)
        self._chosen: Branch | None = None
        self.loop = self._run()

    @property
    def need(self) -> int:
        """The tokens that its caches may come to hold, all branches together, those of its processors, and
        rows that are no text."""
        room = self.room
        besides = held_besides(room.config.processors, room.n_prompt + room.most)
        return room.n_prompt + self.width * (room.most + besides + rows_besides(self._strategy))

    def found(self, text: str) -> SearchResult:
        """What it found, once it has ended. text: of the answer."""
        room, chosen = self.room, self._chosen
        assert chosen is not None, "the search has ended"
        texts = [FoundText(room.text(one), tuple(map(int, one.tokens)), one.value, one.finish) for one in room.ranked]
        tokens = tuple(map(int, chosen.tokens))
        return SearchResult(text, tokens, chosen.value, room.stats.finish, tuple(texts), self.report())

    def trace(self, out: list[BranchTrace] | None) -> None:
        """Add what becomes of each branch to `out`, if there is one."""
        self.room.record = None if out is None else SearchRecord(out)

    def report(self) -> dict[str, Any]:
        """Counts for display."""
        return {"search": self.words, "lossy": FAMILY.facts(self.name).lossy, **self.room.counts.report()}

    def _run(self) -> ForkLoop:
        room, stats = self.room, self.room.stats
        stats.prompt, stats.cached = room.n_prompt, room.context.cache.length
        room.context.sampling = room.config.sampling
        try:
            self._chosen = chosen = yield from _counted(self._strategy.run(room), room)
            yield from room.commit(chosen)
            stats.finish = chosen.finish or room.limit
        finally:
            if room.record is not None:
                room.record.close(room.ranked, self._chosen, room.counts.forwards)
            room.close()
            room.context.cache.rollback()
            if self._chosen is not None:
                room.adopt(self._chosen)
            room.release()


def _counted(running: Generator[Any, Any, Branch], room: Room) -> Generator[Any, Any, Branch]:
    """The search with its forwards counted and timed."""
    stats, began, answer = room.stats, perf_counter(), None
    try:
        item = next(running)
        while True:
            if isinstance(item, Token | Waiting):
                yield item
                item = next(running)
                continue
            room.counts.forwards += 1
            answer = yield item
            done: list[Completed] = answer if isinstance(item, Together) else [answer]
            ended = perf_counter()
            # The calls of one forward have one time.
            stats.add_call(ended - began, max((each.seconds for each in done), default=0.0))
            began = ended
            item = running.send(answer)
    except StopIteration as end:
        found: Branch = end.value
        return found
    finally:
        running.close()
