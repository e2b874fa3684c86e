"""The gain of batching: the same texts one after another and many at a time, compared with other engines, in turns.

At one size all ways to draft generate the texts side by side, a step of each in turn, so that a machine whose speed
changes affects all of them equally; then each peer does, and so on through the sizes. Each repetition begins at another
place of that order. A speed is that of new tokens over the whole of the time, reading the prompts included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgedec.bench.prompts import Prompt
from edgedec.bench.timing import Spread
from edgedec.decoding.config import GenerationConfig
from edgedec.drafters import Tables
from edgedec.errors import EdgedecError, UsageError
from edgedec.offline.parser import RequestParser
from edgedec.offline.row import Defaults, RowRequest
from edgedec.offline.runner import BatchRunner

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

SEQUENTIAL = 0
"""The size of a plain loop: no batch at all."""
_LENGTHS = (8, 16, 32, 64)
_WARM_UP = 8
_OURS = ""  # in the order of turns: all ways to draft


@dataclass(frozen=True)
class BatchWork:
    """Prompts as tokens, and how many tokens follow each."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: int

    @property
    def total(self) -> int:
        return len(self.prompts) * self.tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest text at its end."""
        return max(map(len, self.prompts)) + self.tokens

    def few(self, size: int) -> BatchWork:
        """Enough for a warm-up at this size."""
        return replace(self, prompts=self.prompts[: max(1, size)], tokens=min(self.tokens, _WARM_UP))


class Took(NamedTuple):
    """Seconds for all texts; the texts themselves, if they are to be compared; of a server, the seconds between the
    arrivals of each text's tokens."""

    seconds: float
    texts: list[str] | None = None
    gaps: Sequence[float] = ()


class Contestant(Protocol):
    """An engine that takes part."""

    def run(self, work: BatchWork, size: int) -> Took:
        """All texts, `size` at a time."""
        ...


