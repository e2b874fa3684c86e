"""The cost of cache policies after long prompts: reading time, step time, memory, each compared with the whole cache.

Prompts are random tokens: the measured times do not depend on their content. Each policy reads the prompt by itself,
the whole cache first in every round; then all take turns, a generated token each, for one interval between decisions
(`STEPS`), so that what a decision costs is in the mean. With `steps_only` all but the end of a prompt is filled in
(`cache_filled`), reading is not measured, and all contexts take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isnan, nan
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedec.bench.cache_filled import filled
from edgedec.bench.cache_peers import Peer, PeerReadings
from edgedec.cache import memory
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scoring import prefill
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.policies import FULL
from edgedec.runtime import Call, Rows, forward_one

if TYPE_CHECKING:
    from edgedec.model import Model

STEPS = 64
# The tokens of a filled-in prompt that are really read: the part whose attention policies record.
_END = 160
_PROBE = 1024
# A cache that is read takes up to this many times its size, with working memory.
_SPARE = 1.5

Progress = Callable[[int, int], None]


@dataclass
class CostReading:
    """A policy at one context: seconds of reading and of a step, one a round; bytes of its cache after reading."""

    prefill: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    nbytes: int = 0


@dataclass
class CostResult:
    """By context and policy, "full" among them; peers: other engines; interrupted: not all of it."""

    readings: dict[int, dict[str, CostReading]]
    interrupted: bool = False
    peers: PeerReadings = field(default_factory=PeerReadings)

    def report(self) -> dict[str, Any]:
        """policies.NAME.CONTEXT: ratios are of the whole cache over the policy, the median over rounds."""
        found: dict[str, Any] = {}
        for context, by_name in self.readings.items():
            full = by_name.get(FULL)
            for name, reading in by_name.items():
                if full is not None and reading.step:
                    found.setdefault(name, {})[str(context)] = _facts(reading, full)
        return found

    def peer_report(self) -> dict[str, Any]:
        """peers.NAME.CONTEXT: ratios are of the other engine over our whole cache."""
        return self.peers.report({n: (r[FULL].prefill, r[FULL].step) for n, r in self.readings.items()})


def _facts(own: CostReading, full: CostReading) -> dict[str, float]:
    rounds = list(zip(own.prefill, own.step, full.prefill, full.step, strict=False))
    if not own.prefill:  # filled in
        rounds = [(nan, step, nan, whole) for step, whole in zip(own.step, full.step, strict=False)]
    facts = {
        "prefill_ratio": round(median(f / p for p, _, f, _ in rounds), 3),
        "step_ratio": round(median(f / s for _, s, _, f in rounds), 3),
        "prefill_s": round(median(p for p, *_ in rounds), 3),
        "step_ms": round(1e3 * median(s for _, s, *_ in rounds), 3),
        "prefill_s_least": round(min(p for p, *_ in rounds), 3),
        "prefill_s_most": round(max(p for p, *_ in rounds), 3),
        "step_ms_least": round(1e3 * min(s for _, s, *_ in rounds), 3),
        "step_ms_most": round(1e3 * max(s for _, s, *_ in rounds), 3),
        "memory_mb": round(own.nbytes / 2**20, 2),
        "memory_ratio": round(full.nbytes / max(own.nbytes, 1), 3),
    }
    return {key: value for key, value in facts.items() if not isnan(value)}


def _require_room(most: int, held: int) -> None:
    """UsageError where another cache of `most` bytes, beside `held` of them, does not fit into memory."""
    free = memory.available_memory()
    if most and free is not None and free < _SPARE * most:
        raise UsageError(
            f"--policies: all caches are in memory at once, and after {held} there is no room for another of "
            f"{most / 2**20:.0f} MiB; name fewer policies, --budgets or --context"
        )


class CostBench:
    """One model. `policies` by the words that `--cache` takes; `peers`: other engines, after the policies in each
    round."""

    def __init__(
        self,
        model: Model,
        contexts: Sequence[int],
        policies: Sequence[str],
        steps_only: bool = False,
        peers: Mapping[str, Peer] | None = None,
    ) -> None:
        self.model, self.contexts, self.steps_only, self.peers = model, list(contexts), steps_only, peers or {}
        self.policies = [FULL, *(words for words in policies if words != FULL)]
        longest = max(self.contexts, default=1) + STEPS + 2
        if longest > model.spec.context_length:
            raise UsageError(
                f"--context {max(self.contexts)}: with {STEPS} steps after it, more than the model's "
                f"{model.spec.context_length}; take less, or --as a geometry"
            )
        for words in self.policies:
            model.session(context=1, cache=words)  # invalid options fail here

    def measure(self, rounds: int, progress: Progress, expect: Callable[[float], None]) -> CostResult:
        result = CostResult({})
        try:
            if not self.steps_only:
                expect(self._estimate() * rounds)
            for context in self.contexts:
                result.readings[context] = {words: CostReading() for words in self.policies}
            total, done = rounds * len(self.contexts) * len(self.policies), 0
            together = [self.contexts] if self.steps_only else [[context] for context in self.contexts]
            for round_, contexts in product(range(rounds), together):
                texts = dict[tuple[int, str], Context]()
                for context, words in product(contexts, self.policies):
                    _require_room(result.readings[context][FULL].nbytes, len(texts))
                    texts[context, words] = self._read(context, words, round_, result.readings[context][words])
                    progress(done := done + 1, total)
                self._steps(texts, result.readings)
                texts.clear()
                for context in contexts:
                    result.peers.add(self.peers, context)
        except KeyboardInterrupt:
            result.interrupted = True
        return result

    def _ids(self, n: int, seed: int) -> list[int]:
        ids: list[int] = np.random.default_rng(seed).integers(0, self.model.spec.vocab_size, n).tolist()
        return ids

    def _read(self, n: int, words: str, seed: int, into: CostReading) -> Context:
        """The text, read under a policy."""
        runtime = self.model.runtime
        room = n + STEPS + 2
        cache = filled(runtime, room, n - _END) if self.steps_only and n > _END else runtime.new_cache(room)
        context = Context(self._ids(n, seed), n, cache, policy=self.model.policy(words))
        began = perf_counter()
        prefill(runtime, context)
        if not self.steps_only:
            into.prefill.append(perf_counter() - began)
        into.nbytes = context.cache.nbytes
        return context

    def _steps(self, texts: dict[tuple[int, str], Context], into: dict[int, dict[str, CostReading]]) -> None:
        """One token each in turns, `STEPS` times after one to warm up."""
        loops = {key: self._tokens(text) for key, text in texts.items()}
        seconds = dict.fromkeys(texts, 0.0)
        for turn in range(STEPS + 1):
            for key, loop in loops.items():
                began = perf_counter()
                next(loop)
                seconds[key] += (perf_counter() - began) * (turn > 0)
        for (context, words), spent in seconds.items():
            into[context][words].step.append(spent / STEPS)
        for loop in loops.values():
            loop.close()

    def _tokens(self, context: Context) -> Any:
        from edgedec.decoding.loop import decode_loop

        config = GenerationConfig(max_tokens=STEPS + 1, ignore_eos=True)
        can = self.model.runtime.capabilities
        return run_loop(self.model.runtime, decode_loop(context, config, Off(), capabilities=can))

    def _estimate(self) -> float:
        """Seconds of a round that reads, from the first and the last chunk of a short text: as if nothing were
        saved."""
        runtime = self.model.runtime
        chunk, n = runtime.capabilities.prefill_chunk, min(_PROBE, min(self.contexts, default=1))
        cache, times, ids = runtime.new_cache(n), list[tuple[int, float]](), self._ids(n, 0)
        for at in range(0, n, chunk):
            began = perf_counter()
            forward_one(runtime, Call(Rows.chain(ids[at : at + chunk], at), cache))
            cache.commit(range(min(chunk, n - at)))
            times.append((at, perf_counter() - began))
        (first, least), (last, most) = times[len(times) > 2], times[-1 - (len(times) > 2)]
        slope = max(0.0, (most - least) / max(last - first, 1))
        reading = sum(least + slope * at for context in self.contexts for at in range(0, context, chunk))
        return reading * len(self.policies)
