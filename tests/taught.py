"""A drafter that knows the text, and the state of a context at each token: what tests of native steps compare."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from loops import decode

from edgedec import Sampling
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.messages import Stats
from edgedec.drafters import BaseDrafter, Draft
from edgedec.drafters.off import Off
from edgedec.runtime import Call, Outputs, Runtime, StepParts, Stepped

SETTINGS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=0.9, seed=3),
    "top-k": Sampling(temperature=1.1, top_k=5, seed=4),
    "top-p": Sampling(temperature=0.8, top_p=0.8, seed=5),
    "min-p": Sampling(temperature=1.3, min_p=0.1, top_k=20, seed=6),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.2, seed=7),
    "greedy penalties": Sampling(repetition_penalty=1.3, frequency_penalty=0.4),
    "bias": Sampling(temperature=0.9, logit_bias={5: 3.0, 9: -4.0}, seed=8),
    "undecided, sharp": Sampling(temperature=0.009, top_p=0.9, frequency_penalty=1.5, seed=2),
    "undecided": Sampling(temperature=150.0, top_p=0.5, repetition_penalty=1.2, seed=9),
}
N = 40


class Taught(BaseDrafter):
    """Drafts trees around `text`: wrong tokens, the right one twice with different continuations, a wrong one below.
    rests: the calls after each draft in which it rests."""

    def __init__(self, text: Sequence[int], vocab: int, deep: int = 4, rests: int = 0, top: int = 0) -> None:
        self._text, self._vocab, self._deep, self._rests = list(text), vocab, deep, rests
        self.outputs, self._turn, self.learned = Outputs(top=top), 0, list[Any]()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._turn += 1
        if self._rests and self._turn % 2 == 0:
            return Draft(rest=self._rests)
        tokens, parents, last = list[int](), list[int](), -1
        for at, right in enumerate(self._text[len(context.ids) :][: self._turn % (self._deep + 1)]):
            wrong = (right + 1) % self._vocab
            follows = wrong if at == self._turn % 3 else right
            tokens += [wrong, follows, right]
            parents += [last] * 3
            last = len(tokens) - 2
        return Draft(tokens[:nodes], parents[:nodes])

    def observe(self, step: Any) -> None:
        ids, scores = step.result.ids, step.result.scores
        best = None if not self.outputs.top else (ids[:, : self.outputs.top].tolist(), scores[:, 0].tolist())
        self.learned.append((list(step.path), list(step.picked), step.tokens(), best))


def state_of(context: Context) -> tuple[Any, ...]:
    """All that a copy, a save or a close would see."""
    digest = hashlib.sha256()
    for name, array in sorted(context.cache.save().items()):
        digest.update(name.encode() + np.asarray(array).tobytes())
    rng = context.rng.bit_generator.state
    return len(context.ids), context.ids[-1], context.cache.length, digest.hexdigest(), rng["state"]["state"]


def watch_steps(runtime: Any, native: bool) -> Counter[str]:
    """Let generations make their steps natively, or in Python; counts the native ones from now on: forwards, plain,
    drafted, governed, and calls of others beside them; and the drafts of the governed ones."""
    counted = Counter[str]()
    parts = runtime.__dict__.setdefault("own_steps", runtime.capabilities.steps)

    def run(owner: Runtime, steps: Sequence[Any], calls: Sequence[Call]) -> Stepped:
        counted["forwards"] += 1
        counted["drafted"] += sum(step._draft is not None for step in steps)
        counted["governed"] += sum(step._governor is not None for step in steps)
        counted["plain"] += sum(step._draft is None and step._governor is None for step in steps)
        counted["beside"] += len(calls)
        found: Stepped = parts.run(owner, steps, calls)
        counted["drafts"] += found.drafts
        return found

    own = StepParts(parts.make, run) if native else None
    runtime.capabilities = replace(runtime.capabilities, steps=own)
    return counted


def with_run(runtime: Runtime, run: Any) -> Any:
    parts = runtime.capabilities.steps
    assert parts is not None
    return replace(runtime.capabilities, steps=parts._replace(run=run))


def new_context(runtime: Runtime, sampling: Sampling, seed: int = 0, capacity: int = 128, **more: Any) -> Context:
    prompt = np.random.default_rng(seed).integers(0, runtime.spec.vocab_size, 5 + seed).tolist()
    context = Context(prompt, len(prompt), runtime.new_cache(capacity), **more)
    context.rng = np.random.default_rng(sampling.seed or 0)
    return context


def generated(
    runtime: Runtime, context: Context, sampling: Sampling, drafter: Drafter, **options: Any
) -> tuple[list[Any], Stats]:
    """The states at all tokens, and the counts."""
    eos, stats = options.pop("eos", frozenset()), Stats()
    config = GenerationConfig(sampling=sampling, **{"max_tokens": N} | options)
    return [state_of(context) for _ in decode(runtime, context, config, drafter, stats, eos=eos)], stats


def counts(stats: Stats) -> list[Any]:
    return [stats.calls, stats.generated, stats.proposed, stats.accepted, stats.finish]


def text_of(runtime: Runtime, sampling: Sampling, seed: int = 0) -> list[int]:
    """The prompt and the text that follows, by the Python step without drafts."""
    watch_steps(runtime, False)
    context = new_context(runtime, sampling, seed)
    generated(runtime, context, sampling, Off(), max_tokens=N + 10)
    return context.ids


def both(runtime: Runtime, run: Any) -> tuple[Any, Any, Counter[str]]:
    """What `run` returns with Python's steps and with native ones, and which of these there were."""
    watch_steps(runtime, False)
    python = run()
    counted = watch_steps(runtime, True)
    return python, run(), counted
