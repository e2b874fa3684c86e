"""One token further: the next tokens of several branches and their log-probabilities, in one forward."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.apply_policy import settle
from edgedec.decoding.logits import LogitsChain
from edgedec.decoding.messages import Completed, Together, Token, Waiting
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, CallResult, Capabilities, Logits, Outputs, Rows, suits
from edgedec.sampling import top_logprobs
from edgedec.search.branch import Branch
from edgedec.search.room import Room, read

Floats = NDArray[np.float64]
_NOT_FINITE = "logits: the largest is not finite; need at least one finite value and no NaN or +inf"


@dataclass
class NextTokens:
    """The likeliest next tokens of a branch, the best first: ids and their log-probabilities after the processors, as
    many as have any. scores: those of all tokens [vocab], None if only the best were computed; logits: the model's."""

    ids: Sequence[int]
    logps: Sequence[float]
    scores: Floats | None = None
    logits: Logits | None = None

    @property
    def best(self) -> int:
        """The likeliest token; UsageError at a dead end."""
        if not len(self.ids):
            raise UsageError("--search: a dead end: nothing that the constraint allows may follow")
        return int(self.ids[0])

    def token(self, token: int, n: int | None) -> Token:
        """A token with its log-probability and the n likeliest, if they are wanted."""
        if n is None or self.logits is None:
            return Token(token)
        return Token(token, float(log_softmax(self.logits)[token]), tuple(top_logprobs(self.logits, n)))


@dataclass
class NextOfAll:
    """The k likeliest next tokens of several branches, the best first: ids [branches, k] and their log-probabilities,
    -inf where a branch has fewer. each: what is known of the tokens of each branch besides; empty: nothing."""

    ids: NDArray[np.int32]
    logps: Floats
    each: Sequence[NextTokens] = ()

    @classmethod
    def of(cls, each: Sequence[NextTokens], k: int) -> NextOfAll:
        found = cls(np.zeros((len(each), k), np.int32), np.full((len(each), k), -np.inf), each)
        for i, nexts in enumerate(each):
            found.ids[i, : len(nexts.ids)], found.logps[i, : len(nexts.ids)] = nexts.ids, nexts.logps
        return found

    def part(self, start: int, end: int) -> NextOfAll:
        """Those of some of the branches."""
        return NextOfAll(self.ids[start:end], self.logps[start:end], self.each[start:end])

    def token(self, branch: int, token: int, n: int | None) -> Token:
        """As `NextTokens.token`, of the branch of this number."""
        return self.each[branch].token(token, n) if self.each else Token(token)


def extend(
    room: Room, branches: Sequence[Branch], k: int, whole: bool = False
) -> Generator[Any, Any, list[NextTokens]]:
    """The k likeliest next tokens of each branch; its last token is then cached. whole: the scores of all tokens
    too."""
    results, _ = yield from _stepped(room, branches, k, whole)
    return [next_tokens(branch.chain, result, k) for branch, result in zip(branches, results, strict=True)]


def extend_all(room: Room, branches: Sequence[Branch], k: int) -> Generator[Any, Any, NextOfAll]:
    """As `extend`, of all branches at once."""
    results, are_best = yield from _stepped(room, branches, k, False)
    if are_best and (found := _best_of_each(results)) is not None:
        return found
    each = [next_tokens(branch.chain, result, k) for branch, result in zip(branches, results, strict=True)]
    return NextOfAll.of(each, k)


def _stepped(
    room: Room, branches: Sequence[Branch], k: int, whole: bool
) -> Generator[Any, Any, tuple[list[CallResult], bool]]:
    """What one forward gives of the next token of each branch, and whether that is the k best of all of them."""
    can, best = room.host.capabilities, Outputs(top=k, logsum=True)
    wanted = [outputs_of(branch, best, whole, can) for branch in branches]
    results = yield from forwarded(room, branches, wanted)
    yield from _masks(room, branches)
    return results, all(one is best for one in wanted)


def forwarded(
    room: Room, branches: Sequence[Branch], wanted: Sequence[Outputs]
) -> Generator[Any, Any, list[CallResult]]:
    """What one forward gives of the last token of each branch, which is then cached."""
    for branch in branches:
        if not _is_read(branch):
            yield from _read(room, branch)
    answers: list[Completed] = yield Together(_calls(branches, wanted))
    for branch, answer in zip(branches, answers, strict=True):
        context = branch.context
        context.cache.commit((0,))
        if context.policy is not None:
            context.policy.observe(context.cache, answer.result)
    return [answer.result for answer in answers]


def _is_read(branch: Branch) -> bool:
    """Whether all but the last token is cached, as it is after every step but where something forgot."""
    context = branch.context
    n = len(context.ids)
    return context.policy is None and n == context.cache.length + 1 and suits(context.cache, n)


def _read(room: Room, branch: Branch) -> Generator[Any, Any, None]:
    """Read what is pending but the last token: nothing, unless a rope or a policy forgot what was cached."""
    context = branch.context
    if context.policy is not None:
        yield from settle(context, room.host.capabilities.prefill_chunk)
    if context.suit() or len(context.ids) != context.cache.length + 1:
        yield from read(context, room.host)


