"""A format without its instructions: how likely a hidden Markov model finds it that the format comes out (lossy).

Deco-G. The rule rests on the abstract and reviews, there is no code: the prompt says nothing of the format; the next
token comes from p(token | prompt, text) P(format | text, token), normalised. The second factor is computed exactly for
a hidden Markov model that was trained on the model's own texts (`edgedec.fusion.train_hmm`) and an automaton of fixed
texts with free text between them: with W_n(h, s) the probability that the automaton gets from state s to its end within
n tokens after one of hidden state h,

    W_n(h, s) = sum over h' of moves(h, h') · sum over tokens v of emits(h', v) · W_(n-1)(h', after(s, v))

A token after which the format cannot come out within the tokens that are left has probability 0, so it always does.
mass: hidden states that hold this share count (the paper's 97.8%); P(format) is then wrong by at most 1 - mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.logits import Early
from edgedec.errors import UsageError
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._hmm import HMM, Floats
from edgedec.fusion._pivots import DEAD, Pivots
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.sampling import Logits

FACTS = FusionFacts(paper="Deco-G", rests="the abstract and reviews")


def make(
    host: OpenedModel,
    hmm: Annotated[str, Opt("The file of the hidden Markov model, as edgedec.fusion.train_hmm writes it.")],
    pattern: Annotated[str, Opt("The format: fixed texts with * for any text between them, as in '*Answer: *'.")],
    within: Annotated[int, Opt("Tokens within which the format comes out.", 1, 4096)] = 64,
    mass: Annotated[float, Opt("Hidden states that hold this share count.", above=0, high=1)] = 1.0,
) -> Formatted:
    parts = [part for part in pattern.split("*") if part]
    if not parts:
        raise UsageError(f"fuse format: pattern={pattern}: has no fixed text")
    tokens = [host.tokenizer.encode(part, around=False) for part in parts]
    pivots = Pivots(tokens, pattern[0] != "*", pattern[-1] != "*", host.eos)
    if pattern[-1] != "*" and not host.eos:
        raise UsageError(
            f"fuse format: pattern={pattern}: the model has no end token to end with; write a * at its end"
        )
    if pivots.done > within:
        raise UsageError(f"fuse format: within={within}: the fixed texts alone have {pivots.done} tokens")
    return Formatted(HMM.load(hmm, host.spec.vocab_size), pivots, within, mass)


class Formatted:
    """A processor that knows the text's hidden state and the automaton's."""

    early: tuple[int, ...] = ()

    def __init__(self, hmm: HMM, pivots: Pivots, within: int, mass: float = 1.0) -> None:
        self._hmm, self._pivots, self._within, self._mass = hmm, pivots, within, mass
        self._chances = [self._ended()]
        while len(self._chances) < within:
            self._chances.append(self._one_more(self._chances[-1]))
        self._context: Context | None = None
        self.reset()

    def reset(self) -> None:
        self._hidden: Floats | None = None
        self._begun, self._state, self._made = False, 0, 0

    def attach(self, context: Context) -> None:
        self._context = context

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        hidden, state, left = self._text(), self._state, self._within - self._made - len(path)
        for token in path:
            hidden, state = self._hmm.after(hidden, token), self._pivots.after(state, token)
        if state == DEAD or self._plain(state) or (left <= 0 and state != self._pivots.done):
            return logits
        chances = self.chances(hidden, state, left)
        if not chances.any():
            return logits  # nothing can be done any more: the text was not this one's
        with np.errstate(divide="ignore"):
            return (logits + np.log(chances)).astype(np.float32)

    def _plain(self, state: int) -> bool:
        return state == self._pivots.done and self._pivots.edges(state)[1] == state

    def chances(self, hidden: Floats | None, state: int, left: int) -> Floats:
        """P(format | text, token) [vocab] for each next token, with `left` tokens to come, this one included."""
        coming = self._pruned(self._hmm.coming(hidden))
        special, other = self._pivots.edges(state)
        after = self._chances[max(left - 1, 0)]
        found = (coming * after[:, other]) @ self._hmm.emits
        for token, then in special.items():
            if token < len(found):
                found[token] = float((coming * after[:, then] * self._hmm.emits[:, token]).sum())
        chance: Floats = found / (coming @ self._hmm.emits)
        return chance

    def _pruned(self, coming: Floats) -> Floats:
        """The likeliest hidden states that hold `mass`, normalised."""
        if self._mass >= 1:
            return coming
        order = np.argsort(-coming, kind="stable")
        n = int(np.searchsorted(np.cumsum(coming[order]), self._mass)) + 1
        kept = np.zeros_like(coming)
        kept[order[:n]] = coming[order[:n]]
        found: Floats = kept / kept.sum()
        return found

    def _ended(self) -> Floats:
        """W_0 [hidden, automaton states, and one for the dead state]."""
        found = np.zeros((len(self._hmm.first), self._pivots.done + 2))
        found[:, self._pivots.done] = 1
        return found

    def _one_more(self, chances: Floats) -> Floats:
        """W_n of W_(n-1). Column -1 is that of the dead state."""
        found = np.zeros_like(chances)
        for state in range(self._pivots.done):
            special, other = self._pivots.edges(state)
            tokens = [token for token in special if token < self._hmm.emits.shape[1]]
            emits = self._hmm.emits[:, tokens]
            own = (emits * chances[:, [special[token] for token in tokens]]).sum(axis=1)
            rest = (1 - emits.sum(axis=1)) * chances[:, other]
            found[:, state] = self._hmm.moves @ (own + rest)
        found[:, self._pivots.done] = 1  # the text may end here
        return found

    def _text(self) -> Floats | None:
        """The hidden state after the text, read from the prompt on at first."""
        if not self._begun and self._context is not None:
            self._begun = True
            for token in self._context.ids[: self._context.n_prompt]:
                self._hidden = self._hmm.after(self._hidden, token)
        return self._hidden

    def accept(self, token: int) -> None:
        self._hidden = self._hmm.after(self._text(), token)
        self._state, self._made = self._pivots.after(self._state, token), self._made + 1

    def fork(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__ |= self.__dict__
        return twin
