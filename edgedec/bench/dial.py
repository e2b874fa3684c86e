"""Drafting against no drafting, in batches, with a drafter whose acceptance rate is set by a dial.

The drafter has each text from a plain run, and guesses each next token rightly with the dial's probability. The
governor decides as usual how many guesses run; the same texts are generated without drafts and with every fixed length,
in turns of some tokens each, so that other load on the machine affects all of them equally. The clock runs from the
first token of the last text until so many tokens were made in all, so that no text's end is measured. The drafter gives
no probabilities, so the governor has to measure the acceptance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedec.bench.batch import texts_of
from edgedec.bench.prompts import Prompt
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, Tables
from edgedec.drafters.off import Off
from edgedec.errors import EdgedecError, UsageError
from edgedec.speculation.choose import governor

if TYPE_CHECKING:
    from edgedec.model import Model

OFF, GOVERNED = "off", "governed"
# The length of a text, in multiples of the measured part, as one text may be ahead of the others.
_AHEAD = 3
_LONGEST, _CLAIM = 16, 0.5
# The tokens of a text in one turn.
_TURN = 2


class Dial(BaseDrafter):
    """Guesses the tokens of `text`, each rightly with the chance `right` if the one before was. The seed determines
    which guesses are right, so that contestants differ only in the number of guesses."""

    def __init__(self, text: Sequence[int], right: float, seed: int, vocab: int) -> None:
        self._text, self._vocab = list(text), vocab
        wrong = np.random.default_rng(seed).random(len(text)) >= right
        self._wrong: list[int] = np.flatnonzero(wrong).tolist()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        at = len(context.ids)
        tokens = self._text[at : at + min(nodes, _LONGEST)]
        next_wrong = bisect_left(self._wrong, at)
        if next_wrong < len(self._wrong) and (wrong := self._wrong[next_wrong] - at) < len(tokens):
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

    def to_json(self) -> dict[str, Any]:
        return {
            "acceptance": self.right,
            "sequences": self.sequences,
            "tokens_per_s": self.speeds,
            "over_off": self.over_off,
            "best": self.best,
            "over_best": self.over_best,
        }


class DialBench:
    """One model, its texts, and how many tokens of each are measured."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], most: int, tokens: int) -> None:
        self.model, self.tokens = model, tokens
        self.prompts = [model.tokenizer.encode(text) for text in texts_of(prompts, most)]
        self.length = max(map(len, self.prompts)) + _AHEAD * tokens + _LONGEST
        if self.length > model.spec.context_length:
            raise UsageError(
                f"texts of {self.length} tokens do not fit the context of {model.spec.context_length}: ask for fewer"
            )
        self.texts: list[list[int]] = []
        # Tables that a contestant's rounds share, like the requests to a server.
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
        for n in sequences:  # learn the costs of calls before measuring
            self._speeds(0.7, n, [GOVERNED], 0)
        self._expect(expect, perf_counter() - began, cells, lengths, rounds)
        names = {n: list(self._contestants(n, lengths)) for n in sequences}
        done, total = 0, rounds * sum(len(names[cell.sequences]) for cell in cells)
        try:
            for round_ in range(rounds):
                for cell in cells:
                    for name, speed in self._speeds(cell.right, cell.sequences, names[cell.sequences], round_).items():
                        cell.speeds.setdefault(name, []).append(speed)
                    progress(done := done + len(names[cell.sequences]), total)
        except KeyboardInterrupt:
            if not cells[0].speeds:
                raise
            return [cell for cell in cells if cell.speeds], True
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
        race = Race(self, len(self.prompts), lambda i: Off())
        race.run_all()
        return [context.ids for context in race.contexts]

    def _speeds(self, right: float, sequences: int, names: Sequence[str], seed: int) -> dict[str, float]:
        """Tokens a second of contestants that take turns."""
        races = {name: Race(self, sequences, self._drafters(right, sequences, name, seed)) for name in names}
        for race in races.values():
            race.begin()
        for tokens in range(_TURN, self.tokens + _TURN, _TURN):
            for race in races.values():
                race.run(min(tokens, self.tokens) * sequences)
        for name, race in races.items():
            race.end(name)
        return {name: race.made / race.seconds for name, race in races.items()}

    def _drafters(self, right: float, sequences: int, name: str, seed: int) -> Callable[[int], Drafter]:
        runtime, tables = self.model.runtime, self._tables.setdefault((right, sequences, name), Tables())
        host = DrafterContext(runtime, self.model.bundle, lambda: self.model.tokenizer, tables)

        def drafter(i: int) -> Drafter:
            if name == OFF:
                return Off()
            dial = Dial(self.texts[i], right, 1000 * seed + i, self.model.spec.vocab_size)
            return governor([("dial", dial)], host, 0 if name == GOVERNED else int(name.partition("=")[2]))

        return drafter


class Race:
    """One contestant: a batch of the first texts. `seconds`: those that the `made` tokens took, since all had begun."""

    def __init__(self, bench: DialBench, n: int, drafter: Callable[[int], Drafter]) -> None:
        self._bench, self._batch = bench, Batch(bench.model.runtime)
        self.contexts: list[Context] = []
        self.made, self.seconds, self._begun = 0, 0.0, 0
        for i, prompt in enumerate(bench.prompts[:n]):
            self._add(prompt, drafter(i))

    def _add(self, prompt: Sequence[int], drafter: Drafter) -> None:
        runtime, length = self._bench.model.runtime, self._bench.length
        context = Context(list(prompt), len(prompt), runtime.new_cache(length))
        config = GenerationConfig(max_tokens=_AHEAD * self._bench.tokens + _LONGEST, ignore_eos=True)
        loop = decode_loop(context, config, drafter, capabilities=runtime.capabilities)
        self._batch.add(context, loop, lambda token: self._count(token, context), length)
        self.contexts.append(context)

    def _count(self, token: Token | None, context: Context) -> None:
        self.made += token is not None
        self._begun += token is not None and len(context.ids) == context.n_prompt + 1

    def run_all(self) -> None:
        while self._batch.step():
            pass

    def begin(self) -> None:
        """Run until all texts have their first token; earlier tokens are not counted."""
        while self._begun < len(self.contexts) and self._batch.step():
            pass
        self.made = 0

    def run(self, until: int) -> None:
        """Run until this number of tokens is generated."""
        began = perf_counter()
        while self.made < until and self._batch.step():
            pass
        self.seconds += perf_counter() - began

    def end(self, name: str) -> None:
        """Check that every text equals the text without drafts."""
        for job in list(self._batch.jobs):
            self._batch.cancel(job)
        for context, text in zip(self.contexts, self._bench.texts, strict=False):
            if context.ids != text[: len(context.ids)]:
                raise EdgedecError(f"bench dial: {name}: a text is not what it is without drafts")
