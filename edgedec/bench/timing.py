"""Tokens per second, load time and memory, each configuration in a process of its own.

Processes stay alive and take turns (A B A B …), so that a slower machine affects all of them; the first repetition of
each warms up and is dropped. `worker.py` is what runs in them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError

WORKER = "edgedec.bench.worker"


@dataclass(frozen=True)
class Config:
    """What one process runs. `engine`: a runtime's name, or a peer's. threads: 0 for all cores.

    gguf: the same weights in a file for llama.cpp. trust_code: run compiled code of the bundle. device: "" for the
    engine's default.
    """

    engine: str
    model: str
    prompt: int
    generate: int
    threads: int = 0
    kv: str | None = None
    gguf: str | None = None
    trust_code: bool = False
    device: str = ""

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.generate < 1:
            raise UsageError(f"prompt {self.prompt}, generate {self.generate}: both must be 1 or more")

    @property
    def label(self) -> str:
        name = " ".join(filter(None, ("edgedec" if self.engine == "auto" else self.engine, self.device)))
        return name if self.kv is None else f"{name} kv {self.kv}"


@dataclass(frozen=True)
class Spread:
    """Repetitions of one number. `spread` is (max - min) / median."""

    median: float
    min: float
    max: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        median = statistics.median(values)
        return cls(median, min(values), max(values), (max(values) - min(values)) / median)


@dataclass(frozen=True)
class TimingResult:
    """One configuration's numbers; `decode` is one token a call, `drafted` with drafts, if the engine makes any;
    `facts`: reported by its process."""

    config: Config
    prefill: Spread
    decode: Spread
    drafted: Spread | None
    load_s: float
    peak_bytes: int
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.config.label,
            **{key: value for key, value in asdict(self.config).items() if key != "gguf"},
            **self.facts,
            "prefill_tokens_per_s": asdict(self.prefill),
            "decode_tokens_per_s": asdict(self.decode),
            "drafted_tokens_per_s": self.drafted and asdict(self.drafted),
            "load_s": self.load_s,
            "peak_rss_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Ratio:
    """The first configuration's speed over another's: repetitions beside each other, one quotient a pair."""

    over: str
    prefill: Spread
    decode: Spread


def bench(
    configs: Sequence[Config],
    repetitions: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    refused: Callable[[Config, str], None] | None = None,
) -> tuple[list[TimingResult], list[Ratio]]:
    """Run `repetitions` of every configuration by turns, after one to warm up. refused: called with each one that does
    not open or fails in its first run, and the reason; the others are measured. Without it that is an error."""
    if repetitions < 1:
        raise UsageError(f"repetitions {repetitions}: must be 1 or more")
    with ExitStack() as stack:
        workers = list[BenchWorker]()
        for i, config in enumerate(configs):
            try:
                with ExitStack() as opening:
                    worker = opening.enter_context(BenchWorker(config))
                    worker.request({"do": "run"})
                    stack.enter_context(opening.pop_all())
                workers.append(worker)
            except EdgedecError as error:
                if refused is None:
                    raise
                refused(config, str(error).removeprefix(f"{config.label}: "))
            progress(i + 1, (repetitions + 1) * len(configs))
        if not workers:
            return [], []
        times: list[list[dict[str, float]]] = [[] for _ in workers]
        for repetition in range(repetitions):
            for i, worker in enumerate(workers):
                times[i].append(worker.request({"do": "run"}))
                progress(len(configs) + repetition * len(workers) + i + 1, (repetitions + 1) * len(configs))
        ends = [worker.request({"do": "end"}) for worker in workers]
        facts = [worker.facts for worker in workers]
    ran = [worker.config for worker in workers]
    results = [_result(*args) for args in zip(ran, times, facts, ends, strict=True)]
    others = zip(ran[1:], times[1:], strict=True)
    return results, [_ratio(times[0], rows, config.label) for config, rows in others]


class BenchWorker:
    """A process that measures one configuration: one JSON line in, one JSON line out."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> BenchWorker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, json.dumps(asdict(self.config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            self.facts = self._answer()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which reading its answer reports
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeUnavailable(f"{self.config.label}: the process that measures ended with code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EdgedecError(f"{self.config.label}: {answer['error']}")
        return answer

    def _stop(self) -> None:
        """End the process this worker started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _result(config: Config, rows: list[dict[str, float]], facts: dict[str, Any], end: dict[str, Any]) -> TimingResult:
    return TimingResult(
        config=config,
        prefill=Spread.of([config.prompt / row["prefill_s"] for row in rows]),
        decode=Spread.of([config.generate / row["decode_s"] for row in rows]),
        drafted=Spread.of([config.generate / row["drafted_s"] for row in rows]) if "drafted_s" in rows[0] else None,
        load_s=facts["load_s"],
        peak_bytes=end["peak_bytes"],
        facts={key: value for key, value in facts.items() if key != "load_s"},
    )


def _ratio(first: list[dict[str, float]], other: list[dict[str, float]], label: str) -> Ratio:
    def quotients(part: str) -> Spread:
        return Spread.of([b[part] / a[part] for a, b in zip(first, other, strict=True)])

    return Ratio(label, quotients("prefill_s"), quotients("decode_s"))


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where it is unknown."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
