"""Token Recycling (S02): the next tokens that the target considered and did not take are kept for later.

One table: token -> the `k` best next tokens of the last row that carried it, accepted or not. A draft is the tree
that following the table from the last token gives, the likeliest paths first. 2 MB and the dictionary of the tokens
that were met; nothing is trained.
"""

from __future__ import annotations

from typing import Any

from edgedec.context import Context
from edgedec.drafters import Draft, Host, Plain, Seen, State
from edgedec.drafters._tables import Ranked, Table, best_of, grow_ranked, sized
from edgedec.runtime import Want

_CAP = 1 << 15
_TRUST = 0.7  # the token stood in another text, so its next ones are less sure than they were there


def make(host: Host, nodes: int = 16, k: int = 8) -> Recycling:
    return Recycling(host.bundle.spec.vocab_size, nodes, k)


class Recycling(Plain):
    def __init__(self, vocab: int, nodes: int = 16, k: int = 8) -> None:
        self.nodes, self.k = sized("nodes", nodes), min(sized("k", k), vocab)
        self.wants = Want(logits=False, top=self.k)
        self.table = Table(self.k, _CAP, vocab)

    def propose(self, context: Context, nodes: int, floor: float) -> Draft:
        return grow_ranked(context.ids[-1], self._followers, _behind, min(nodes, self.nodes), floor)

    def observe(self, seen: Seen) -> None:
        if (shown := best_of(seen.output, self.k)) is not None:
            self.table.learn(seen.tokens(), *shown, rate=1.0)

    def state(self) -> State:
        return self.table.state()

    def restore(self, state: State) -> None:
        self.table.restore(state)

    def report(self) -> dict[str, Any]:
        return {"tokens": len(self.table)}

    def _followers(self, token: int) -> Ranked | None:
        slot = self.table.find(token)
        if slot < 0:
            return None
        ids, p = self.table.row(slot)
        p = [_TRUST * x for x in p]
        return ids, p, p


def _behind(before: int, token: int) -> int:
    return token
