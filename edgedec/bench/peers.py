"""Comparison of engines on the same weights, in turns; an engine that cannot run is left out with the reason.

Two rounds of turns: first each reads a prompt and generates, then each makes calls of k rows. ONNX Runtime
opens other graphs for the second, so that neither its speed nor its memory in the first pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from edgedec.bench.timing import BenchWorker, Config, Spread
from edgedec.errors import EdgedecError, RuntimeUnavailable

Progress = Callable[[int, int], None]
# decode: one token a call; drafted: the same tokens with drafts, where the engine makes any.
_PARTS = ("prefill", "decode", "drafted")


@dataclass(frozen=True)
class Rounds:
    """The requests to every engine: `repetitions` turns of each kind after one to warm up."""

    counts: tuple[int, ...]
    context: int
    repetitions: int

    def requests(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Every request, and whether its answer counts."""
        for kind in ({"do": "run"}, {"do": "rows", "context": self.context, "counts": list(self.counts)}):
            for repetition in range(self.repetitions + 1):
                yield kind, repetition > 0
            if kind["do"] == "run":
                yield {"do": "end"}, True


@dataclass(frozen=True)
class Standing:
    """One engine's repetitions in seconds: `prefill`, `decode`, and calls of "1", "2", … rows."""

    config: Config
    facts: dict[str, Any]
    seconds: dict[str, list[float]]
    all_logits: bool
    peak_bytes: int

    def to_json(self, counts: Sequence[int]) -> dict[str, Any]:
        rows = {str(k): Spread.of([1000 * s for s in self.seconds[str(k)]]) for k in counts}
        prefill, decode = (self._speed(part) for part in ("prefill", "decode"))
        drafted = self._speed("drafted") if "drafted" in self.seconds else None
        return {
            **self.facts,
            "logits": "all rows" if self.all_logits else "last row only",
            "rows": {k: spread.median for k, spread in rows.items()},
            "prefill_tok_s": prefill.median,
            "decode_tok_s": decode.median,
            "drafted_tok_s": drafted and drafted.median,
            "peak_rss_mb": self.peak_bytes / 1e6,
            "spread": {
                "rows": {k: asdict(spread) for k, spread in rows.items()},
                "prefill_tok_s": asdict(prefill),
                "decode_tok_s": asdict(decode),
                "drafted_tok_s": drafted and asdict(drafted),
            },
        }

    def _speed(self, part: str) -> Spread:
        tokens = self.config.prompt if part == "prefill" else self.config.generate
        return Spread.of([tokens / s for s in self.seconds[part]])

    def faster_than(self, other: Standing) -> dict[str, Spread]:
        """The ratio of edgedec's speed to another's, one quotient per pair of repetitions."""
        common = [part for part in self.seconds if part in other.seconds]
        pairs = ((part, zip(self.seconds[part], other.seconds[part], strict=True)) for part in common)
        return {part: Spread.of([b / a for a, b in pair]) for part, pair in pairs}


def compare(
    configs: Mapping[str, Config],
    rounds: Rounds,
    left_out: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, Standing], dict[str, str]]:
    """The standings by name, and for each engine that took no part the reason (`left_out`: those known before)."""
    with ExitStack() as stack:
        table = _Contest(stack, left_out)
        for name, config in configs.items():
            table.add(name, config)
        requests = list(rounds.requests())
        for done, (request, counts) in enumerate(requests):
            table.turn(request, counts)
            progress(done + 1, len(requests))
    if not table.workers:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in table.skipped.items())
        raise RuntimeUnavailable(f"no engine could be measured: {reasons}")
    return {name: _standing(worker, table.answers[name]) for name, worker in table.workers.items()}, table.skipped


def results(standings: Mapping[str, Standing], counts: Sequence[int]) -> dict[str, Any]:
    """Everyone's numbers, and the speed of the first over each of the others'."""
    first, *others = standings
    return {
        "engines": {name: standing.to_json(counts) for name, standing in standings.items()},
        "base": first,
        "ratios": {name: _ratios(standings[first].faster_than(standings[name])) for name in others},
    }


def _ratios(found: Mapping[str, Spread]) -> dict[str, Any]:
    """{"prefill", "decode", "rows": {"1": …}}, each with median, min, max, spread."""
    rows = {part: asdict(spread) for part, spread in found.items() if part.isdecimal()}
    return {part: asdict(spread) for part, spread in found.items() if part not in rows} | {"rows": rows}


class _Contest:
    """The processes that take turns. One that fails is left out; the others continue."""

    def __init__(self, stack: ExitStack, left_out: Mapping[str, str]) -> None:
        self._stack = stack
        self.workers: dict[str, BenchWorker] = {}
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.skipped = dict(left_out)

    def add(self, name: str, config: Config) -> None:
        try:
            self.workers[name] = self._stack.enter_context(BenchWorker(config))
            self.answers[name] = []
        except EdgedecError as error:
            self._skip(name, config, error)

    def turn(self, request: dict[str, Any], counts: bool) -> None:
        for name, worker in list(self.workers.items()):
            try:
                answer = worker.request(request)
            except EdgedecError as error:
                self._skip(name, self.workers.pop(name).config, error)
            else:
                self.answers[name] += [answer] if counts else []

    def _skip(self, name: str, config: Config, error: EdgedecError) -> None:
        self.skipped[name] = str(error).removeprefix(f"{config.label}: ")


def _standing(worker: BenchWorker, answers: list[dict[str, Any]]) -> Standing:
    seconds: dict[str, list[float]] = {}
    peak, all_logits = 0, True
    for answer in answers:
        peak, all_logits = answer.get("peak_bytes", peak), answer.get("all_logits", all_logits)
        parts = {part: answer[f"{part}_s"] for part in _PARTS if f"{part}_s" in answer}
        for part, took in (parts | answer.get("rows_s", {})).items():
            seconds.setdefault(part, []).append(took)
    return Standing(worker.config, worker.facts, seconds, all_logits, peak)
