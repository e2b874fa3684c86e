"""Drafts with the target's first layers and its readout; verification computes the other layers only.

Kangaroo, double early exit: token after token through the first layers only, until nothing further is likely
enough to pay. Verification continues with the other layers: hidden states and cache of the first are what they would
have been. Where the exit is unsure its next guesses are drafted beside the first, as rows of the same calls.

DEL: the exit and the length of the draft follow from the exits' recent acceptance rates, with exponential decay
(`_slices/depths.py`). All exits learn from every call: it leaves the states of its rows after each of them, which are
compared with what was picked (`_slices/shadows.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal, State
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._options import Length, Threshold, Trim, Width
from edgedec.drafters._slices.depths import SELDOM, Depths
from edgedec.drafters._slices.exit_adapters import HEAD, adapted_layers, open_adapter
from edgedec.drafters._slices.shadows import Shadows
from edgedec.drafters._slices.stack import READING, Slice, SliceCalls, require_slices
from edgedec.drafters._slices.tree import Limits, Tree, Trusts, draft_tree, least_path
from edgedec.drafters._usage import usage_of
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Hidden, Outputs

__all__ = ["HEAD", "Exit", "make"]

# The most exits that are compared; the calls before the first draft.
_EXITS, _FIRST = 8, 4
# The choice is made anew after so many rounds.
_AGAIN = 8

FACTS = DrafterFacts(guides=True, paper="Kangaroo (double early exit); DEL; LayerSkip")


def make(
    host: DrafterContext,
    layer: Annotated[int, Opt("Layers before the exit; 0: where it pays best.", 0)] = 0,
    length: Length = 6,
    threshold: Threshold = 0.0,
    width: Width = 3,
    trim: Trim = 0.25,
    adapter: Annotated[
        Literal["", "none", "exit", "m2r2"], Opt("Adapters beside the first layers; by default the best of the bundle.")
    ] = "",
    stop: Annotated[bool, Opt("Stop where another level is likely to cost more than it brings.")] = True,
) -> Exit:
    require_slices("exit", host)
    n = host.runtime.spec.n_layers
    if not layer < n:
        raise UsageError(f"drafter exit: layer={layer}: must be from 1 to {n - 1}, or 0 for the best")
    width = width if host.runtime.capabilities.trees else 1
    return Exit(host, layer, length, threshold, width, trim, adapter, stop)


class Exit(BaseDrafter):
    # Blocks whose states every call must return.
    always: tuple[int, ...] = ()

    def __init__(
        self,
        host: DrafterContext,
        layer: int,
        gamma: int,
        threshold: float,
        width: int,
        trim: float,
        adapter: str = "",
        stops: bool = True,
    ) -> None:
        self._stops = stops
        self._gamma, self._threshold, self._width = gamma, threshold, width
        self._spec = spec = host.runtime.spec
        adapted = adapted_layers(host, adapter)
        if layer and adapter in ("exit", "m2r2") and layer not in adapted:
            raise UsageError(f"drafter exit: layer={layer}: the {adapter} adapter is of layer {next(iter(adapted))}")
        layers = [layer] if layer else _exits(spec.n_layers, adapted)
        self._edge, self._fixed = EdgeCalls(host.runtime), layer > 0
        self._adapters = [open_adapter(host, i, adapted.get(i)) for i in layers]
        self._depths, self._shadows = Depths(spec, layers, gamma), Shadows(self._edge, self._adapters, width)
        self._usage, self._trusts = usage_of(host, trim), [Trusts() for _ in layers]
        self._rounds, self.outputs = 0, Outputs()
        self._forget()

    def _forget(self) -> None:
        """No last proposal."""
        self._tree: Tree | None = None
        self._taps: dict[int, Hidden] = {}
        self._seconds = 0.0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._forget()
        self.outputs = Outputs(hidden=self.always)
        if nodes < 1 or len(context.ids) - context.cache.length > READING or not self._depths.layers:
            return Draft()
        return self._propose(context, nodes, min_path_prob)

    def _propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        depths = self._depths
        self._rounds += 1
        if not self._fixed:
            yield from self._shadows.judge(depths.records, self._usage.readout)
            if self._rounds > _FIRST and self._rounds % _AGAIN == (_FIRST + 1) % _AGAIN:
                depths.choose(self._readout_share)
        drafts = depths.length > 0 and (self._fixed or self._rounds > _FIRST)
        draft = (yield from self._draft(context, nodes, min_path_prob)) if drafts else Draft()
        watched = tuple(block for block in self._watched() if block not in self._taps)
        self.outputs = Outputs(hidden=self.always or watched)
        return draft

    def _watched(self) -> list[int]:
        """The blocks after which this call's states are judged: of exits near the best, now and then of all; none
        while reading them costs too much."""
        depths = self._depths
        all_ = self._rounds <= _FIRST or self._rounds % SELDOM == 0
        if self._fixed or not (self._rounds <= _FIRST or self._shadows.affordable):
            return []
        if not all_ and not depths.length:
            return []
        return sorted({b for place, near in enumerate(depths.near) if all_ or near for b in self._read_by(place)})

    def _read_by(self, place: int) -> tuple[int, ...]:
        """The blocks whose states an exit reads."""
        adapter = self._adapters[place]
        return (self._depths.ends[place] - 1,) if adapter is None else adapter.blocks

    def _draft(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        depths, place = self._depths, self._depths.chosen
        end, watched = depths.ends[place], self._watched()
        part = Slice(range(end), adapt=self._adapters[place], taps=tuple(block for block in watched if block < end - 1))
        calls = self._calls(context, part)
        draft, self._tree = yield from draft_tree(
            context, calls, part, self._limits(nodes, min_path_prob), self._spec.n_blocks, depths.costs.blocks(0, end)
        )
        self._note(calls, end, draft)
        return draft

    def _calls(self, context: Context, part: Slice) -> SliceCalls:
        return SliceCalls(context, part, self._edge, self._usage.readout)

    def _limits(self, nodes: int, min_path_prob: float) -> Limits:
        depths, trusts = self._depths, self._trusts[self._depths.chosen]
        plain = depths.costs.plain
        row, level = depths.row_seconds() / plain, depths.level_seconds(depths.chosen, self._readout_share) / plain
        # A level must give as many tokens for its time as drafts do on average.
        pace, rate = max(1.0, depths.payoff(depths.chosen, self._readout_share)[0]), trusts.deeper.hope
        leaf = max(min_path_prob, row * (1 + depths.costs.blocks(0, depths.ends[depths.chosen])) * pace)
        return Limits(
            min(self._gamma, nodes),
            nodes,
            max(leaf, least_path(level, pace, rate)) if self._stops else 0.0,
            leaf if self._stops else 0.0,
            self._width,
            self._threshold,
            trusts.first.estimates.tolist(),
            trusts.side.estimates.tolist(),
        )

    @property
    def _readout_share(self) -> float:
        return self._usage.share

    def _note(self, calls: SliceCalls, end: int, draft: Draft) -> None:
        """Record the times of a draft's calls, and their states."""
        costs, head = self._depths.costs, self._depths.costs.head * self._readout_share
        for guessed, rows, seconds in calls.took:
            costs.add(
                costs.blocks(0, end),
                head if guessed and self._adapters[self._depths.chosen] is None else 0.0,
                rows,
                seconds,
            )
            self._shadows.passed(seconds)
        for rows, seconds in calls.adapted:
            costs.add(0.0, head, rows, seconds)
            self._shadows.passed(seconds)
        self._seconds = sum(seconds for *_, seconds in [*calls.took, *calls.adapted])
        if calls.tapped:
            self._taps = {
                block: np.concatenate([tapped[block] for tapped in calls.tapped]) for block in calls.tapped[0]
            }
        if self._watched() and draft.hidden is not None:
            self._taps[end - 1] = draft.hidden

    def observe(self, step: StepResult) -> None:
        seconds = step.seconds * step.rows.count / max(step.total, 1)
        self._shadows.passed(seconds)
        self._usage.add(step.picked)
        if step.root <= READING:
            self._time(step, seconds)
        tree = self._tree or Tree()
        if self._tree is not None:
            self._depths.earn(len(step.picked), self._seconds + seconds)
            self._trusts[self._depths.chosen].observe(tree, step.picked, self._width)
        for place, record in enumerate(self._depths.records):
            self._judge(place, record, tree, step)
        self._forget()

    def _time(self, step: StepResult, seconds: float) -> None:
        """A call of the whole stack, or of what the draft had left of it."""
        costs, n, tree = self._depths.costs, self._spec.n_blocks, self._tree
        drafted = step.tokens()[1:]
        resumed = tree is not None and drafted == tree.tokens[: len(drafted)]
        start = self._depths.ends[self._depths.chosen] if resumed else 0
        costs.add(costs.blocks(start, n), costs.head, step.rows.count, seconds)

    def _judge(self, place: int, record: Any, tree: Tree, step: StepResult) -> None:
        """Evaluate an exit on the accepted rows: by its guess if it made one, else by its state."""
        blocks = self._read_by(place)
        used = place == self._depths.chosen and self._tree is not None
        drafted, shown = _of(self._taps, blocks), _of(step.result.hidden, blocks)
        nodes = [node for node, _ in tree.walk(step.picked)]
        for at, (token, row) in enumerate(zip(step.picked, step.path, strict=True)):
            node = nodes[at] if at < len(nodes) else None
            if used and node is not None and (guesses := tree.guessed.get(node)):
                some = guesses[: self._width]
                record.add(token in [guess for guess, _ in some], min(1.0, sum(sure for _, sure in some)))
            elif drafted and node is not None:
                self._shadows.add(place, [states[step.root + 1 + node] for states in drafted], token)
            elif shown and not self._fixed:
                self._shadows.add(place, [states[step.root + row] for states in shown], token)

    def reset(self) -> None:
        self._forget()
        self._shadows.forget()

    def state(self) -> State:
        return self._depths.state() | {f"usage_{key}": value for key, value in self._usage.state().items()}

    def restore(self, state: State) -> None:
        if not state:
            return
        usage = {key.removeprefix("usage_"): value for key, value in state.items() if key.startswith("usage_")}
        if usage:
            self._usage.restore(usage)
        if "seen" in state or "layers" in state or not usage:
            self._depths.restore(state)
            # The rates are known: the choice is made now.
            self._rounds = _FIRST

    def report(self) -> dict[str, Any]:
        depths, readout = self._depths, self._usage.readout
        rates = {str(i): round(record.rate, 3) for i, record in zip(depths.layers, depths.records, strict=True)}
        return {
            "layer": depths.layers[depths.chosen] if depths.layers else 0,
            "length": depths.length,
            "rates": rates,
            "readout": self._spec.vocab_size if readout is None else len(readout),
            "compared": self._shadows.read,
        }


def _of(states: Mapping[int, Hidden], blocks: Sequence[int]) -> list[Hidden]:
    """The states after each of these blocks; empty if one is missing."""
    return [states[block] for block in blocks] if all(block in states for block in blocks) else []


def _exits(n_layers: int, adapted: Collection[int]) -> list[int]:
    """Some layers to leave after, evenly spread, and those that have an adapter; the last quarter saves too little."""
    last = n_layers * 3 // 4
    some = {round(x) for x in np.linspace(1, last, min(_EXITS, last))} if last else set()
    return sorted(some | {layer for layer in adapted if 0 < layer < n_layers})
