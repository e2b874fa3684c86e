"""Counters and histograms of the server in Prometheus' text format (0.0.4).

Metrics with vLLM's meaning have vLLM's names, and the model's name as label; others begin with `edgedec_`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from edgedec.server.drafting import DraftCounts
from edgedec.server.engine import EngineThread
from edgedec.server.requests import EndEvent

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Finish reasons by vLLM's names.
_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
# For each model: name, the count that it shows, description.
_VLLM_COUNTS = (
    ("prompt_tokens_total", "prompt", "Tokens of prompts."),
    ("generation_tokens_total", "generated", "Tokens generated."),
    ("prefix_cache_queries_total", "prompt", "Prompt tokens looked for in a cache."),
    ("prefix_cache_hits_total", "cached", "Prompt tokens found in a cache."),
    ("spec_decode_num_draft_tokens_total", "proposed", "Tokens that drafters proposed."),
    ("spec_decode_num_accepted_tokens_total", "accepted", "Proposed tokens that were accepted."),
)
_OWN_COUNTS = (
    ("prompt_tokens_total", "prompt", "Tokens of prompts."),
    ("prompt_tokens_cached_total", "cached", "Prompt tokens found in a cache."),
    ("generated_tokens_total", "generated", "Tokens generated."),
    ("calls_total", "calls", "Forward calls that gave tokens."),
    ("drafted_tokens_total", "proposed", "Tokens that drafters proposed."),
    ("accepted_tokens_total", "accepted", "Proposed tokens that were accepted."),
)
_TIMES = (
    ("request_queue_time_seconds", "Time until a text started."),
    ("time_to_first_token_seconds", "Time from the request to the first token."),
    ("request_time_per_output_token_seconds", "Mean time of a token after the first."),
    ("e2e_request_latency_seconds", "Time from the request to its end."),
)
Rows = Iterable[tuple[str, float]]


class Histogram:
    """Counts of values below each bound."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(_BOUNDS) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(_BOUNDS, value)] += 1
        self.total += value

    def lines(self, name: str, label: str = "") -> list[str]:
        below, comma = list(accumulate(self.counts)), f"{label}," if label else ""
        buckets = [f'{name}_bucket{{{comma}le="{le}"}} {n}' for le, n in zip((*_BOUNDS, "+Inf"), below)]
        own = f"{{{label}}}" if label else ""
        return [*buckets, f"{name}_sum{own} {self.total:.6f}", f"{name}_count{own} {below[-1]}"]


_OFFLOAD = (
    ("bytes", "gauge", "Bytes of ended texts that are put aside on disk."),
    ("written_total", "counter", "Ended texts that were put aside."),
    ("restored_total", "counter", "Texts that continued one of them."),
    ("dropped_total", "counter", "Ended texts that could not be put aside, or were damaged."),
)


