"""Drafts from n-gram tables that keep the target's probabilities (STAND).

Under the last one, two and three tokens stand the target's best next tokens with their mean probabilities over the
latest visits. The longest known context drafts. Greedily (and by default) the likeliest tokens; with `verify=recursive`
under sampling, children are drawn without replacement from the table's distribution at the temperature at hand
(Gumbel-top-k), for a verifier that accepts them by it. The tree's shape is learned as it goes: by depth, length of the
context and rank among its siblings, what came true is held against what was claimed, and the next claims follow.
`choices` is the paper's fixed tree instead: the paths accepted most often where a large tree ran on sample texts
(`tests/bench/stand_tree.py` writes it). Read: the abstract and two write-ups; contexts of 1 to 3 tokens (the paper's
have 2 to 4) and the adaptive shape are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, State
from edgedec.drafters._options import Choices, Followers, PromptRowsRead, TableNodes, unused
from edgedec.drafters._tables.claims import ORDER, RankRecord, together
from edgedec.drafters._tables.compiled import CompiledStand, compiled
from edgedec.drafters._tables.drawn import DrawnTree, History, Place, deeper
from edgedec.drafters._tables.ranked import Ranked, Table, Tail, best_of, grow_ranked, keys_of
from edgedec.drafters._tables.states import checked_record
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Outputs, TableSettings
from edgedec.trees.choices import Ranks, chosen_draft, chosen_nodes, read_choices

_CAP = 1 << 16
_RATE = 0.3  # of a mean over visits the latest counts so much, at least
_NODES = 16

FACTS = DrafterFacts(table="tokens", paper="STAND: Model-Free Speculative Sampling")


def make(
    host: DrafterContext,
    nodes: TableNodes = _NODES,
    k: Followers = 8,
    verify: Annotated[Literal["match", "recursive"], Opt("Verification; recursive: of drawn tokens.")] = "match",
    prompt: PromptRowsRead = 0,
    choices: Choices = "",
) -> Drafter:
    vocab = host.bundle.spec.vocab_size
    tree = read_choices(Path(choices), "stand") if choices else ()
    if tree:
        unused("stand", "choices", nodes=(nodes, _NODES))
        nodes = len(tree)
    drafter = Stand(vocab, nodes, k, verify, prompt, tree)
    fits(tree, drafter.k)
    settings = TableSettings("stand", vocab, nodes, drafter.k)
    if verify == "match" and not tree and (found := compiled(host, settings, CompiledStand)):
        found.prompt_rows = prompt
        return found
    drafter.table = host.table(("stand", drafter.k), lambda: drafter.table)
    return drafter


def fits(tree: Sequence[Ranks], k: int) -> None:
    """UsageError if a fixed tree has ranks that no table keeps."""
    if (highest := max(map(max, tree), default=0)) >= k:
        raise UsageError(f"drafter stand: choices: rank {highest}, and k={k} tokens are kept: take k={highest + 1}")


class _Ranked(NamedTuple):
    tokens: Sequence[int]
    claims: Sequence[float]


class Stand(BaseDrafter):
    def __init__(
        self,
        vocab: int,
        nodes: int = _NODES,
        k: int = 8,
        verify: str = "match",
        prompt: int = 0,
        choices: Sequence[Ranks] = (),
    ) -> None:
        """choices: paths of a fixed tree, each after the one before its last rank."""
        self.prompt_rows, self.choices = prompt, choices
        self.vocab, self.nodes, self.k, self.verify = vocab, nodes, min(k, vocab), verify
        self.outputs = Outputs(top=self.k)
        self.table, self.record = Table(self.k, _CAP, vocab), RankRecord(self.k)
        self._tail = Tail(ORDER)
        self._drawn: DrawnTree | None = None

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        tail, nodes = self._tail.follow(context.ids), min(nodes, self.nodes)
        if self.verify == "recursive" and context.sampling.temperature > 0 and nodes > 0:
            self._drawn = DrawnTree(self.known, self.record, context.sampling, context.rng, nodes)
            return self._drawn.chosen(tail, self.choices) if self.choices else self._drawn.draft(tail, min_path_prob)
        self._drawn = None
        if self.choices:
            return chosen_draft(chosen_nodes(self.choices, (0, tail), self._ranked, deeper, nodes))
        return grow_ranked((0, tail), self._followers, deeper, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        for part in step.prompt if self.prompt_rows else ():
            self._learn(part, self._tail.histories(part))
        histories = self._tail.histories(step)
        if self._drawn is None:
            self._score(step, histories)
        else:
            self._drawn.score(step)
            self._drawn = None
        self._learn(step, histories)

    def _learn(self, step: StepResult, histories: Sequence[History]) -> None:
        if (shown := best_of(step.result, self.k)) is not None:
            keys: list[int] = []
            lines: list[int] = []
            for i, history in enumerate(histories):
                keys += keys_of(history, self.vocab)
                lines += [i] * len(history)
            self.table.learn(keys, shown[0][lines], shown[1][lines], _RATE)

    def reset(self) -> None:
        self._tail.reset()
        self._drawn = None

    def state(self) -> State:
        record = self.record
        kept = {"claimed": record.claimed, "came": record.came}
        return self.table.state() | {
            name: np.array(values, np.float32).reshape(record.shape) for name, values in kept.items()
        }

    def restore(self, state: State) -> None:
        record = RankRecord(self.k)
        claimed, came = checked_record(state, record.shape)
        table = Table(self.k, _CAP, self.vocab)
        table.restore(state)
        record.take_up(claimed.ravel().tolist(), came.ravel().tolist())
        self.table, self.record = table, record

    def report(self) -> dict[str, Any]:
        return {"contexts": len(self.table)}

    def known(self, history: History) -> tuple[int, list[int], list[float]]:
        """(tokens of context, what follows, how likely) by the longest known end of `history`; order 0: nothing."""
        keys = keys_of(history, self.vocab)
        for n in range(len(keys), 0, -1):
            slot = self.table.find(keys[n - 1])
            if slot >= 0:
                return n, *self.table.row(slot)
        return 0, [], []

    def _followers(self, state: Place) -> Ranked | None:
        depth, history = state
        order, ids, p = self.known(history)
        if not order:
            return None
        scale, at = self.record.scale, self.record.cell(False, depth, order)
        p = together([x * scale[at + rank] for rank, x in enumerate(p)])
        if all(map(ge, p, p[1:])):
            return ids, p, p
        ranks = sorted(range(len(p)), key=p.__getitem__, reverse=True)
        p = [p[rank] for rank in ranks]
        return [ids[rank] for rank in ranks], p, p

    def _ranked(self, node: int, state: Place) -> _Ranked | None:
        return None if (found := self._followers(state)) is None else _Ranked(found[0], found[1])

    def _score(self, step: StepResult, histories: Sequence[History]) -> None:
        """What the table claimed to follow each accepted row, and what did; drafted or not."""
        for depth, (row, token) in enumerate(zip(step.path, step.picked, strict=True)):
            order, ids, p = self.known(histories[row])
            at = self.record.cell(False, depth, order)
            for rank, x in enumerate(p):
                self.record.note(at + rank, x, ids[rank] == token)
