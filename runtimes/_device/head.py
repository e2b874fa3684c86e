"""The head: launches, and the results that each call requested."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgedec.kernels.device import structs
from edgedec.kernels.device.structs import Product
from edgedec.runtime import Call, CallResult
from edgedec.runtimes._device.stack import Stack, StepShape


def strips(vocab: int) -> int:
    """Strips of the vocabulary, each with sums of its own."""
    return -(-vocab // structs.STRIP)


def head(stack: Stack, step: int, shape: StepShape) -> None:
    """Launch the logits of the head's rows, the sums of each strip, and the best tokens."""
    spec, model, rows = stack.spec, stack.model, shape.head
    w, vocab = model.weights("embed" if spec.tied else "head"), spec.vocab_size
    logits = stack.floats("logits", vocab, rows)
    norm = model.norm(spec.final_norm, "final_norm")
    p = Product(w, logits, vocab, head=True, softcap=spec.final_softcap, bias=model.vector("head_bias"))
    stack.product(step, rows, p, norm, stack.hidden, name="head")
    if not (shape.top or shape.sums):
        return
    n, top = strips(vocab), shape.top
    sums, keys = stack.floats("strip sums", 2 * n, rows), stack.memory.need("strip keys", 8 * n * max(top, 1) * rows)
    ids, scores = stack.floats("best ids", max(top, 1), rows), stack.floats("best scores", max(top, 1), rows)
    arguments = structs.best(step, logits, sums, keys, ids, scores, vocab, top)
    stack.device.launch("strips", (n, rows, 1), 256, 8 * structs.STRIP, arguments)
    if top:
        stack.launch("best_tokens", (rows, 1), min(256, -(-n // 32) * 32), 256 + 4 * n, arguments)


def results(stack: Stack, shape: StepShape, calls: Sequence[Call]) -> list[CallResult]:
    """The requested results of the head and of the states after blocks, by call."""
    found, row, head_row = [], 0, 0
    for call in calls:
        wanted, count = call.outputs, call.rows.count
        states = {b: stack.read(f"kept {b}", row, count, stack.spec.hidden_size) for b in wanted.hidden}
        result = CallResult(hidden=states)
        if wanted.head:
            n = count - wanted.logits_from
            _fill(stack, shape, call, head_row, n, result)
            head_row += n
        found.append(result)
        row += count
    return found


def _fill(stack: Stack, shape: StepShape, call: Call, row: int, n: int, result: CallResult) -> None:
    wanted, vocab = call.outputs, stack.spec.vocab_size
    if wanted.logits:
        result.logits = stack.read("logits", row, n, vocab)
    if wanted.top:
        top = min(wanted.top, vocab)
        scores = stack.read("best scores", row, n, shape.top)
        result.scores = np.ascontiguousarray(scores[:, :top])
        result.ids = np.ascontiguousarray(stack.read("best ids", row, n, shape.top).view(np.int32)[:, :top])
    if wanted.logsum:
        sums = stack.read("strip sums", row, n, 2 * strips(vocab)).reshape(n, -1, 2)
        result.logsum = np.array([_log_sum(line, wanted.temperature) for line in sums.tolist()])


def _log_sum(line: list[list[float]], temperature: float) -> float:
    """The log-sum of strips merged in order, as in the native engine (kernels/cpu/head.cpp)."""
    most, total = max(strip[0] for strip in line), 0.0
    for top, part in line:
        total += part * math.exp((top - most) / temperature)
    return most / temperature + math.log(total)
