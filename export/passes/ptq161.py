"""One bit a weight but for the largest inputs, with factors of rows and columns, stored as floats: to measure.

Zhao et al., "PTQ1.61: Push the Real Limit of Extremely Low-Bit Post-Training Quantization Methods for Large Language
Models"; from the authors' code (zjq0455/PTQ1.61, `quantize/blockptq.py`, `models/int_llama_layer.py`): the fifth of a
matrix's inputs with the largest |x| on calibration text keeps 4 bits, in steps from the least to the largest weight of
the whole row; the others are (sign(w - m) s + m) r1 r2, of a row m the mean of these weights, which stays, s, which
begins as their mean |w|, and r1, of a column r2, which begin at 1. s, r1 and r2 are learned a layer at a time by AdamW,
on what the rounded layers before make (q): mean squared errors and - log |cos| beside the float layer on floats, and
beside the float layer on q. Each of q, k, v, gate and up has columns of its own, as there.

No format of bundles has a sign plane beside 4 bits and factors of columns, which belong to the activations of every
kernel; so, like `ggml`, it takes `--weights f32`, and `bench formats` counts what such a format would store: 1.61 bits
of matrices 4096 wide, more of narrow ones, whose rows have a number of values of their own for few weights. Their
preparation, a low rank trained on the rounded model and merged into the floats, is a training of its own and left out.
Needs torch, holds the model twice, and takes Llama's blocks only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

import numpy as np

from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._salient import kept_inputs, row_parts
from edgedec.export.passes._statistics import Statistics
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import OUTER, ModelSpec

FACTS = PassFacts("rounding")
# Bits of what is stored beside the codes: a step and a zero point of a row's 4 bits; s r1 and m r1 of a row; r2; a
# column's place.
_ROW, _COLUMN, _PLACE = 16 + 4 + 2 * 16, 16, 1


def make(
    host: PassContext,
    epochs: Annotated[int, Opt("Times that a layer is learned on the calibration text.", 0)] = 20,
    scale_rate: Annotated[float, Opt("Learning rate of the scales.", above=0)] = 5e-4,
    factor_rate: Annotated[float, Opt("Learning rate of the rows' and columns' factors.", above=0)] = 1e-3,
) -> Ptq161:
    if host.parts["body"] != "f32":
        raise UsageError("--passes ptq161: makes floats to measure; give --weights f32")
    return Ptq161(host, epochs, scale_rate, factor_rate)


@dataclass(frozen=True)
class Ptq161:
    """The pass with its options."""

    host: PassContext
    epochs: int
    scale_rate: float
    factor_rate: float

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        from edgedec.export.passes._binary import Layers  # torch
        from edgedec.export.recovery import check_plain

        spec = model.spec
        check_plain(spec, "--passes ptq161")
        layers = Layers(model, statistics, self, largest_inputs(model, statistics))
        found = dict[str, Array]()
        for layer in range(spec.n_layers):
            found |= layers.learn(spec.span(layer, layer + 1))
            self.host.progress("ptq161", layer + 1, spec.n_layers)

        def read(name: str, start: int, stop: int) -> Array:
            return found[name][start:stop] if name in found else model.read(name, start, stop)

        return replace(model, read=read)


def largest_inputs(model: PassModel, statistics: Statistics) -> dict[str, Array]:
    """The largest |x| of each input [k] of each matrix of the float model."""
    run, found = statistics.run(model.spec, model.read), dict[str, Array]()
    for b in range(model.spec.n_blocks):
        for i in range(len(statistics.texts)):
            for name, x in run.inputs(b, i, None).items():
                most = np.abs(x).max(axis=0)
                found[name] = np.maximum(found.get(name, most), most)
        run.advance(b)
    return found


def stored_bits(spec: ModelSpec, ends: float) -> float:
    """Bits a weight of a model in a format that stores this, as `bits_per_weight` counts those of a bundle. ends: bits
    a weight of head and embedding."""
    size, count = 0.0, 0
    for name, shape in spec.tensors().items():
        count += prod(shape)
        if name not in spec.matrices or name in OUTER:
            size += prod(shape) * (ends if name in OUTER else 32)
            continue
        (n, k), parts = shape, len(row_parts(spec, name))
        kept = kept_inputs(k)
        size += n * (4 * kept + k - kept + _ROW) + parts * _COLUMN * (k - kept) + k * _PLACE
    return round(size / count, 3)
