"""Drafts a sequence by a small model, which verifies trees of table drafters first (SpecMQuant).

A target with 4-bit weights pays much for wide trees where its arithmetic is the limit; a sequence of likely tokens is
cheap. The small model's own steps are the price of such a sequence, and a tree that tables draft shortens them: it runs
a tree of guesses in one call and follows its own likeliest tokens through it. What comes out is the very sequence that
it would draft step by step (the drafter `model`), in fewer calls.

Tables that go by the last tokens (recycling, trigram, stand) draft at every step and learn what the small model says;
those that go by the text (copy, suffix) only after the text itself.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import FAMILY, Draft, Drafter, DrafterContext, DrafterFacts, make_drafter
from edgedec.drafters._models.opening import open_draft
from edgedec.drafters._models.reader import BEST, shares
from edgedec.drafters._options import Bundle, Length, Threads
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import CallResult, Outputs, Rows, Runtime
from edgedec.sampling import Floats, Sampling
from edgedec.trees.calibration import Calibration, kind_of
from edgedec.trees.merge import TreeMerger

# Others are pruned by its probabilities (`edgedec.speculation.guide`).
_TAIL = 8

FACTS = DrafterFacts(guides=True, paper="SpecMQuant: Speculative Decoding Meets Quantization")


def tables_named(value: str) -> str | None:
    """What names of tables, joined by /, must be; None if they are."""
    tables = [name for name, facts in FAMILY.all_facts().items() if facts.table]
    return None if set(value.split("/")) <= set(tables) else f"of {', '.join(tables)}, joined by /"


def make(
    host: DrafterContext,
    path: Bundle = "",
    length: Length = 8,
    inner: Annotated[str, Opt("Tables that draft for the small model, joined by /.", must=tables_named)] = (
        "recycling/suffix"
    ),
    nodes: Annotated[int, Opt("Tokens of their tree.", 1, 64)] = 8,
    threads: Threads = 0,
) -> Hierarchy:
    runtime, translator = open_draft(host, path, threads or host.runtime.capabilities.threads)
    if translator is not None:
        raise UsageError("drafter hierarchy: needs a small model of the same tokenizer; use model")
    own = replace(host, runtime=runtime, tables=None)
    tables = [(name, make_drafter(name, own)) for name in inner.split("/")]
    return Hierarchy(runtime, host.runtime.spec.vocab_size, length, tables, nodes)


class Hierarchy(ModelDrafter):
    """What it reports: `steps`, calls of the small model; `drafted`, tokens of its sequences, one call each without the
    tables."""

    def __init__(
        self, runtime: Runtime, vocab: int, gamma: int, tables: Sequence[tuple[str, Drafter]], nodes: int = 8
    ) -> None:
        super().__init__(runtime, vocab, gamma)
        self._tables, self._nodes = (
            [(FAMILY.facts(name).table == "text", drafter, Calibration()) for name, drafter in tables],
            nodes,
        )
        wanted = Outputs()
        for _, drafter, _ in self._tables:
            wanted |= drafter.outputs
        self._wanted = wanted | BEST
        self.drafted = 0

    def reset(self) -> None:
        super().reset()
        for _, drafter, _ in self._tables:
            drafter.reset()

    def report(self) -> dict[str, Any]:
        return {**super().report(), "drafted": self.drafted}

    def _likely(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        """The likeliest sequence of the small model."""
        limit, chain = min(self._gamma, nodes), _Chain(context.sampling, self._vocab, self._first.estimates)
        room = limit * (self._nodes + 1)
        result = yield from self._reader.read(context.ids, self._wanted, room)
        guesses, last, count = self._inner(context, [], first=True), -1, 0
        chain.add(result, 0)
        self._teach(Draft(context.ids[-1:], [-1]), [0], chain.tokens, result)
        while len(chain.tokens) < limit and chain.tokens[-1] >= 0 and self._pays(chain.worth, min_path_prob):
            tree = _below(guesses, chain.tokens[-1], self._nodes)
            result = yield from self._step_tree(tree, last)
            path = chain.follow(tree, result, limit)
            self._teach(tree, path, chain.tokens, result)
            last, count = count + path[-1], count + len(tree.tokens)
            guesses = self._inner(context, chain.tokens[:-1], first=False)
        tokens = [token for token in chain.tokens if token >= 0][:limit]
        self.drafted += len(tokens)
        kept = _worth(chain.chances[: len(tokens)], min_path_prob)
        draft = Draft.chain(tokens[:kept], chain.chances[:kept])
        self._hold(draft.tokens, draft.parents, chain.kinds[:kept])
        return draft

    def _step_tree(self, tree: Draft, last: int) -> Generator[Request, Completed, CallResult]:
        """The small model on a tree whose first token follows row `last`."""
        parents = [last, *(self._reader.grown + parent for parent in tree.parents[1:])]
        result = yield from self._reader.grow(tree.tokens, parents, self._wanted)
        self._step_s += (self._reader.step_seconds - self._step_s) * (0.1 if self._step_s else 1.0)
        return result

    def _inner(self, context: Context, drafted: Sequence[int], first: bool) -> TreeMerger:
        """What the tables draft after the text and what was drafted, merged."""
        merger = TreeMerger()
        # What was drafted is no text yet: those that go by it never see it, and the others only as one of its own.
        tail = replace(context, ids=[*context.ids[-_TAIL:], *drafted], sampling=Sampling())
        for number, (by_text, drafter, calibration) in enumerate(self._tables):
            if by_text and not first:
                continue
            if not by_text:
                drafter.reset()
            draft = drafter.propose(context if by_text else tail, 2 * self._nodes, 0.0)
            assert isinstance(draft, Draft)
            merger.add(number, draft, calibration.estimates)
        return merger

    def _teach(self, tree: Draft, path: Sequence[int], tokens: Sequence[int], result: CallResult) -> None:
        """Let the tables learn the small model's predictions after these rows."""
        rows = Rows.tree(tree.tokens, tree.parents, 0)
        picked = list(tokens[len(tokens) - len(path) :])
        for _, drafter, _ in self._tables:
            drafter.observe(StepResult(rows, 0, path, picked, result, 0.0, len(rows)))


