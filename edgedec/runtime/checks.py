"""Validation of calls: contradictions, and calls beyond a runtime's declared capabilities.

Every runtime calls `check_calls` first, so that a wrong call is one line of UsageError and never a wrong result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.errors import UsageError
from edgedec.runtime.call import Call, Outputs
from edgedec.runtime.capabilities import Capabilities
from edgedec.runtime.readout import Readout
from edgedec.spec import ModelSpec
from edgedec.spec.branches import cut_sums, early, fed, feeds

_PLAIN = Outputs()


def check_calls(calls: Sequence[Call], spec: ModelSpec, can: Capabilities) -> None:
    """UsageError unless a runtime of these capabilities can run the calls in one forward."""
    if len(calls) > 1 and len({id(call.cache) for call in calls}) < len(calls):
        raise UsageError("two calls for one cache at once: join their rows to a tree")
    rows = sum(call.rows.count for call in calls)
    if rows > can.largest_call:
        raise UsageError(f"{rows} rows in one forward: this runtime takes {can.largest_call} (largest_call)")
    for call in calls:
        _check_call(call, spec, can)


def _check_call(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    if call.cache.spec is not spec and call.cache.spec != spec:
        raise UsageError("the cache is of another model: use one of this runtime's new_cache()")
    _check_rows(call, spec, can)
    if spec.output is not None:
        check_text(call, spec, can.enters)
    if call.blocks is not None or call.hidden is not None:
        _check_slice(call, spec, can)
    if call.outputs != _PLAIN:
        _check_outputs(call, spec, can)
    if call.adapter is not None and not can.adapters:
        _refuse("adapters")
    if call.views:
        check_views(call, spec, can)


def check_text(call: Call, spec: ModelSpec, enters: bool = False) -> None:
    """UsageError unless an encoder is given a whole text by its embeddings, and no logits are wanted of it. enters: as
    in `Capabilities`: by its tokens as well."""
    rows = call.rows
    if call.outputs.head:
        raise UsageError(f"logits of {spec.architecture}: the model encodes texts, it has no head")
    if call.outputs.attention and not spec.causal:
        raise UsageError("attention sums of an encoder: it keeps no slots that could be dropped")
    named = rows.embeddings is None and call.hidden is None
    if spec.entry is not None and named and not (enters and spec.entry.by_token):
        raise UsageError("tokens for an encoder: its rows are given by embeddings (edgedec.encoding)")
    if not spec.causal and not (rows.is_text and call.cache.length == 0 and rows.numbers is None):
        raise UsageError("rows for an encoder: a call is one whole text, in one group, and an empty cache")
    if not spec.causal and not rows.from_zero:
        raise UsageError("positions for an encoder: must be 0, 1, 2, …")


def _check_rows(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    rows = call.rows
    if not 0 <= rows.first < len(rows):
        raise UsageError(f"rows from {rows.first} on of {len(rows)}: a call computes at least one row")
    if (call.hidden is None and rows.embeddings is None) or spec.lookups:
        tokens = rows.tokens[rows.first :]
        low, high = (tokens[0], tokens[0]) if len(tokens) == 1 else (tokens.min(), tokens.max())
        if low < 0 or high >= spec.vocab_size:
            raise UsageError(f"token {low if low < 0 else high} is outside the vocabulary of {spec.vocab_size}")
    if rows.embeddings is not None:
        if not can.embeddings:
            _refuse("embeddings")
        check_named(rows, spec)
        _check_shape("embeddings", rows.embeddings.shape, (rows.count, spec.hidden_size))
    if rows.groups is not None and not can.groups:
        _refuse("groups")
    if rows.groups is not None and spec.recurrent and (rows.groups >= 0).any():
        raise UsageError("rows in groups: a recurrent block has no state of rows that see each other")
    if rows.types is not None and not can.enters:
        _refuse("types of tokens")
    if rows.numbers is not None:
        if not can.selections:
            _refuse("selections")
        if len(rows.numbers) != len(rows) or rows.numbers[0] < 0 or (np.diff(rows.numbers) <= 0).any():
            raise UsageError("row numbers: must be ascending, one for each row")
    if not can.trees and not rows.is_chain:
        _refuse("trees")


def check_named(rows: Rows, spec: ModelSpec) -> None:
    """Refuse rows given by embeddings where tokens name a part of what they read."""
    if rows.embeddings is not None and spec.lookups:
        raise UsageError("rows given by embeddings: the model has embeddings of layers, which tokens name")


def _check_slice(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    blocks = range(spec.n_blocks) if call.blocks is None else call.blocks
    if not can.slices and (call.hidden is not None or len(blocks) != spec.n_blocks):
        _refuse("slices")
    if not isinstance(blocks, range) and any(a >= b for a, b in itertools.pairwise(blocks)):
        raise UsageError(f"blocks {list(blocks)}: must be ascending")
    if len(blocks) and not (blocks[0] >= 0 and blocks[-1] < spec.n_blocks):
        raise UsageError(f"blocks {blocks[0]} to {blocks[-1]}: the model has 0 to {spec.n_blocks - 1}")
    if cut := cut_sums(spec, blocks):
        fed_too = feeds(spec.blocks[cut[0]]) or fed(spec, cut[0])
        why = "one reads what the other makes" if fed_too else "a norm is of the sum of both"
        raise UsageError(f"block {cut[0]} without the one beside it: {why}")
    entered = call.hidden is not None or call.rows.embeddings is not None
    if entered and len(blocks) and early(spec.blocks[blocks[0]]):
        raise UsageError(
            f"block {blocks[0]} first: its router reads the state before block {blocks[0] - 1}; begin with that one"
        )
    if call.hidden is not None:
        width = entering_width(spec, blocks, call.hidden.shape[-1])
        _check_shape("hidden", call.hidden.shape, (call.rows.count, width))


def check_one_stream(spec: ModelSpec, blocks: Iterable[int], what: str) -> None:
    """UsageError for a reader of the states after these blocks that takes rows of `hidden_size` values, where they have
    streams beside them."""
    for block in blocks:
        if spec.width(block) != spec.hidden_size:
            raise UsageError(
                f"{what}: the state after block {block} of {spec.architecture} has streams beside it; "
                f"only states after block {max(spec.altups)} are read"
            )


def check_bare_head(spec: ModelSpec, what: str) -> None:
    """UsageError for a network that is trained to give states to the head's matrix, of a model that has a layer
    before it."""
    if spec.head_layer is not None:
        raise UsageError(f"{what}: {spec.architecture} has a layer before its head, which it does not read")


def entering_width(spec: ModelSpec, blocks: Sequence[int], found: int) -> int:
    """Values of a row of the `hidden` of a call. The head alone takes rows with streams too, of which it reads the
    state; of these it is `found`."""
    if len(blocks):
        return spec.width(blocks[0] - 1)
    return found if found in {spec.width(b) for b in spec.altups} else spec.hidden_size


def _check_outputs(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    wanted, n = call.outputs, call.rows.count
    if wanted.attention and not can.attention_sums:
        _refuse("attention_sums")
    if wanted.queries:
        _check_queries(call, spec, can)
    if wanted.logsum and not can.logsum:
        _refuse("logsum")
    if wanted.entropy and not can.entropy:
        _refuse("entropy")
    if wanted.hidden and not can.hidden:
        _refuse("hidden")
    if wanted.logsum and wanted.temperature != 1 and not can.temperatures:
        _refuse("temperatures")
    if not wanted.temperature > 0:
        raise UsageError(f"temperature {wanted.temperature} of a log-sum: must be above 0")
    if wanted.head and not 0 <= wanted.logits_from < n:
        raise UsageError(f"logits_from {wanted.logits_from}: the call computes {n} rows")
    if wanted.draw is not None and not can.draws:
        _refuse("draws")
    if wanted.readout is not None:
        check_readout(wanted, spec)
    for block in wanted.hidden:
        run = range(spec.n_blocks) if call.blocks is None else call.blocks
        if block not in run and not (block == -1 and call.hidden is None):
            raise UsageError(f"hidden states after block {block}: the call does not run it")
        if block >= 0 and spec.blocks[block].branch:
            raise UsageError(f"hidden states after block {block}: block {block + 1} reads what it read")
        if block >= 0 and feeds(spec.blocks[block]):
            raise UsageError(f"hidden states after block {block}: what it makes is for block {block + 1} alone")


def _check_queries(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    if not can.queries:
        _refuse("queries")
    run = range(spec.n_blocks) if call.blocks is None else call.blocks
    for block in call.outputs.queries:
        if block not in spec.attention or block not in run:
            raise UsageError(f"queries of block {block}: the call runs no such attention block")


def check_readout(wanted: Outputs, spec: ModelSpec) -> Readout:
    """The requested readout; UsageError unless it is of this vocabulary and no other output of the head is
    requested."""
    readout = wanted.readout
    if readout is None or wanted.logits or wanted.logsum or wanted.entropy or wanted.draw or not wanted.top:
        raise UsageError("a readout gives the best tokens only: no logits and no logsum with it, and top from 1 on")
    if not len(readout) or readout.ids[0] < 0 or readout.ids[-1] >= spec.vocab_size:
        raise UsageError(f"a readout of {len(readout)} tokens: needs some, all in the vocabulary of {spec.vocab_size}")
    return readout


def check_views(call: Call, spec: ModelSpec, can: Capabilities) -> None:
    """UsageError unless the views are of attention blocks that the call runs, and of what these hold."""
    if not can.views:
        _refuse("views")
    run = range(spec.n_blocks) if call.blocks is None else call.blocks
    for block, view in (call.views or {}).items():
        if block in spec.attention and spec.attention[block].slopes:
            raise UsageError(f"view of block {block}: its scores have a part by distance (ALiBi)")
        if block not in spec.attention or block not in run:
            raise UsageError(f"view of block {block}: the call runs no such attention block")
        view.check(block, spec.attention[block].n_kv_heads, call.cache.slots(block))


def _check_shape(what: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise UsageError(f"{what} {list(found)}: expected {list(expected)}, one line for each computed row")


def _refuse(what: str) -> None:
    raise UsageError(f"this runtime declares no {what}: the call needs them")
