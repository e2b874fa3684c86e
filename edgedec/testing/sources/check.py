"""Sources beside the CPU engine: states after each block, logits, greedy tokens; and one machine beside another, launch
by launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.runtime import Call, CallResult, Outputs, Rows, RuntimeOptions, forward_one, open_runtime
from edgedec.runtimes.tvm.plans import LaunchPlan, PlannedLaunch
from edgedec.testing.sources.driver import Floats, SourceModel, outputs_of, prompt_rows, tree_rows
from edgedec.testing.sources.machine import SourceMachine

# Arrays of sequences.
_KEPT = ("pool.", "state.")
_TREE, _PIECE = (-1, 0, 0, 2, 2, 1), 101


@dataclass
class Differences:
    """Differences, each over the spread of what they are differences from; tokens that were decoded, and how many of
    them were the reference's."""

    states: list[float] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)
    decoded: int = 0
    equal: int = 0


def largest(differences: Sequence[float]) -> float:
    """Of some differences."""
    return max(differences, default=0.0)


def check(
    bundle: Bundle, plan: LaunchPlan, machine: SourceMachine, kv: str, tokens: int, prompt_tokens: int = 40
) -> Differences:
    """A prompt, a draft tree after it, and tokens decoded greedily, beside the CPU engine."""
    spec, found = bundle.spec, Differences()
    prompt = [int(token) for token in np.arange(1, prompt_tokens + 1) * 7 % spec.vocab_size]
    model = SourceModel(bundle, plan, machine, kv, len(prompt) + max(tokens, len(_TREE)))
    runtime = open_runtime("native", bundle, RuntimeOptions(1, kv))
    cache = runtime.new_cache(spec.context_length)
    outputs = Outputs(logits=True, hidden=tuple(range(spec.n_blocks)))

    def compare(rows: Rows, numbers: NDArray[np.int32], path: NDArray[np.int32] | None) -> Floats:
        wanted = forward_one(runtime, Call(rows, cache, outputs=outputs))
        states, n = dict[int, Floats](), len(numbers)
        ends = last_launches(plan.launches[kv], spec.n_blocks)

        def watch(i: int, launch: PlannedLaunch) -> None:
            if i in ends:
                states[ends[i]] = model.hidden(n)

        logits = model.forward(numbers, path, range(n), watch)
        _note(found, wanted, states, logits)
        return logits

    logits = np.zeros((1, spec.vocab_size), np.float32)
    for at in range(0, len(prompt), _PIECE):
        piece = prompt[at : at + _PIECE]
        logits = compare(Rows.chain(piece, at), prompt_rows(piece, at), None)
        cache.commit(range(len(piece)))
        model.commit(range(len(piece)))
    draft = prompt[: len(_TREE)]
    numbers, path = tree_rows(draft, _TREE, len(prompt))
    compare(Rows.tree(draft, _TREE, len(prompt)), numbers, path)
    cache.rollback()
    for at in range(len(prompt), len(prompt) + tokens):
        token = int(logits[-1].argmax())
        logits = compare(Rows.chain([token], at), prompt_rows([token], at), None)
        cache.commit([0])
        model.commit([0])
        found.decoded += 1
    return found


def side_by_side(one: SourceModel, other: SourceModel, rows: NDArray[np.int32]) -> dict[str, float]:
    """Rows by `one`; and each launch by `other` too, on the arrays that `one` had before it. By kernel: the largest
    difference of what is written, over its spread."""
    found: dict[str, float] = {}
    names = {name for launch in one.plan.launches[one.kv] for name in launch.arrays}
    before = {name: one.read(name) for name in names if name in one.plan.arrays or name.startswith(_KEPT)}

    def watch(launch: PlannedLaunch) -> None:
        for name in launch.arrays:
            if name in before:
                other.write(name, before[name])
        kernel, groups = other.chosen(launch, len(rows))
        other.machine.launch(kernel, groups, launch.arrays)
        for out in outputs_of(launch):
            before[out] = one.read(out)
            found[kernel] = max(found.get(kernel, 0.0), _apart(other.read(out), before[out], out, one.kv))

    before |= {"rows": one.filled("rows", rows), "which": one.filled("which", np.arange(len(rows), dtype=np.int32))}
    one.forward(rows, None, range(len(rows)), lambda i, launch: watch(launch))
    return found


def _apart(a: NDArray[Any], b: NDArray[Any], name: str, kv: str) -> float:
    """Of two arrays: of quantized keys and values the share of bytes that differ."""
    if name.startswith("pool.") and kv in ("int8", "int4"):
        return float((a.view(np.uint8) != b.view(np.uint8)).mean())
    seen: Any = {"q": np.int8}.get(name, np.float16 if name.startswith("pool.") and kv == "f16" else None)
    seen = np.float32 if name.startswith("pool.") and kv == "f32" else seen
    a, b = (a if seen is None else a.view(seen), b if seen is None else b.view(seen))
    return _difference(a.astype(np.float32), b.astype(np.float32))


def last_launches(launches: Sequence[PlannedLaunch], blocks: int) -> dict[int, int]:
    """The block whose state is whole after a launch: the last that writes "hidden" before another block's begin."""
    starts = [_first_of(launches, b) for b in range(blocks)] + [len(launches)]
    writes = [i for i, launch in enumerate(launches) if "hidden" in outputs_of(launch)]
    return {max(i for i in writes if i < starts[b + 1]): b for b in range(blocks)}


def _first_of(launches: Sequence[PlannedLaunch], b: int) -> int:
    """The first launch that reads a tensor of block b."""
    return next(i for i, each in enumerate(launches) if any(name.startswith(f"blocks.{b}.") for name in each.arrays))


def _note(found: Differences, wanted: CallResult, states: dict[int, Floats], logits: Floats) -> None:
    assert wanted.logits is not None
    for b, state in states.items():
        found.states.append(_difference(state, wanted.hidden[b]))
    found.logits.append(_difference(logits, wanted.logits))
    if len(logits) == 1:
        found.equal += int(logits.argmax() == wanted.logits.argmax())


def _difference(a: Floats, b: Floats) -> float:
    largest = float(np.abs(a - b).max() / max(float(np.std(b)), 1e-9))
    return largest if np.isfinite(largest) else np.inf
