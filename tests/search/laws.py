"""Runtimes whose law of the next token is given or known for every text, so that what a search should find can be
computed by enumerating texts; and the search of a session on such a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.runtime import Hidden, Logits, Outputs, Rows, Runtime, forward_one, logits_of
from edgedec.runtime.call import Call
from edgedec.search.host import SearchHost
from edgedec.search.running import SearchRun
from edgedec.testing.fakes import FakeRuntime, tiny_spec

PROMPT, VOCAB = [3, 1, 4, 1, 5], 13
Floats = NDArray[np.float64]
Law = Callable[[tuple[int, ...]], Sequence[float]]


class LawRuntime(FakeRuntime):
    """Probabilities of the token after the prompt and each text of up to `depth` tokens; even ones after others."""

    def __init__(self, law: Law, vocab: int, depth: int, **capabilities: Any) -> None:
        super().__init__(tiny_spec(vocab_size=vocab), **capabilities)
        self._texts: dict[int, tuple[int, ...]] = {}
        self._law, self.prompt, self.vocab = law, [0, 1], vocab
        for n in range(depth + 1):
            for text in product(range(vocab), repeat=n):
                self._texts[self._hash(text)] = text
        self.calls = self.rows = 0
        self.forwards.clear()

    def _hash(self, text: tuple[int, ...]) -> int:
        last = self.spec.n_blocks - 1
        rows, empty = Rows.chain([*self.prompt, *text], 0), self.new_cache(64)
        hidden = forward_one(self, Call(rows, empty, outputs=Outputs(hidden=(last,)))).hidden[last]
        return int(hidden[-1, 1])

    def head(self, hidden: Hidden) -> Logits:
        if not hasattr(self, "_texts"):
            return np.zeros((len(hidden), self.spec.vocab_size), np.float32)
        found = [self._texts.get(int(row[1])) for row in hidden]
        laws = [[1.0 / self.vocab] * self.vocab if text is None else self._law(text) for text in found]
        with np.errstate(divide="ignore"):
            return np.log(np.array(laws, np.float64)).astype(np.float32)


def table(known: Mapping[tuple[int, ...], Sequence[float]], other: Sequence[float]) -> Law:
    """The law of some texts, and of all others."""
    return lambda text: known.get(text, other)


def logps_of(runtime: Runtime, prompt: Sequence[int]) -> Callable[[tuple[int, ...]], Floats]:
    """The log-probabilities after the prompt and a text, each text read from its beginning."""

    @cache
    def of(text: tuple[int, ...]) -> Floats:
        row = logits_of(runtime, Rows.chain([*prompt, *text], 0), runtime.new_cache(64))[-1].astype(np.float64)
        found: Floats = row - row.max() - np.log(np.exp(row - row.max()).sum())
        return found

    return of


def fresh(runtime: Runtime, prompt: Sequence[int] = PROMPT, seed: int = 7, room: int = 64) -> Context:
    return Context(list(prompt), len(prompt), runtime.new_cache(room), rng=np.random.default_rng(seed))


class Letters:
    """A tokenizer for laws: token 0 is "a". `spelt`: other texts of tokens."""

    def __init__(self, spelt: Mapping[int, str] | None = None) -> None:
        self._spelt, self.decoders = dict(spelt or {}), ()

    def token(self, id: int) -> str:  # noqa: A002
        return self._spelt.get(id, chr(97 + id))

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        return "".join(map(self.token, ids))

    @property
    def hidden(self) -> frozenset[int]:
        return frozenset()

    def encode(self, text: str, special: bool = True, around: bool = True) -> list[int]:
        return [ord(letter) - 97 for letter in text]


def search_of(
    runtime: Runtime,
    words: str,
    config: GenerationConfig,
    eos: frozenset[int] = frozenset(),
    context: Context | None = None,
    spelt: Mapping[int, str] | None = None,
    drafter: Callable[[], Any] = Off,
) -> SearchRun:
    config = config.override({"search": words})
    host = SearchHost(runtime.capabilities, lambda: Letters(spelt), eos, config, drafter)  # type: ignore[arg-type,return-value]
    return SearchRun(host, context or fresh(runtime), config, Stats())


def searched(runtime: Runtime, words: str, config: GenerationConfig, **more: Any) -> list[Token]:
    """The tokens that a search gives."""
    return list(run_loop(runtime, search_of(runtime, words, config, **more).loop))


def beside(runtime: Runtime, words: str, config: GenerationConfig, others: int = 3, **more: Any) -> list[Token]:
    """The same in a batch beside other texts, which stay what they are alone."""
    batch, search = Batch(runtime), search_of(runtime, words, config, **more)
    found, texts = list[Token | None](), list[list[Token | None]]()
    plain = GenerationConfig(max_tokens=17)
    for i in range(others):
        context = fresh(runtime, [i % 3 + 1, 2])
        texts.append([])
        batch.add(context, decode_loop(context, plain, Off()), texts[-1].append, need=64)
    job = batch.add(search.room.context, search.loop, found.append, search.need)
    job.forks, job.width = search.room.forks, search.width
    batch.run()
    if job.error is not None:
        raise job.error
    for i, text in enumerate(texts):
        alone = fresh(runtime, [i % 3 + 1, 2])
        assert text == [*run_loop(runtime, decode_loop(alone, plain, Off())), None]
    assert found.pop() is None
    return [token for token in found if token is not None]


def every_text(vocab: int, length: int) -> Iterator[tuple[int, ...]]:
    for n in range(1, length + 1):
        yield from product(range(vocab), repeat=n)
