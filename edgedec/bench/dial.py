"""Is drafting ever slower than not drafting? A drafter whose guesses are right as often as a dial says, in batches.

It knows each text from a plain run, and guesses each next token rightly with the chance of the dial. How many of its
guesses run is decided as always; beside it the same texts are made without drafts and with every fixed length, in
turns. The clock runs from the first token of the last text until so many tokens were made in all, so that no text's
end is measured. It claims nothing about its guesses: what they are worth has to be found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from edgedec.bench.batch import texts_of
from edgedec.bench.prompts import Prompt
from edgedec.decoding.batching import Batch
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.step import Token
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, Tables
from edgedec.drafters.off import Off
from edgedec.errors import EdgedecError, UsageError
from edgedec.generation import GenerationConfig
from edgedec.speculation.choose import governor

if TYPE_CHECKING:
    from edgedec.model import Model

OFF, GOVERNED = "off", "governed"
# A text goes on for so many times what is measured of it, as one may be ahead of the others.
_AHEAD = 3
_LONGEST, _CLAIM = 16, 0.5


class Dial(BaseDrafter):
    """Guesses the tokens of `text`, each rightly with the chance `right` if the one before was."""

    def __init__(self, text: Sequence[int], right: float, seed: int, vocab: int) -> None:
        self._text, self._right, self._vocab = list(text), right, vocab
        self._rng = np.random.default_rng(seed)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        at = len(context.ids)
        tokens = self._text[at : at + min(nodes, _LONGEST)]
        wrong = int(self._rng.geometric(1 - self._right)) - 1 if self._right < 1 else len(tokens)
        if wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % self._vocab
        return Draft.chain(tokens, [_CLAIM] * len(tokens))


@dataclass
class Cell:
    """Tokens a second with this dial and so many sequences, one a round: by contestant."""

    right: float
    sequences: int
    speeds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def over_off(self) -> float:
        """The governed drafts over none, runs of a round beside each other."""
        pairs = zip(self.speeds[GOVERNED], self.speeds[OFF], strict=True)
        return median(ours / off for ours, off in pairs)

    @property
    def best(self) -> str:
        """The quickest of the fixed lengths, no drafts among them."""
        return max((name for name in self.speeds if name != GOVERNED), key=lambda name: median(self.speeds[name]))

    @property
    def over_best(self) -> float:
        pairs = zip(self.speeds[GOVERNED], self.speeds[self.best], strict=True)
        return median(ours / other for ours, other in pairs)


class DialBench:
    """One model, its texts, and how many tokens of each are measured."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], most: int, tokens: int) -> None:
        self.model, self.tokens = model, tokens
        self.prompts = [model.tokenizer.encode(text) for text in texts_of(prompts, most)]
        self._length = max(map(len, self.prompts)) + _AHEAD * tokens + _LONGEST
        if self._length > model.spec.context_length:
            raise UsageError(
                f"texts of {self._length} tokens do not fit the context of {model.spec.context_length}: ask for fewer"
            )
        self.texts: list[list[int]] = []
        # What the rounds of a contestant share, as the requests to a server do.
        self._tables: dict[tuple[float, int, str], Tables] = {}

    def measure(
        self,
        rights: Sequence[float],
        sequences: Sequence[int],
        lengths: Sequence[int],
        rounds: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
        expect: Callable[[float], None] = lambda seconds: None,
    ) -> tuple[list[Cell], bool]:
        """The cells, and whether all rounds were made: interrupted, those that are whole."""
        began = perf_counter()
        self.texts = self._plain()
        cells = [Cell(right, n) for n in sequences for right in rights]
        for n in sequences:  # what calls of so many rows cost is learned before anything is measured
            self._speed(0.7, n, GOVERNED, 0)
        self._expect(expect, perf_counter() - began, cells, lengths, rounds)
        done, total = 0, rounds * sum(len(list(self._contestants(cell.sequences, lengths))) for cell in cells)
        try:
            for round_ in range(rounds):
                for cell in cells:
                    for name in self._contestants(cell.sequences, lengths):
                        speed = self._speed(cell.right, cell.sequences, name, round_)
                        cell.speeds.setdefault(name, []).append(speed)
                        progress(done := done + 1, total)
        except KeyboardInterrupt:
            return _whole(cells, len(list(self._contestants(1, lengths)))), True
        return cells, False

    def _expect(
        self, expect: Callable[[float], None], warm: float, cells: Sequence[Cell], lengths: Sequence[int], rounds: int
    ) -> None:
        """From the warm-up, which made every number of sequences once, and all texts."""
        expect(warm / 2 * len({cell.right for cell in cells}) * (2 + len(lengths)) * rounds)

    def _contestants(self, sequences: int, lengths: Sequence[int]) -> Iterator[str]:
        """No drafts, governed drafts, and the fixed lengths that one forward can hold."""
        yield from (OFF, GOVERNED)
        largest = self.model.runtime.capabilities.largest_call
        yield from (f"fixed={n}" for n in lengths if sequences * (n + 1) <= largest)

    def _plain(self) -> list[list[int]]:
        """All texts without drafts."""
        contexts = list(self._run(len(self.prompts), lambda i: Off(), 0)[1])
        return [context.ids for context in contexts]

    def _speed(self, right: float, sequences: int, name: str, seed: int) -> float:
        runtime, tables = self.model.runtime, self._tables.setdefault((right, sequences, name), Tables())
        host = DrafterContext(runtime, self.model.bundle, lambda: self.model.tokenizer, tables)

        def drafter(i: int) -> Drafter:
            if name == OFF:
                return Off()
            dial = Dial(self.texts[i], right, 1000 * seed + i, self.model.spec.vocab_size)
            return governor([("dial", dial)], host, 0 if name == GOVERNED else int(name.partition("=")[2]))

        speed, contexts = self._run(sequences, drafter, self.tokens * sequences)
        for context, text in zip(contexts, self.texts, strict=False):
            if context.ids != text[: len(context.ids)]:
                raise EdgedecError(f"bench dial: {name}: a text is not what it is without drafts")
        return speed

    def _run(self, n: int, drafter: Callable[[int], Drafter], until: int) -> tuple[float, list[Context]]:
        """Tokens a second from the moment when all have begun until so many were made (0: all), and the texts."""
        runtime = self.model.runtime
        batch, contexts, made, begun = Batch(runtime), list[Context](), [0], [0]
        config = GenerationConfig(max_tokens=_AHEAD * self.tokens + _LONGEST, ignore_eos=True)

        def count(token: Token | None, context: Context) -> None:
            made[0] += token is not None
            begun[0] += token is not None and len(context.ids) == context.n_prompt + 1

        for i, prompt in enumerate(self.prompts[:n]):
            context = Context(list(prompt), len(prompt), runtime.new_cache(self._length))
            loop = decode_loop(context, config, drafter(i), capabilities=runtime.capabilities)
            batch.add(context, loop, lambda token, context=context: count(token, context), self._length)  # type: ignore[misc]
            contexts.append(context)
        while begun[0] < n and batch.step():
            pass
        began, before = perf_counter(), made[0]
        while (not until or made[0] - before < until) and batch.step():
            pass
        seconds = perf_counter() - began
        for job in list(batch.jobs):
            batch.cancel(job)
        return (made[0] - before) / seconds, contexts


def _whole(cells: Sequence[Cell], contestants: int) -> list[Cell]:
    """Those that have a whole round; a round that was broken off goes."""
    found = []
    for cell in cells:
        rounds = min(map(len, cell.speeds.values()), default=0)
        if rounds and GOVERNED in cell.speeds and len(cell.speeds) > min(1, contestants):
            found.append(Cell(cell.right, cell.sequences, {name: s[:rounds] for name, s in cell.speeds.items()}))
    if not found:
        raise KeyboardInterrupt
    return found