class ModelMetrics:
    """Metrics of one model; written by its engine's thread."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.drafting = DraftCounts()
        self.times = {name: Histogram() for name, _ in _TIMES}
        self.waited, self.first = self.times["request_queue_time_seconds"], Histogram()

    def add(self, end: EndEvent) -> None:
        stats, (waited, first, later) = end.stats, end.seconds
        self.finished[end.finish] += 1
        self.drafting.add(end.drafting)
        for name in ("prompt", "cached", "generated", "proposed", "accepted", "calls"):
            self.tokens[name] += getattr(stats, name)
        self.waited.add(waited)
        self.times["e2e_request_latency_seconds"].add(waited + first + later)
        if stats.generated:
            self.first.add(first)
            self.times["time_to_first_token_seconds"].add(waited + first)
        if stats.generated > 1:
            self.times["request_time_per_output_token_seconds"].add(later / (stats.generated - 1))


class Metrics:
    """`on_answer` is called in the event loop, `on_end` in the thread of a model's engine."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.models: dict[str, ModelMetrics] = {}

    def on_answer(self, path: str, status: int) -> None:
        self.requests[path, status] += 1

    def on_end(self, name: str, end: EndEvent) -> None:
        self.models.setdefault(name, ModelMetrics()).add(end)

    @property
    def finished(self) -> Counter[str]:
        """Texts that ended, by reason."""
        return sum((model.finished for model in self._models().values()), Counter[str]())

    @property
    def tokens(self) -> Counter[str]:
        """Counts of all models together."""
        return sum((model.tokens for model in self._models().values()), Counter[str]())

    @property
    def waited(self) -> Histogram:
        return _merged(model.waited for model in self._models().values())

    @property
    def first(self) -> Histogram:
        return _merged(model.first for model in self._models().values())

    def text(self, engines: Mapping[str, EngineThread], slots: int, loads: int) -> str:
        """All metrics as text; `engines`: of the loaded models; `loads`: the number of model loads so far."""
        counted = _family("edgedec_model_loads_total", "counter", "Models that were loaded.", [("", loads)])
        return "\n".join([*self._vllm(engines), *self._own(engines, slots), *counted]) + "\n"

    def _models(self) -> dict[str, ModelMetrics]:
        return self.models.copy()

    def _vllm(self, engines: Mapping[str, EngineThread]) -> list[str]:
        models = {_label(name): model for name, model in self._models().items()}
        gauges = {_label(name): engine for name, engine in engines.items()}
        lines = [
            *_family("vllm:num_requests_running", "gauge", "Texts that run.", _of(gauges, "running")),
            *_family("vllm:num_requests_waiting", "gauge", "Texts that wait.", _of(gauges, "waiting")),
            *_family(
                "vllm:kv_cache_usage_perc",
                "gauge",
                "Part of the caches that is in use or promised, 1: all.",
                ((label, min(engine.held / engine.limits.room, 1.0)) for label, engine in gauges.items()),
            ),
            *_family("vllm:request_success_total", "counter", "Texts that ended.", _reasons(models)),
        ]
        for name, key, about in _VLLM_COUNTS:
            rows = ((label, model.tokens[key]) for label, model in models.items())
            lines += _family(f"vllm:{name}", "counter", about, rows)
        for name, about in _TIMES:
            lines += _head(f"vllm:{name}", "histogram", about)
            lines += [line for label, m in models.items() for line in m.times[name].lines(f"vllm:{name}", label)]
        return lines

    def _own(self, engines: Mapping[str, EngineThread], slots: int) -> list[str]:
        requests = ((f'path="{path}",status="{status}"', n) for (path, status), n in self.requests.copy().items())
        finished, tokens = self.finished, self.tokens
        lines = [
            *_family("edgedec_requests_total", "counter", "Requests by path and status.", requests),
            *_family(
                "edgedec_texts_total",
                "counter",
                "Texts that ended, by reason.",
                ((f'reason="{reason}"', n) for reason, n in finished.items()),
            ),
        ]
        for name, key, about in _OWN_COUNTS:
            lines += _family(f"edgedec_{name}", "counter", about, [("", tokens[key])])
        for name, about, rows in DraftCounts.of(model.drafting for model in self._models().values()).families():
            lines += _family(f"edgedec_{name}", "counter", about, rows)
        for name, value, about in (
            ("slots", slots, "Texts of a model that may run at a time."),
            ("running", _sum(engines, "running"), "Texts that run."),
            ("waiting", _sum(engines, "waiting"), "Texts that wait for a slot or for room in the caches."),
            ("kv_tokens", _sum(engines, "held"), "Tokens that the caches hold or may come to hold."),
            ("kv_tokens_limit", sum(e.limits.room for e in engines.values()), "Most tokens that they may hold."),
            ("models_loaded", len(engines), "Models in memory."),
        ):
            lines += _family(f"edgedec_{name}", "gauge", about, [("", value)])
        lines += _offloaded(engines)
        lines += [*_head("edgedec_wait_seconds", "histogram", "Time until a text started.")]
        lines += self.waited.lines("edgedec_wait_seconds")
        lines += _head("edgedec_first_token_seconds", "histogram", "Time from there to its first token.")
        return lines + self.first.lines("edgedec_first_token_seconds")


def _merged(parts: Iterable[Histogram]) -> Histogram:
    found = Histogram()
    for part in parts:
        found.counts = [a + b for a, b in zip(found.counts, part.counts, strict=True)]
        found.total += part.total
    return found


def _of(engines: Mapping[str, EngineThread], name: str) -> Rows:
    return ((label, getattr(engine, name)) for label, engine in engines.items())


def _sum(engines: Mapping[str, EngineThread], name: str) -> int:
    return sum(getattr(engine, name) for engine in engines.values())


def _offloaded(engines: Mapping[str, EngineThread]) -> list[str]:
    """Metrics of offloaded texts; empty without offloading."""
    folders, lines = [engine.offload for engine in engines.values() if engine.offload is not None], list[str]()
    for name, kind, about in _OFFLOAD if folders else ():
        total = sum(getattr(folder, name.removesuffix("_total")) for folder in folders)
        lines += _family(f"edgedec_offload_{name}", kind, about, [("", total)])
    return lines


def _reasons(models: Mapping[str, ModelMetrics]) -> Rows:
    for label, model in models.items():
        counts: Counter[str] = Counter()
        for reason, n in model.finished.copy().items():
            counts[_REASONS.get(reason, "abort")] += n
        yield from ((f'{label},finished_reason="{reason}"', n) for reason, n in counts.items())


def _label(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model_name="{escaped}"'


def _family(name: str, kind: str, about: str, values: Rows) -> list[str]:
    rows = [f"{name}{{{labels}}} {n:g}" if isinstance(n, float) else _row(name, labels, n) for labels, n in values]
    return [*_head(name, kind, about), *rows]


def _row(name: str, labels: str, n: float) -> str:
    return f"{name}{{{labels}}} {n}" if labels else f"{name} {n}"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
