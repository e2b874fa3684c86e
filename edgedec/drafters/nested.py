"""Drafts with a model whose first layers are smaller models, of which each token takes as much as it needs.

Sorted Speculative Decoding (S2D; Kavehzadeh et al. 2024) on a SortedNet (Valipour et al. 2023). Read: the authors' code
(parsareal/SD2, `inference/model/sd2/decoding.py`, `train_soft.py`) by notes, and the abstracts. The sub-models share
norm and head. A token is the smallest sub-model's if its probability is above the threshold, else the next one's; the
whole draft model is the last. States of rows that left are kept, and run on together when a deeper sub-model is needed.

    thresholds 0.5 0.5: 6 layers say "a" 0.4, 9 layers say "b" 0.7 -> "b"; the rows before it run through layers 7 to 9

One such draft serves targets of any size that have its tokens: a small sub-model suffices where a token is easy. The
authors' tree (4 deep, 60 nodes) is left out: here a chain is drafted, like by `model`.
Training: `train-exits --method s2d`, or `sortednet`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Annotated, Any

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._models.nested_reader import NestedReader
from edgedec.drafters._models.opening import KIND, open_draft
from edgedec.drafters._options import Bundle, Length, Threads
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Runtime
from edgedec.spec import ModelSpec

DRAFT = KIND

FACTS = DrafterFacts(draft=KIND, guides=True, paper="S2D: Sorted Speculative Decoding; SortedNet")


def make(
    host: DrafterContext,
    path: Bundle = "",
    threads: Threads = 0,
    layers: Annotated[
        str, Opt("Layers of the smaller models, as 6-9; by default half and three quarters of the draft's.")
    ] = "",
    threshold: Annotated[float, Opt("A smaller model gives a token that it finds likelier than this.", 0, 1)] = 0.5,
    length: Length = 8,
) -> Nested:
    runtime, translator = open_draft(host, path, threads)
    if translator is not None:
        raise UsageError("drafter nested: the draft model has other tokens; use model")
    if not runtime.capabilities.slices:
        raise UsageError(f"drafter nested: the runtime {runtime.name} runs only the whole stack; use another engine")
    if runtime.spec.vocab_size > host.runtime.spec.vocab_size:
        raise UsageError("drafter nested: the draft model has more tokens than the target; use model")
    return Nested(runtime, sub_models(runtime.spec, layers), threshold, length)


def sub_models(spec: ModelSpec, layers: str) -> list[int]:
    """The block after each sub-model, the last one the whole model's.

    12 layers of two blocks: "" -> 12, 18, 24; "3" -> 6, 24
    """
    n = spec.n_layers
    try:
        found = [int(part) for part in layers.split("-")] if layers else sorted({max(1, n // 2), max(1, 3 * n // 4)})
    except ValueError:
        raise UsageError(f"drafter nested: layers={layers}: must be numbers of layers, such as 6-9") from None
    found = [count for count in found if layers or count < n]
    if any(not 0 < count < n for count in found) or found != sorted(set(found)):
        raise UsageError(f"drafter nested: layers={layers}: must ascend, from 1 to {n - 1}")
    return [spec.span(0, count).stop for count in [*found, n]]


class Nested(BaseDrafter):
    def __init__(self, runtime: Runtime, ends: Sequence[int], threshold: float, length: int) -> None:
        self._reader, self._ends, self._spec = NestedReader(runtime, ends), ends, runtime.spec
        self._thresholds, self._length = [threshold] * (len(ends) - 1), length
        self._left = Counter[int]()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        limit = min(nodes, self._length)
        if limit < 1 or not context.ids or len(context.ids) + limit > self._reader.capacity:
            return Draft()
        return self._draft(context.ids, limit, min_path_prob)

    def _draft(self, ids: Sequence[int], limit: int, least: float) -> Generator[Request, Completed, Draft]:
        """The chain, while its probability is `least` or more."""
        yield from self._reader.read(ids, limit)
        tokens, chances, worth = list[int](), list[float](), 1.0
        while len(tokens) < limit:
            token, p, model = yield from self._reader.climb(self._thresholds)
            worth *= p
            if worth < least:
                break
            self._left[model] += 1
            tokens.append(token)
            chances.append(p)
            if len(tokens) < limit:
                self._reader.add(token)
        return Draft.chain(tokens, chances)

    def report(self) -> dict[str, Any]:
        by = {str(self._spec.layer_of(end - 1) + 1): self._left[i] for i, end in enumerate(self._ends)}
        return {"layers": by, "calls": self._reader.calls, "rows": self._reader.rows}
