"""Counters and histograms of the server in Prometheus' text format (0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from edgedec.server.engine import EngineThread
from edgedec.server.requests import EndEvent

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts of values below each bound."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(_BOUNDS) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(_BOUNDS, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        below = list(accumulate(self.counts))
        buckets = [f'{name}_bucket{{le="{le}"}} {n}' for le, n in zip((*_BOUNDS, "+Inf"), below)]
        return [*buckets, f"{name}_sum {self.total:.6f}", f"{name}_count {below[-1]}"]


class Metrics:
    """`on_answer` is called in the event loop, `on_end` in the engine's thread; each writes fields of its own."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.finished: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.waited, self.first = Histogram(), Histogram()

    def on_answer(self, path: str, status: int) -> None:
        self.requests[path, status] += 1

    def on_end(self, end: EndEvent) -> None:
        stats = end.stats
        self.finished[end.finish] += 1
        self.tokens["prompt"] += stats.prompt
        self.tokens["cached"] += stats.cached
        self.tokens["generated"] += stats.generated
        self.tokens["proposed"] += stats.proposed
        self.tokens["accepted"] += stats.accepted
        self.tokens["calls"] += stats.calls
        self.waited.add(end.seconds[0])
        if stats.generated:
            self.first.add(end.seconds[1])

    def text(self, engine: EngineThread) -> str:
        requests = {f'path="{path}",status="{status}"': n for (path, status), n in self.requests.copy().items()}
        finished = {f'reason="{reason}"': n for reason, n in self.finished.copy().items()}
        lines = [
            *_family("requests_total", "counter", "Requests by path and status.", requests),
            *_family("texts_total", "counter", "Texts that ended, by reason.", finished),
            *_family("prompt_tokens_total", "counter", "Tokens of prompts.", {"": self.tokens["prompt"]}),
            *_family(
                "prompt_tokens_cached_total", "counter", "Prompt tokens found in a cache.", {"": self.tokens["cached"]}
            ),
            *_family("generated_tokens_total", "counter", "Tokens generated.", {"": self.tokens["generated"]}),
            *_family("calls_total", "counter", "Forward calls that gave tokens.", {"": self.tokens["calls"]}),
            *_family(
                "drafted_tokens_total", "counter", "Tokens that drafters proposed.", {"": self.tokens["proposed"]}
            ),
            *_family(
                "accepted_tokens_total", "counter", "Proposed tokens that were accepted.", {"": self.tokens["accepted"]}
            ),
            *_family("slots", "gauge", "Texts that may run at a time.", {"": engine.limits.slots}),
            *_family("running", "gauge", "Texts that run.", {"": engine.running}),
            *_family("waiting", "gauge", "Texts that wait for a slot or for room in the caches.", {"": engine.waiting}),
            *_family(
                "kv_tokens",
                "gauge",
                "Tokens that the caches hold or may come to hold, those of ended texts included.",
                {"": engine.held},
            ),
            *_family("kv_tokens_limit", "gauge", "Most tokens that the caches may hold.", {"": engine.limits.room}),
            *_head("wait_seconds", "histogram", "Time until a text started."),
            *self.waited.lines("edgedec_wait_seconds"),
            *_head("first_token_seconds", "histogram", "Time from there to its first token."),
            *self.first.lines("edgedec_first_token_seconds"),
        ]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, about: str, values: dict[str, int]) -> list[str]:
    rows = [f"edgedec_{name}{{{labels}}} {n}" if labels else f"edgedec_{name} {n}" for labels, n in values.items()]
    return [*_head(name, kind, about), *rows]


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP edgedec_{name} {about}", f"# TYPE edgedec_{name} {kind}"]
