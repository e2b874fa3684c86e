"""Drafts with a model that reads a short, retrieved part of a long text (RAPID).

Chen et al. 2025. Of a long text the passages that have most to do with its end are put together, in their order,
between its first tokens and its latest ones: some hundreds of tokens. The same model, or a smaller one, drafts after
those; the target verifies after the whole text, which is what it is without drafts. With `transfer` the target's
distribution is bent towards the draft's: the paper's other mode, another text (`_models/transfer.py`).

Passages are of `chunk` tokens. One counts by the tokens that it shares with the latest `chunk`, each by how few
passages have it (as in TF-IDF), or by the cosine of an encoder's vectors (`_models/passages.py`), which is the paper's
way. They are chosen for a prompt, and again after `refresh` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.drafters import Draft, Drafter, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._models.opening import open_draft
from edgedec.drafters._models.passages import Ids, PassageEncoder, passage_encoder, shared_tokens
from edgedec.drafters._models.reader import DraftReader, Reading
from edgedec.drafters._models.transfer import TransferDrafter
from edgedec.drafters._options import TRIM, Least, Length, Trim, unused
from edgedec.drafters._usage import usage_of
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Outputs, Runtime

_FIRST = 32  # tokens of the beginning, where instructions stand

FACTS = DrafterFacts(lossy="transfer", paper="RAPID")


def make(
    host: DrafterContext,
    path: Annotated[str, Opt("Bundle of a smaller model of the same tokens; by default the model itself.")] = "",
    budget: Annotated[int, Opt("Tokens of the short text.", 1)] = 512,
    chunk: Annotated[int, Opt("Tokens of a passage.", 8)] = 64,
    least: Least = 2048,
    refresh: Annotated[int, Opt("Tokens after which passages are chosen anew.", 1)] = 512,
    length: Length = 8,
    trim: Trim = TRIM,
    encoder: Annotated[
        str, Opt("Bundle of a text encoder that passages are chosen by; by default they are by tokens in common.")
    ] = "",
    transfer: Annotated[
        float, Opt("Lossy: how far the target's distribution is bent towards the draft's; 0: not at all.", 0)
    ] = 0.0,
    verify: Annotated[Literal["match", "token"], Opt("Verification of texts under transfer.")] = "match",
) -> Rapid | TransferDrafter:
    runtime = _reading_runtime(host, path, budget, chunk)
    embedder, vocab = passage_encoder(host, encoder) if encoder else None, host.runtime.spec.vocab_size
    reader = RetrievedReader(runtime, budget, chunk, refresh, embedder)
    if transfer or path:
        unused("rapid", "transfer" if transfer else "path", trim=(trim, TRIM))
    if transfer:
        if budget + refresh + length >= runtime.spec.context_length:
            raise UsageError(
                f"drafter rapid: transfer: budget={budget}, refresh={refresh}, length={length}: together below the "
                f"context of {runtime.spec.context_length}"
            )
        return TransferDrafter(reader, vocab, transfer, length, least, verify == "token")
    if verify != "match":
        raise UsageError("drafter rapid: verify=token: is of transfer; without it texts stay as they are (match)")
    drafter = Rapid(reader, runtime, vocab, least, length)
    drafter.usage = usage_of(host, trim) if not path else None
    return drafter


def _reading_runtime(host: DrafterContext, path: str, budget: int, chunk: int) -> Runtime:
    """What reads the short text; UsageError if that does not fit it."""
    if budget < _FIRST + 3 * chunk:
        raise UsageError(
            f"drafter rapid: budget={budget}, chunk={chunk}: needs room for {_FIRST} tokens and three passages"
        )
    runtime, translator = (host.runtime, None) if not path else open_draft(host, path)
    if translator is not None:
        raise UsageError(f"drafter rapid: path={path}: has other tokens than the target; use a model of the same ones")
    if 2 * budget > runtime.spec.context_length:
        raise UsageError(
            f"drafter rapid: budget={budget}: at most half of the context of {runtime.spec.context_length}"
        )
    return runtime


class Rapid(ModelDrafter):
    """A `model` drafter that reads passages."""

    def __init__(self, reader: RetrievedReader, runtime: Runtime, vocab: int, least: int, gamma: int) -> None:
        super().__init__(runtime, vocab, gamma)
        self._passages, self._reader, self._least = reader, reader, least

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if len(context.ids) < self._least:
            return Draft()
        return super().propose(context, nodes, min_path_prob)

    def inherit(self, other: Drafter) -> None:
        super().inherit(other)
        if isinstance(other, Rapid):
            self._passages.inherit(other._passages)

    def report(self) -> dict[str, Any]:
        return {**super().report(), **self._passages.report()}


class RetrievedReader(DraftReader):
    """Reads a short text instead of the long one. encoder: it chooses the passages; None: shared tokens do."""

    def __init__(
        self, runtime: Runtime, budget: int, chunk: int, refresh: int, encoder: PassageEncoder | None = None
    ) -> None:
        super().__init__(runtime)
        self._budget, self._size, self._refresh, self._encoder = budget, chunk, refresh, encoder
        self._short: list[int] = []
        self._tail = self._chosen = -1
        self._tokens = 0

    def read(self, ids: Sequence[int], outputs: Outputs, room: int, settled: int | None = None) -> Reading:
        if not 0 <= self._chosen <= len(ids) < self._chosen + self._refresh:
            self._choose(ids)
        short = [*self._short, *ids[self._tail :]]
        self._tokens = len(short)
        return (yield from super().read(short, outputs, room))

    def settle(self, ids: Sequence[int], origin: int) -> int:
        """Passages are those of the text up to the last of the places `origin`, `origin` + `refresh`, …; -> how many
        tokens may come before the next one."""
        place = origin + max(len(ids) - origin, 0) // self._refresh * self._refresh
        if self._chosen != place:
            self._choose(ids[:place])
        return place + self._refresh - 1 - len(ids)

    def reset(self) -> None:
        super().reset()
        self._tail = self._chosen = -1

    def inherit(self, other: RetrievedReader) -> None:
        """Know the passages that another text's reader embedded."""
        if self._encoder is not None and other._encoder is not None:
            self._encoder.inherit(other._encoder)

    def report(self) -> dict[str, Any]:
        """The tokens of the short text; the passages that were embedded, and how long that took."""
        reads, encoder = {"reads": self._tokens}, self._encoder
        return reads if encoder is None else {**reads, "embedded": encoder.made, "embed_s": round(encoder.seconds, 3)}

    def _choose(self, ids: Sequence[int]) -> None:
        """Passages for this text; what stays in front of them is not read again."""
        super().reset()
        self._chosen, self._tail = len(ids), max(len(ids) - 2 * self._size, 0)
        many = (self._budget - _FIRST) // self._size - 2
        scores = shared_tokens if self._encoder is None else self._encoder.cosines
        passages = retrieved(ids[: self._tail], ids[-self._size :], self._size, many, _FIRST, scores)
        found = [ids[at : at + self._size] for at in passages]
        self._short = [*ids[: min(_FIRST, self._tail)], *(token for passage in found for token in passage)]


def retrieved(
    ids: Ids,
    query: Ids,
    size: int,
    many: int,
    first: int = 0,
    scores: Callable[[Sequence[Ids], Ids], NDArray[Any]] = shared_tokens,
) -> list[int]:
    """Where the `many` passages of `size` tokens begin that have most to do with the query, ascending; cut from
    `first` on.

    ids 1 2 9 9 5 6 7 7, query 6 5, size 2, many 1 -> 4
    """
    starts = range(first, len(ids) - size + 1, size)
    if len(starts) <= many:
        return [*starts]
    order = np.argsort(-scores([ids[at : at + size] for at in starts], query), kind="stable")[:many]
    return sorted(starts[int(i)] for i in order)
