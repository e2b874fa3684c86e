"""Traced generations without a model, their tokens spelt as badly as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loops import decode

from edgedec.bench.trace import Tape
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.pieces import TextPiece
from edgedec.drafters import Draft
from edgedec.drafters.off import Off
from edgedec.testing.fakes import FakeRuntime, Limited, PerfectDrafter

# One for each token of the fake vocabulary.
NASTY = (
    "</script><script>document.title='broken'</script>",
    "<!--<script>",
    "\n",
    " \"quoted\" 'twice' \\ ",
    "",
    "&lt;&amp;",
    "\u2028\u2029\u0000\r\t",
    "\u202eשלום",
    " 👩‍👩‍👧 é",
    "@@DATA@@ $& $1 ${x}",
    "\ud800",
    "<img src=x onerror=console.error(1)>",
    " the",
)
NAMES = ("copy", "copy+trigram", "recycling", "<b>bold</b>")
START = (1, 2, 3)


def spell_nasty(token: int) -> str:
    return NASTY[token]


class Signed(Limited):
    """Guesses with claims, names and a reason."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        draft = super().propose(context, nodes, min_path_prob)
        n = len(draft.tokens)
        why = f"{n} of 9 guesses, <i>1.{n}x</i> expected" if n else "nothing pays"
        by = [NAMES[i % len(NAMES)] for i in range(n)]
        return replace(draft, p=[1 / (2.1 + i) for i in range(n)], by=by, why=why)


def generate(drafter: object, n: int, trace: list[StepTrace] | None = None) -> Iterator[TextPiece]:
    runtime = FakeRuntime()
    context = Context(list(START), len(START), runtime.new_cache(64))
    for token in decode(runtime, context, GenerationConfig(max_tokens=n), drafter, trace=trace):  # type: ignore[arg-type]
        yield TextPiece(NASTY[token], token)


def plain(n: int) -> list[int]:
    return [int(piece.token or 0) for piece in generate(Off(), n)]


def tape(n: int = 40, nodes: int = 9, decoys: int = 2) -> Tape:
    """n tokens, guessed right up to every third call's end, each beside `decoys` wrong siblings."""
    made = Tape()
    return made.run(generate(Signed(_Halting([*START, *plain(n)], decoys), nodes), n, made.steps))


class _Halting(PerfectDrafter):
    """Knows nothing at every third call, and the last token of its drafts wrong."""

    def __init__(self, tokens: Sequence[int], decoys: int) -> None:
        super().__init__(tokens, decoys)
        self.asked = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.asked += 1
        if self.asked % 3 == 0:
            return Draft()
        draft = super().propose(context, nodes, min_path_prob)
        if not draft.tokens:
            return draft
        wrong = (draft.tokens[-1] + self.decoys + 1) % self.vocab
        return replace(draft, tokens=(*draft.tokens[:-1], wrong))