def _calls(branches: Sequence[Branch], wanted: Sequence[Outputs]) -> list[Call]:
    """The calls of the last token of each branch."""
    contexts = [branch.context for branch in branches]
    rows = Rows.singles([one.ids[-1] for one in contexts], [one.cache.length for one in contexts])
    calls = list[Call]()
    for branch, context, row, outputs in zip(branches, contexts, rows, wanted, strict=True):
        if branch.embedding is not None:
            row = Rows.embedded(branch.embedding, context.cache.length)
        call = Call(row, context.cache, None, None, outputs, context.adapter)
        calls.append(call if context.policy is None else context.policy.shape(call))
    return calls


def outputs_of(branch: Branch, best: Outputs, whole: bool, can: Capabilities) -> Outputs:
    """What a call has to give: `best`, the k best with the log-sum, where these are all that is needed."""
    chain = branch.chain
    if not len(chain):
        return ALL_LOGITS if whole or branch.config.logprobs is not None or not can.logsum else best
    check_chain(branch)
    return ALL_LOGITS


def check_chain(branch: Branch) -> None:
    """UsageError for processors that single steps have no place for."""
    if branch.chain.early:
        raise UsageError("--search: processors that read inner layers work with searches that roll only (best, first)")
    if branch.chain.gathers:
        raise UsageError("--search: --fuse works with searches that roll only (best, first)")


def _masks(room: Room, branches: Sequence[Branch]) -> Generator[Waiting, None, None]:
    """Wait, where a batch runs other texts meanwhile, until the constraints have their masks."""
    if not room.context.hooks.parks:
        return
    pending = [getattr(branch.config.constraint, "ready", None) for branch in branches]
    ready = [one for one in pending if one is not None]
    if not all(one() for one in ready):
        yield Waiting(lambda: all(one() for one in ready))


def _best_of_each(results: Sequence[CallResult]) -> NextOfAll | None:
    """Of results with the k best; None if a logit among them is not finite."""
    ids = np.concatenate(cast("list[NDArray[np.int32]]", [result.ids for result in results]))
    if np.minimum.reduce(ids, axis=None) < 0:
        return None
    scores = np.concatenate(cast("list[Logits]", [result.scores for result in results]), dtype=np.float64)
    scores -= np.concatenate(cast("list[Floats]", [result.logsum for result in results]))[:, None]
    return NextOfAll(ids, scores)


def next_tokens(chain: LogitsChain, result: CallResult, k: int, path: Sequence[int] = ()) -> NextTokens:
    """The k likeliest next tokens by a call's result. path: tokens after the text that the processors have seen."""
    if result.logits is None:
        assert result.ids is not None
        assert result.scores is not None
        assert result.logsum is not None
        known = int((result.ids[0] >= 0).sum())  # -1: the logit is not finite
        if not known:
            raise UsageError(_NOT_FINITE)
        logps = result.scores[0][:known].astype(np.float64) - float(result.logsum[0])
        return NextTokens(result.ids[0][:known].tolist(), logps.tolist())
    logits = result.logits[0]
    scores = log_softmax(logits)
    if len(chain):
        scores = chain.process(scores.astype(np.float32), path, {}).astype(np.float64)
    ids = best_ids(scores, k)
    return NextTokens(ids, scores[ids].tolist(), scores, logits)


def log_softmax(logits: Logits) -> Floats:
    """[vocab] -> float64 [vocab]; UsageError if one is NaN."""
    row = logits.astype(np.float64)
    top = row.max()
    if not np.isfinite(top):
        raise UsageError(_NOT_FINITE)
    found: Floats = row - top - np.log(np.exp(row - top).sum())
    return found


def best_ids(scores: Floats, k: int) -> list[int]:
    """The tokens of the k largest scores above -inf, the largest first, the lowest id of equals first."""
    k = min(k, len(scores))
    border = np.partition(scores, -k)[-k]
    found = np.flatnonzero((scores >= border) & (scores > -np.inf))
    order = np.argsort(-scores[found], kind="stable")[:k]
    return [int(token) for token in found[order]]


def add_ends(room: Room, branches: Sequence[Branch]) -> Generator[Any, Any, None]:
    """Add to `logp` of those that an end token ended the log-probability of an end: the decode loop delivers the token
    before it, and nothing of the end itself."""
    ended = [branch for branch in branches if branch.finish == "eos" and room.ends]
    if not ended:
        return
    for branch in ended:
        if branch.context.policy is None:  # under a policy `_read` takes back the last row, and nothing is read again
            branch.context.forget(min(branch.context.cache.length, len(branch.context.ids) - 1))
        yield from _read(room, branch)
    answers: list[Completed] = yield Together(_calls(ended, [ALL_LOGITS] * len(ended)))
    ends = sorted(room.ends)
    for branch, answer in zip(ended, answers, strict=True):
        branch.context.cache.commit((0,))
        assert answer.result.logits is not None
        branch.logp += float(np.logaddexp.reduce(log_softmax(answer.result.logits[0])[ends]))
