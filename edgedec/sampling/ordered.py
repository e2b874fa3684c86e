"""The distribution of the next token with any cuts, in any order: what `distributions` does not have, on all logits.

    logits ── cut ── cut ── … ── temperature ── … ──> Probs

A cut drops candidates or changes logits; each sees the probabilities of the candidates that those before it left, as
in llama.cpp and Hugging Face's generate. Each rule is that of its original, named at its function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgedec.sampling.distributions import Floats, Ids, Logits, Mask, Probs, distribution, finite, nucleus, typical
from edgedec.sampling.settings import CUTS, Sampling

# Hugging Face's top-h looks at so many of the likeliest tokens.
_TOP_H = 100


@dataclass(frozen=True, eq=False)
class Candidates:
    """Tokens that may follow. ids [n] ascending; logits: float64 [n], finite."""

    ids: Ids
    logits: Floats

    @property
    def p(self) -> Floats:
        """Their probabilities."""
        weights = np.exp(self.logits - self.logits.max())
        found: Floats = weights / weights.sum()
        return found

    def keep(self, mask: Mask) -> Candidates:
        return self if mask.all() else Candidates(self.ids[mask], self.logits[mask])

    @property
    def probs(self) -> Probs:
        p = self.p
        return Probs(self.ids, p) if p.min() > 0 else Probs(self.ids[p > 0], p[p > 0] / p[p > 0].sum())


# A number in [0, 1) that belongs to the place in the text: for cuts that draw.
Chance = Callable[[], float]


def candidates(scores: Logits) -> Candidates:
    """All tokens of scores [vocab] but those that are forbidden."""
    finite(scores[int(np.argmax(scores))])
    ids = np.flatnonzero(scores >= np.finfo(np.float32).min)
    return Candidates(ids, scores[ids].astype(np.float64))


def ordered_distribution(scores: Logits, sampling: Sampling, chance: Chance) -> Probs:
    """The distribution that the settings make of scores [vocab]."""
    if sampling.temperature == 0:
        return distribution(scores, sampling)
    return apply_cuts(candidates(scores), sampling, chance).probs


def apply_cuts(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    for name in sampling.samplers or CUTS:
        found = _CUTS[name](found, sampling, chance)
    return found


def _top_n_sigma(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """Top-nσ (Tang et al. 2024, arXiv:2411.07641): logits within n standard deviations of the largest."""
    if sampling.top_n_sigma <= 0:
        return found
    return found.keep(found.logits >= found.logits.max() - sampling.top_n_sigma * found.logits.std())


def temperature(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """Divide by the temperature; with a range (llama.cpp's dynamic temperature) by one between temp - range and
    temp + range that grows with the entropy, relative to that of equal chances."""
    t = sampling.temperature
    if sampling.dynatemp_range > 0 and len(found.ids) > 1:
        low, high = max(0.0, t - sampling.dynatemp_range), t + sampling.dynatemp_range
        share = entropy(found.p) / np.log(len(found.ids))
        t = low + (high - low) * share**sampling.dynatemp_exponent
    if t <= 0:
        return found.keep(found.logits == found.logits.max())
    return Candidates(found.ids, found.logits / t)


def entropy(p: Floats) -> float:
    """In nats."""
    some = p[p > 0]
    return float(-(some * np.log(some)).sum())


def _top_h(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """Top-h as in Hugging Face: of the 100 likeliest tokens, renormalised, those whose terms of the entropy add up to
    no more than a share of it; the likeliest always."""
    if sampling.top_h <= 0:
        return found
    order = np.argsort(-found.logits, kind="stable")[:_TOP_H]
    p = Candidates(order, found.logits[order]).p
    terms = np.where(p > 0, -p * np.log(np.where(p > 0, p, 1.0)), 0.0)
    stay = np.cumsum(terms) <= terms.sum() * sampling.top_h
    stay[0] = True
    keep = np.zeros(len(found.ids), bool)
    keep[order[stay]] = True
    return found.keep(keep)


def _top_k(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    n, k = len(found.ids), sampling.top_k
    return found.keep(found.logits >= np.partition(found.logits, n - k)[n - k]) if 0 < k < n else found


def _top_p(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    return found.keep(nucleus(found.p, found.logits, sampling.top_p)) if sampling.top_p < 1 else found


def _min_p(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    p = found.p
    return found.keep(p >= sampling.min_p * p.max()) if sampling.min_p > 0 else found


def _typical(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    if sampling.typical_p >= 1:
        return found
    found = found.keep(found.p > 0)
    return found.keep(typical(found.p, sampling.typical_p))


def _epsilon(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """Epsilon sampling (Hewitt et al. 2022, arXiv:2210.15191)."""
    return _above(found, sampling.epsilon_cutoff)


def _eta(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """Eta sampling, of the same paper: the bound min(eta, sqrt(eta) · exp(-entropy))."""
    eta = sampling.eta_cutoff
    return _above(found, min(eta, eta**0.5 * np.exp(-entropy(found.p)))) if eta > 0 else found


def _above(found: Candidates, bound: float) -> Candidates:
    """Without tokens below a probability; the likeliest stay."""
    p = found.p
    return found.keep((p >= bound) | (p == p.max())) if bound > 0 else found


def _xtc(found: Candidates, sampling: Sampling, chance: Chance) -> Candidates:
    """XTC as in llama.cpp: with a probability, of the tokens above the threshold only the least likely stays."""
    if sampling.xtc_probability <= 0 or sampling.xtc_threshold > 0.5 or len(found.ids) < 2:
        return found
    if chance() >= sampling.xtc_probability:
        return found
    p = found.p
    above = np.flatnonzero(p >= sampling.xtc_threshold)
    if len(above) < 2:
        return found
    keep = np.ones(len(p), bool)
    keep[above] = False
    keep[above[np.lexsort((-above, p[above]))[0]]] = True
    return found.keep(keep)


_CUTS: Mapping[str, Callable[[Candidates, Sampling, Chance], Candidates]] = {
    "top_n_sigma": _top_n_sigma,
    "temperature": temperature,
    "top_h": _top_h,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typical_p": _typical,
    "epsilon_cutoff": _epsilon,
    "eta_cutoff": _eta,
    "xtc": _xtc,
}
