"""Lossy: a small model writes while it is sure, the target where it is not (entropy-adaptive decoding, EAD).

Simonds 2025 (arXiv:2502.06833; read in third-party notes and the abstract, not in its own body). With H the entropy in
bits of the next token's distribution before temperature, of the model that writes, and the mean of H over the last
`window` tokens: the target takes over where the mean is `tau` or more, the small model where it is `tau` or less, and
either writes at least `stay` tokens. The target writes first. tau is to be chosen for each pair of models: the paper
sweeps it.

The small model's tokens are a draft, and the target's distribution there is replaced by the small model's, so all of
them are accepted: the target reads them as the rows of one call, which is how its cache catches up. In the same way
the small model reads what the target wrote. So the law of a token depends on the text alone, and `length` only decides
how many tokens a call of the target reads.

    tau 1, stay 2, window 2; T the target, S the small model:
    writes    T    T    S    S    S    T
    H         0.5  0.7  0.2  1.6  1.2  0.4     means 0.6 after the second token, 0.9 and 1.4 after the last two of S
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import ALWAYS, BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._heads.foreseen import upcoming
from edgedec.drafters._lossy import Replaced, lossy_report, of_vocabulary
from edgedec.drafters._models.opening import open_draft
from edgedec.drafters._models.reader import ALL, DraftReader, drawn_from
from edgedec.drafters._options import Bundle, KVFormat, Threads
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.sampling import Logits, draw_at

FACTS = DrafterFacts(lossy=ALWAYS, paper="Entropy Adaptive Decoding")


def make(
    host: DrafterContext,
    path: Bundle = "",
    tau: Annotated[float, Opt("Bits of mean entropy at which the models change places.", 0)] = 1.0,
    window: Annotated[int, Opt("Latest tokens of the mean.", 1, 64)] = 5,
    stay: Annotated[int, Opt("Least tokens that a model writes before a change.", 1)] = 10,
    length: Annotated[int, Opt("Most tokens of the small model that the target reads at once.", 1, 64)] = 16,
    threads: Threads = 0,
    kv: KVFormat = "",
) -> Ead:
    runtime, translator = open_draft(host, path, threads, kv)
    if translator is not None:
        raise UsageError("drafter ead: needs a small model of the same tokenizer")
    return Ead(DraftReader(runtime), host.runtime.spec.vocab_size, Writer(tau, window, stay), length)


@dataclass(frozen=True)
class Writer:
    """Which model writes the next token: the target if `large`. latest: the entropies of the last `window` tokens;
    stayed: how many tokens it has written."""

    tau: float
    window: int = 5
    stay: int = 10
    large: bool = True
    stayed: int = 0
    latest: tuple[float, ...] = ()

    def after(self, entropy: float) -> Writer:
        """The writer after one more token, from a distribution of this entropy."""
        latest = (*self.latest, entropy)[-self.window :]
        mean, stayed, large = sum(latest) / len(latest), self.stayed + 1, self.large
        if stayed >= self.stay and (mean <= self.tau if large else mean >= self.tau):
            large, stayed = not large, 0
        return Writer(self.tau, self.window, self.stay, large, stayed, latest)


def entropy(logits: Logits) -> float:
    """The entropy in bits of the distribution of these logits at temperature 1.

    two equal logits -> 1; four -> 2; one that is far above the others -> 0
    """
    x = logits[np.isfinite(logits)].astype(np.float64)
    x -= x.max()
    weights = np.exp(x)
    total = weights.sum()
    return float((np.log(total) - (weights * x).sum() / total) / np.log(2.0))


class Ead(BaseDrafter):
    """vocab: the target's."""

    def __init__(self, reader: DraftReader, vocab: int, first: Writer, length: int) -> None:
        self._reader, self._vocab, self._first, self._length = reader, vocab, first, length
        self._replaced = Replaced()
        self.shift: LogitsProcessor | None = self._replaced
        # The writers at the ends of the last call's tokens, by the length of the text.
        self._writers: dict[int, Writer] = {}
        self._at = 0
        self._tokens = {"large": 0, "small": 0}
        self._changes, self._sizes = 0, Counter[int]()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._replaced.clear()
        self._at = len(context.ids)
        writer = self._writers.get(self._at, self._first)
        self._writers = {self._at: writer}
        return Draft() if writer.large else self._write(context, writer, max(min(nodes, self._length), 0))

    def _write(self, context: Context, writer: Writer, limit: int) -> Generator[Request, Completed, Draft]:
        """The small model's tokens until the target takes over, with its logits after each of them too."""
        path, numbers = list[int](), upcoming(context, limit)
        result = yield from self._reader.read(context.ids, ALL, limit + 1)
        while True:
            assert result.logits is not None
            logits = of_vocabulary(result.logits[-1], self._vocab)
            self._replaced.laws[tuple(path)] = logits
            writer = writer.after(entropy(logits))
            if len(path) == limit:
                break
            path.append(draw_at(drawn_from(logits, self._vocab, context, path), numbers[len(path)]))
            if writer.large:
                break
            result = yield from self._reader.grow(path[-1:], [len(path) - 2], ALL)
        return Draft.chain(path)

    def observe(self, step: StepResult) -> None:
        writer, laws, own = self._writers.get(self._at, self._first), self._replaced.laws, self._replaced.own
        self._sizes[len(step.path) - 1] += 1
        for n, _ in enumerate(step.picked):
            place = tuple(step.picked[:n])
            self._tokens["small" if place in laws else "large"] += 1
            before, writer = writer, writer.after(entropy(laws[place] if place in laws else own[place]))
            self._changes += before.large != writer.large
            self._writers[self._at + n + 1] = writer

    def reset(self) -> None:
        self._writers, self._at = {}, 0
        self._replaced.clear()
        self._reader.reset()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Ead):
            self._writers, self._at = dict(other._writers), other._at

    def report(self) -> dict[str, Any]:
        counts = {**self._tokens, "changes": self._changes}
        why = f"another text, of which the small model wrote {self._tokens['small']} tokens (tau={self._first.tau:g})"
        return lossy_report("ead", why, counts, self._sizes)
