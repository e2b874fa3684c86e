"""Selection: which of given answers follows, by likelihood; their tokens are a tree of one call; lossy.

The rules rest on SGLang's code (`lang/choices.py`, Apache 2.0): mean is its token-length-normalized choice, greedy its
greedy-token choice, unconditional its unconditional-likelihood-normalized one; sum is the likelihood itself.

    mean           the largest mean of the log-probabilities of an answer's tokens
    greedy         token by token those answers stay whose token is the likeliest; of equals the shortest
    unconditional  the largest mean of what the prompt adds to each log-probability over the first token alone
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Token
from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.plugins import Opt
from edgedec.runtime import ALL_LOGITS, Call, Rows
from edgedec.search.branch import Branch
from edgedec.search.extending import log_softmax
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.room import Room

FACTS = SearchFacts(paper="SGLang's choices", rests="authors' code")
By = Literal["mean", "sum", "greedy", "unconditional"]


def make(
    host: SearchHost,
    choices: Annotated[tuple[str, ...], Opt('The answers, as ["yes", "no"].')],
    by: Annotated[By, Opt("How answers of several tokens are compared.")] = "mean",
) -> Selection:
    if len(choices) < 2 or len(set(choices)) < len(choices) or "" in choices:
        raise UsageError("--search select: choices: must be two or more different texts")
    if not host.capabilities.trees:
        raise RuntimeUnavailable("--search select: this engine runs no trees")
    return Selection(choices, by)


class Selection:
    width = 1

    def __init__(self, choices: Sequence[str], by: By) -> None:
        self._choices, self._by = choices, by

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        root = yield from room.root()
        encode = room.host.tokenizer().encode
        texts = [encode(choice, around=False) for choice in self._choices]
        if max(map(len, texts)) > room.most:
            raise ContextFull(f"--search select: a choice of {max(map(len, texts))} tokens; {room.most} are allowed")
        known = yield from _logps(room, root.context, texts)
        less = None
        if self._by == "unconditional":
            first = Context(room.context.ids[:1], 1, room.new_cache(), adapter=room.context.adapter)
            less = yield from _logps(room, first, texts)
        best = chosen(texts, known, self._by, less)
        room.counts.candidates, room.counts.tokens = len(texts), sum(map(len, texts))
        for token, logp in zip(texts[best], known[best], strict=True):
            root.push(Token(token, logp) if room.config.logprobs is not None else Token(token), logp)
        root.finish = "eos"
        root.value = sum(known[best]) / len(texts[best])
        return root


def _logps(room: Room, context: Context, texts: Sequence[Sequence[int]]) -> Generator[Any, Any, list[list[float]]]:
    """The log-probabilities of the tokens of each text after a context, of which one token is not cached."""
    tokens, parents, paths = tree_of(texts)
    start = context.cache.length
    if len(tokens) + 1 > room.host.capabilities.largest_call:
        raise UsageError(f"--search select: choices of {len(tokens)} tokens together do not fit a call")
    rows = Rows.tree([context.ids[-1], *tokens], [-1, *(parent + 1 for parent in parents)], start)
    done: Completed = yield Call(rows, context.cache, outputs=ALL_LOGITS, adapter=context.adapter)
    context.cache.rollback()
    assert done.result.logits is not None
    laws = [log_softmax(row) for row in done.result.logits]
    return [[float(laws[parents[node] + 1][tokens[node]]) for node in path] for path in paths]


def tree_of(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[list[int]]]:
    """Tokens and parents (-1: the prompt) of the tree of texts, and each text's nodes.

    >>> tree_of([[5, 6], [5, 7]])
    ([5, 6, 7], [-1, 0, 0], [[0, 1], [0, 2]])
    """
    tokens, parents, paths, known = list[int](), list[int](), list[list[int]](), dict[tuple[int, int], int]()
    for text in texts:
        node, path = -1, list[int]()
        for token in text:
            if (node, token) not in known:
                known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = known[node, token]
            path.append(node)
        paths.append(path)
    return tokens, parents, paths


def chosen(
    texts: Sequence[Sequence[int]], logps: Sequence[Sequence[float]], by: str, less: Sequence[Sequence[float]] | None
) -> int:
    """Which text is chosen, the first of equals."""
    if by == "greedy":
        return _greedy(texts, logps)
    if by == "sum":
        return int(np.argmax([sum(one) for one in logps]))
    if less is not None:
        logps = [[a - b for a, b in zip(one, other, strict=True)] for one, other in zip(logps, less, strict=True)]
    return int(np.argmax([sum(one) / len(one) for one in logps]))


def _greedy(texts: Sequence[Sequence[int]], logps: Sequence[Sequence[float]]) -> int:
    left, at = list(range(len(texts))), 0
    while len(left) > 1:
        over = [i for i in left if len(texts[i]) == at]
        if over:  # all others go on from it
            return over[0]
        best = max(logps[i][at] for i in left)
        left = [i for i in left if logps[i][at] == best]
        at += 1
    return left[0]
