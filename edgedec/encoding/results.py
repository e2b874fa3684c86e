"""What becomes of a text's rows after the last block: final norm, pooling, dense layers (`spec.Output`).

A text is computed by itself: products of matrices and rows of several texts would round otherwise than those of one.
"""

from __future__ import annotations

import numpy as np

from edgedec.bundle import Bundle
from edgedec.encoding.numeric import Array, normed, squashed, unit
from edgedec.spec import Output


class Results:
    """The layers after the blocks of a bundle, read once."""

    def __init__(self, bundle: Bundle, output: Output) -> None:
        spec = self._spec = bundle.spec
        self._output = output
        names = [*output.tensors(spec.hidden_size, spec.vocab_size)]
        names += [name for name in ("final_norm", "final_norm_bias") if name in spec.tensors()]
        names += ["embed"] if output.of_terms else []
        self._tensors = {name: bundle.rows(name) for name in names}

    def of(self, hidden: Array) -> Array:
        """hidden [n, hidden_size], of a text -> a vector, a vector a row, weights of the vocabulary, or logits."""
        output, x = self._output, self._normed(hidden)
        if output.kind == "duplex":
            cls = x[0] @ self._tensors["cls"].T + self._tensors["cls_bias"]
            terms = unit(_largest(self._terms(x[1:]), output.top))
            return np.concatenate(
                [unit(cls) * np.float32((1 - output.share) ** 0.5), terms * np.float32(output.share**0.5)]
            )
        if output.kind == "terms":
            return self._terms(x)
        x = self._dense(_pooled(x, output.pool))
        return unit(x) if output.normalize else x

    def _terms(self, x: Array) -> Array:
        """The weight of each token of the vocabulary, of normed rows."""
        logits = self._dense(x) @ self._tensors["embed"].T + self._tensors["terms_bias"]
        found: Array = np.log1p(np.maximum(logits, np.float32(0))).max(axis=0, initial=0)
        return found

    def _normed(self, x: Array) -> Array:
        of = self._tensors.get
        return normed(x, self._spec.final_norm, of("final_norm"), of("final_norm_bias"), self._spec.norm_eps)

    def _dense(self, x: Array) -> Array:
        tensors = self._tensors
        for i, layer in enumerate(self._output.dense):
            x = x @ tensors[f"dense.{i}"].T
            if layer.bias:
                x = x + tensors[f"dense.{i}_bias"]
            x = squashed(x, layer.activation)
            weight, bias = tensors.get(f"dense.{i}_norm"), tensors.get(f"dense.{i}_norm_bias")
            x = normed(x, layer.norm, weight, bias, self._spec.norm_eps)
        return x


def _largest(weights: Array, count: int) -> Array:
    """The largest weights, of equal ones the first; zeros for the others."""
    order = np.argsort(-weights, kind="stable")[:count]
    found = np.zeros_like(weights)
    found[order] = weights[order]
    return found


def _pooled(x: Array, how: str) -> Array:
    match how:
        case "cls":
            return x[0]
        case "last":
            return x[-1]
        case "mean":
            mean: Array = x.mean(axis=0)
            return mean
        case "max":
            most: Array = x.max(axis=0)
            return most
        case _:
            return x
