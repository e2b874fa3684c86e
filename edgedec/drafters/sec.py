"""Lossy: tokens leave the target early, and a text ends where it is not worth going on (stop and exit controller, SEC).

Sun et al. 2024, When Neural Code Completion Models Size up the Situation (rule read in the authors' code,
github.com/v587su/SEC). After some of the layers stands a head without a norm. A controller, one matrix for all of them,
says of the state there: continue, exit or stop. Exit: the head there gives the token. Stop: even the last layer would
be wrong, so the text ends (its end token). Either only where it is the likeliest of the three and above its own
threshold, and never at the first token of an answer.

    after layer 1: continue 0.6; after layer 4: exit 0.95 > 0.9 -> the token of that head; layers 5 to 8 wait

In the paper layers that a token left out get keys and values made of the state it left with. Here they run later, for
all such tokens in one call, when a token needs them or the draft is full: later tokens see what the whole model would
have kept, and the only loss is that of the exits. An exit's token has the law of its head's 16 best.
Training: `train-heads --kind sec`; layout: `models/drafts/sec.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Annotated, Any

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import ALWAYS, BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._heads.foreseen import upcoming
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._lossy import Replaced, lossy_report
from edgedec.drafters._models.reader import drawn_from
from edgedec.drafters._networks.graphs import open_network
from edgedec.drafters._options import Length
from edgedec.drafters._slices.segments import Segments
from edgedec.drafters._slices.stack import READING, block_costs, require_slices
from edgedec.plugins import Opt
from edgedec.runtime import Hidden
from edgedec.sampling import Logits, draw_at

DRAFT = "sec"
# The controller's classes.
CONTINUE, EXIT, STOP = range(3)

FACTS = DrafterFacts(draft=DRAFT, lossy=ALWAYS, paper="When Neural Code Completion Models Size up the Situation")


def make(
    host: DrafterContext,
    leave: Annotated[float, Opt("Probability of an exit above which it is taken; 1: never.", 0, 1)] = 0.9,
    stop: Annotated[float, Opt("Probability of a stop above which the text ends; 1: never.", 0, 1)] = 1.0,
    length: Length = 8,
) -> Sec:
    require_slices(DRAFT, host)
    return Sec(host, facts_of(host, DRAFT), leave, stop, length)


class Sec(BaseDrafter):
    def __init__(self, host: DrafterContext, facts: DraftFacts, leave: float, stop: float, length: int) -> None:
        threads, spec = host.runtime.capabilities.threads, host.runtime.spec
        files = [facts.networks[f"depth_{i}"] for i in range(1, facts.depth + 2)]
        *self._heads, self._controller = [open_network(host.bundle, file, threads) for file in files]
        self._ends, self._n_blocks, self._vocab = [b + 1 for b in facts.features], spec.n_blocks, spec.vocab_size
        self._share = sum(block_costs(spec)[0][: self._ends[0]])
        self._eos = frozenset(host.bundle.manifest.text.eos)
        self._leave, self._stop, self._length = leave, stop, length
        self._replaced = Replaced()
        self.shift: LogitsProcessor | None = self._replaced
        self._exits, self._sizes = Counter[str](), Counter[int]()
        self._left: dict[tuple[int, ...], str] = {}  # of the last draft: how each token left

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._replaced.clear()
        self._left = {}
        if len(context.ids) <= context.n_prompt or len(context.pending()) > READING:
            return Draft()
        return self._write(context, max(min(nodes, self._length), 0))

    def _write(self, context: Context, limit: int) -> Generator[Request, Completed, Draft]:
        """Tokens that leave early, and the law of the one after them if it leaves as well."""
        segments, path, numbers = Segments(context, self._ends), list[int](), upcoming(context, limit + 1)
        while True:
            law = yield from self._leaving(segments, tuple(path))
            if law is None:
                break
            self._replaced.laws[tuple(path)] = law
            if len(path) == limit:
                break
            token = draw_at(drawn_from(law, self._vocab, context, path), numbers[len(path)])
            if token in self._eos:
                break
            path.append(token)
            segments.add(token)
        chain = Draft.chain(path)
        blocks = range(self._ends[0], self._n_blocks)
        return Draft(chain.tokens, chain.parents, blocks=blocks, hidden=segments.states[0], done=self._share)

    def _leaving(self, segments: Segments, place: tuple[int, ...]) -> Generator[Request, Completed, Logits | None]:
        """The law of the token after the last row if the row leaves early; None if it goes through the whole model."""
        for i, head in enumerate(self._heads):
            state = yield from segments.after(i)
            verdict = self.verdict(state)
            if verdict == STOP and self._eos:
                self._left[place] = "stopped"
                return self._law(min(self._eos))
            if verdict == EXIT:
                self._left[place] = f"exit {i + 1}"
                ids, logprobs = head.run(state)
                return self._law(ids[0], logprobs[0])
        return None

    def verdict(self, state: Hidden) -> int:
        """What the controller says of a state [1, hidden_size]."""
        ids, logprobs = self._controller.run(state)
        kind, sure = int(ids[0, 0]), float(np.exp(logprobs[0, 0]))
        least = {EXIT: self._leave, STOP: self._stop}.get(kind, 1.0)
        return kind if sure > least else CONTINUE

    def _law(self, ids: int | Sequence[int], logprobs: Any = 0.0) -> Logits:
        law = np.full(self._vocab, -np.inf, np.float32)
        law[ids] = logprobs
        return law

    def observe(self, step: StepResult) -> None:
        self._sizes[len(step.path) - 1] += 1
        for n in range(len(step.picked)):
            self._exits[self._left.get(tuple(step.picked[:n]), "whole")] += 1

    def reset(self) -> None:
        self._replaced.clear()
        self._left = {}

    def report(self) -> dict[str, Any]:
        left = sum(self._exits.values()) - self._exits["whole"]
        why = f"another text, of which {left} tokens left the model early (leave={self._leave:g}, stop={self._stop:g})"
        return lossy_report(DRAFT, why, self._exits, self._sizes)