class SteppedContestant(Protocol):
    """One whose run can pause."""

    def steps(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
        """As `run`, with a pause after each step; returns the texts."""
        ...


@dataclass
class BatchMeasured:
    """tokens/s by contestant and size, one a repetition; `gaps`: of servers, the seconds that 95 % of the tokens of a
    text follow one another within; `differ`: the number of texts that differ from those of the first loop; `skipped`:
    contestants that could not run, with reasons."""

    speeds: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    gaps: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    differ: dict[str, dict[int, int]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def keep_whole_turns(self, cells: int) -> None:
        """Drop the turn that an interrupt broke off; KeyboardInterrupt if that is all there is."""
        lists = [speeds for sizes in self.speeds.values() for speeds in sizes.values()]
        whole = min(map(len, lists)) if len(lists) == cells else 0
        if not whole:
            raise KeyboardInterrupt
        for values in (*lists, *(gaps for sizes in self.gaps.values() for gaps in sizes.values())):
            del values[whole:]
        self.interrupted = True

    @property
    def identical(self) -> bool:
        return not any(count for sizes in self.differ.values() for count in sizes.values())

    def speed(self, name: str, size: int) -> Spread:
        return Spread.of(self.speeds[name][size])

    def ratio(self, name: str, size: int, other: str, base: int) -> Spread:
        """One's speed over another's, repetitions beside each other."""
        pairs = zip(self.speeds[name][size], self.speeds[other][base], strict=True)
        return Spread.of([a / b for a, b in pairs])

    def calls_between(self, server: str, size: int, batch: str) -> Spread:
        """The time between a server's tokens, in calls: the time in which the batch adds a token to each text."""
        pairs = zip(self.gaps[server][size], self.speeds[batch][size], strict=True)
        return Spread.of([gap * speed / size for gap, speed in pairs])

    def report(self, ours: Sequence[str], servers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Speeds by size, 0 for the loop; ratios of edgedec to its first way to draft, to the loop of the same
        repetition, to each peer at the same size, and of its servers to the batch. servers: contestants, and the one of
        `ours` that each serves."""

        def ratios(name: str, sizes: Iterable[int], other: str, base: int | None = None) -> dict[str, Any]:
            return {str(size): asdict(self.ratio(name, size, other, size if base is None else base)) for size in sizes}

        speeds = {name: {str(n): asdict(self.speed(name, n)) for n in sorted(by)} for name, by in self.speeds.items()}
        served = {name: batch for name, batch in (servers or {}).items() if name in self.speeds}
        peers = {name: sorted(by) for name, by in self.speeds.items() if name not in {*ours, *served}}
        return {
            "tokens_per_s": speeds,
            "over_first": {name: ratios(name, sorted(self.speeds[name]), ours[0]) for name in ours[1:]},
            "over_sequential": {name: ratios(name, sorted(self.speeds[name]), name, SEQUENTIAL) for name in ours},
            "over_peers": {peer: {name: ratios(name, sizes, peer) for name in ours} for peer, sizes in peers.items()},
            "served_over_batch": {name: ratios(name, sorted(self.speeds[name]), of) for name, of in served.items()},
            "served_p95_calls": {
                name: {
                    str(size): asdict(self.calls_between(name, size, of)) for size in sorted(self.gaps.get(name, {}))
                }
                for name, of in served.items()
            },
            "identical": self.identical,
            "differ": {name: {str(size): n for size, n in by.items() if n} for name, by in self.differ.items()},
            "skipped": self.skipped,
        }


def work_of(model: Model, prompts: Sequence[Prompt], n: int, tokens: int) -> BatchWork:
    """n texts for this model."""
    work = BatchWork(tuple(tuple(model.tokenizer.encode(text)) for text in texts_of(prompts, n)), tokens)
    if work.longest >= model.spec.context_length:
        raise UsageError(
            f"a prompt of {work.longest - tokens} tokens and {tokens} more do not fit the context of "
            f"{model.spec.context_length}: ask for fewer tokens"
        )
    return work


def texts_of(prompts: Sequence[Prompt], n: int) -> Iterator[str]:
    """The prompts over and over, each time from a word later on and of another length, the front moved to the end.

    Hardly two begin alike, so that no session finds a prompt in its cache.
    """
    for i in range(n):
        turn, which = divmod(i, len(prompts))
        words = prompts[which].turns[0].split(" ")
        at = turn % len(words)
        yield " ".join((words[at:] + words[:at])[: _LENGTHS[(turn + which) % len(_LENGTHS)]])


class Ours:
    """edgedec with one way to draft."""

    def __init__(self, model: Model, speculate: str) -> None:
        self._model, self._speculate = model, speculate
        self._tables: Tables = {}
        model.session(context=1, speculate=speculate)  # invalid options fail here, not at the first turn

    def run(self, work: BatchWork, size: int) -> Took:
        return side_by_side({"": self}, work, size)[""]

    def steps(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
        return self._one_by_one(work) if size == SEQUENTIAL else self._together(work, size)

    def _session(self, work: BatchWork) -> Session:
        return self._model.session(context=work.longest, speculate=self._speculate, tables=self._tables)

    def _one_by_one(self, work: BatchWork) -> Generator[None, None, list[str]]:
        session, config, texts = self._session(work), _config(work), list[str]()
        for ids in work.prompts:
            text = ""
            for piece in session.stream(ids, config):
                text += piece.text
                yield
            texts.append(text)
        return texts

    def _together(self, work: BatchWork, size: int) -> Generator[None, None, list[str]]:
        """The texts as `edgedec batch` generates them."""
        runner = BatchRunner(RequestParser(self._model, Defaults()), lambda **_: self._session(work), size)
        waiting, texts = deque(enumerate(work.prompts)), [""] * len(work.prompts)
        while waiting or runner.running:
            while waiting and not runner.full:
                number, ids = waiting.popleft()
                runner.add(number, RowRequest(lambda result: {}, ids, _config(work)))
            if not waiting:
                runner.finish()
            for number, _, result in runner.step():
                if result.error or result.generated != work.tokens:
                    raise EdgedecError(
                        f"text {number} ended after {result.generated} of {work.tokens} tokens: "
                        f"{result.error or result.finish}"
                    )
                texts[number] = result.text
            yield
        return texts


def _config(work: BatchWork) -> GenerationConfig:
    return GenerationConfig(max_tokens=work.tokens, ignore_eos=True)


def side_by_side(
    contestants: Mapping[str, SteppedContestant], work: BatchWork, size: int, first: int = 0
) -> dict[str, Took]:
    """All of them at one size, a step of each in turn, each with the time of its own steps. first: whose is first."""
    names = deque(contestants)
    names.rotate(-first)
    running = {name: contestants[name].steps(work, size) for name in names}
    seconds, texts = dict.fromkeys(contestants, 0.0), dict[str, list[str]]()
    while running:
        for name, steps in [*running.items()]:
            began = perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                texts[name] = end.value
                del running[name]
            seconds[name] += perf_counter() - began
    return {name: Took(seconds[name], texts[name]) for name in contestants}


def measure(
    ours: Mapping[str, SteppedContestant],
    peers: Mapping[str, Contestant],
    sizes: Sequence[int],
    work: BatchWork,
    repetitions: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    expect: Callable[[float], None] = lambda seconds: None,
) -> BatchMeasured:
    """`repetitions` of everyone at every size, ours one after another as well, after a few texts to warm up.

    A peer that fails is left out from then on. `expect` is called with the seconds that it may take, after the warm-up.
    Interrupted, it returns the turns that are whole.
    """
    found = BatchMeasured()
    cells = [(name, size) for size in (SEQUENTIAL, *sizes) for name in (_OURS, *peers) if name == _OURS or size]
    expected, seconds = list[str](), 0.0
    try:
        for turn in range(repetitions + 1):
            at = max(0, turn - 1) * max(1, len(cells) // repetitions)
            for done, (name, size) in enumerate(cells[at:] + cells[:at], 1):
                part = work if turn else work.few(size)
                runs = dict[str, Took]()
                if name == _OURS:
                    runs = side_by_side(ours, part, size, turn)
                elif name not in found.skipped:
                    try:
                        runs = {name: peers[name].run(part, size)}
                    except EdgedecError as error:
                        found.skipped[name] = str(error)
                        found.speeds.pop(name, None)
                for who, took in runs.items():
                    seconds += 0 if turn else took.seconds * work.total / part.total
                    expected = _count(found, work, who, size, took, expected) if turn else expected
                progress(turn * len(cells) + done, (repetitions + 1) * len(cells))
            if not turn:
                expect(seconds * repetitions)
    except KeyboardInterrupt:
        running = [*ours, *(name for name in peers if name not in found.skipped)]
        found.keep_whole_turns(len(running) * len(sizes) + len(ours))
    return found


def _count(found: BatchMeasured, work: BatchWork, name: str, size: int, took: Took, expected: list[str]) -> list[str]:
    """Add a run; returns the texts that all others are compared with."""
    found.speeds.setdefault(name, {}).setdefault(size, []).append(work.total / took.seconds)
    if len(took.gaps) > 1:
        found.gaps.setdefault(name, {}).setdefault(size, []).append(quantiles(took.gaps, n=20)[-1])
    if took.texts is None:
        return expected
    expected = expected or took.texts
    others = sum(a != b for a, b in zip(took.texts, expected, strict=True))
    sizes = found.differ.setdefault(name, {})
    sizes[size] = max(sizes.get(size, 0), others)
    return expected