class _Chain:
    """The small model's likeliest tokens so far."""

    def __init__(self, sampling: Sampling, vocab: int, estimates: Floats) -> None:
        self._sampling, self._vocab, self._estimates = sampling, vocab, estimates
        self.tokens: list[int] = []
        self.chances: list[float] = []
        self.kinds: list[int] = []
        self.worth = 1.0

    def add(self, result: CallResult, row: int) -> None:
        """The likeliest token after a row of a call."""
        assert result.ids is not None
        assert result.scores is not None
        one = CallResult(ids=result.ids[row : row + 1], scores=result.scores[row : row + 1])
        token, claim = next(iter(shares(one, self._sampling, self._vocab)), (-1, 0.0))
        self.tokens.append(token)
        self.kinds.append(kind_of(claim))
        self.chances.append(self._estimates.item(self.kinds[-1]))
        self.worth *= self.chances[-1]

    def follow(self, tree: Draft, result: CallResult, limit: int) -> list[int]:
        """Add the small model's own choices along the tree; returns the rows that they went through."""
        children = {pair: row for row, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        path = [0]
        self.add(result, 0)
        while len(self.tokens) < limit and (row := children.get((path[-1], self.tokens[-1]))) is not None:
            path.append(row)
            self.add(result, row)
        return path


def _below(guesses: TreeMerger, token: int, nodes: int) -> Draft:
    """A token, and the likeliest of what was guessed below it."""
    rows: dict[int, int] = {}
    tokens, parents = [token], [-1]
    for node in guesses.best_first():
        parent = guesses.parents[node]
        if parent < 0 and guesses.tokens[node] == token:
            rows[node] = 0
        elif parent in rows and len(tokens) <= nodes:
            rows[node] = len(tokens)
            tokens.append(guesses.tokens[node])
            parents.append(rows[parent])
    return Draft(tokens, parents)


def _worth(chances: Sequence[float], min_path_prob: float) -> int:
    """How many of a chain's tokens have a path that is likely enough."""
    path, n = 1.0, 0
    for chance in chances:
        path *= chance
        if path < min_path_prob:
            break
        n += 1
    return n
