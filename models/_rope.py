"""Rotary frequencies, computed in float32 step by step as Hugging Face transformers computes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models._common import ConfigReader
from edgedec.spec import Rope

Frequencies = tuple[npt.NDArray[np.float32], float]
LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_table(
    r: ConfigReader,
    theta: float = 10000.0,
    layer_type: str | None = None,
    legacy: bool = True,
    partial: bool = False,
    share: float = 1.0,
) -> ConfigReader:
    """The rope facts of a config, whichever way it is written, as one table with its defaults filled in.

    New: `rope_parameters`, one table, or one for each layer type. Old: `rope_theta` and `rope_scaling`;
    `legacy`: do the old keys apply to this layer type? `partial`: a part of a head may be rotated, `share` of it where
    nothing is said.
    """
    scaling, parameters = r.table("rope_scaling"), r.table("rope_parameters")
    nested = bool(layer_type and set(parameters) & set(LAYER_TYPES) and not (legacy and scaling))
    if nested and layer_type:
        parameters = ConfigReader(parameters, f"{r.where} rope_parameters", set(LAYER_TYPES)).table(layer_type)
    table: dict[str, Any] = dict((legacy and scaling) or parameters)
    if "type" in table:
        table.setdefault("rope_type", table.pop("type"))
    table.setdefault("rope_type", "default")
    table.setdefault("rope_theta", r.number("rope_theta", theta) if legacy else theta)
    if r.maybe_number("partial_rotary_factor") is not None:
        table.setdefault("partial_rotary_factor", r.values["partial_rotary_factor"])
    # A length outside the table has priority over one inside it, but for tables of layer types.
    original = None if nested else r.maybe_whole("original_max_position_embeddings")
    if original is not None:
        table["original_max_position_embeddings"] = original
    table.setdefault("original_max_position_embeddings", r.whole("max_position_embeddings"))
    if partial:
        table.setdefault("partial_rotary_factor", share)
    answer = ConfigReader(table, f"{r.where} rope parameters")
    if not partial and answer.number("partial_rotary_factor", 1.0) != 1.0:
        raise answer.fail("partial_rotary_factor", "is not supported by this architecture")
    return answer


def context_length(r: ConfigReader, p: ConfigReader, asked: int | None) -> int:
    """The requested length, if the model supports it; by default the longest. A dynamic rope is stretched to `factor`
    times the length of training on request."""
    longest = r.whole("max_position_embeddings")
    most = int(longest * max(p.number("factor"), 1.0)) if p.text("rope_type") == "dynamic" else longest
    if asked is not None and not 1 <= asked <= most:
        reach = f" (its dynamic rope reaches {most})" if most > longest else ""
        raise r.fail("max_position_embeddings", f"is {longest}{reach}; a context of {asked} is out of range")
    return asked or longest


def rope(r: ConfigReader, p: ConfigReader, head_dim: int, context: int) -> Rope:
    """The frequencies and the scale of the rope that table `p` of config `r` describes."""
    kind = p.text("rope_type")
    if kind not in (*KINDS, "longrope"):
        raise p.fail("rope_type", f"{kind!r} is not one of {', '.join(KINDS)}, longrope")
    share = p.number("partial_rotary_factor", 1.0)
    dim = head_dim if kind == "proportional" else int(head_dim * share)
    if dim < 2 or dim > head_dim or (dim == head_dim and dim % 2):
        raise p.fail("partial_rotary_factor", f"rotates {dim} of {head_dim} dims of a head, which cannot be")
    _original(p)
    longest = r.whole("max_position_embeddings")
    if kind == "longrope":
        found = _longrope(p, dim, longest, context)
    else:
        inv_freq, scale = KINDS[kind](p, dim, longest, context)
        found = Rope(_floats(inv_freq), float(scale))
    p.done()
    return found


def _floats(values: npt.NDArray[np.float32]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _original(p: ConfigReader) -> int:
    return p.whole("original_max_position_embeddings")


def _periods(p: ConfigReader, dim: int) -> npt.NDArray[np.float32]:
    """theta ** (2j / dim) for every pair j: float32 [ceil(dim / 2)]"""
    return np.float32(p.number("rope_theta")) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))


def _default(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    return np.float32(1) / _periods(p, dim), 1.0


def _linear(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    return np.float32(1) / _periods(p, dim) / np.float32(p.number("factor")), 1.0


def _proportional(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    """All pairs of a head, at the speeds of a whole rope, of which those beyond a share stand still."""
    turned = int(p.number("partial_rotary_factor", 1.0) * dim // 2)
    inv_freq = np.float32(1) / _periods(p, dim) / np.float32(p.number("factor", 1.0))
    return np.where(np.arange(dim // 2) < turned, inv_freq, np.float32(0)), 1.0


def _dynamic(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    """NTK-aware scaling: a context longer than max_position_embeddings stretches the base, so that the slowest pair
    turns as far as it did in training.

    transformers stretches it anew as a text grows, and keys that were cached before keep the old base; a bundle has the
    base of its whole context, as transformers has for a prompt of that length.
    """
    factor = p.number("factor")
    if context <= longest:
        return _default(p, dim, longest, context)
    if dim < 4:
        raise p.fail("factor", f"stretches no rope of {dim} dims; take a context of at most {longest}")
    stretch = factor * context / longest - (factor - 1)
    theta = np.float32(p.number("rope_theta") * stretch ** (dim / (dim - 2)))
    return np.float32(1) / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)), 1.0


def _llama3(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    """Long waves slow down by `factor`, short ones stay, those between are blended."""
    factor, original = np.float32(p.number("factor")), _original(p)
    low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
    if high <= low:
        raise p.fail("high_freq_factor", f"must be greater than low_freq_factor {low}, found {high}")
    inv_freq = np.float32(1) / _periods(p, dim)
    wave = np.float32(2 * math.pi) / inv_freq
    slowed = np.where(wave > original / low, inv_freq / factor, inv_freq)
    smooth = (np.float32(original) / wave - np.float32(low)) / np.float32(high - low)
    blended = (1 - smooth) * slowed / factor + smooth * slowed
    between = (wave >= original / high) & (wave <= original / low)
    return np.where(between, blended, slowed), 1.0


def _yarn(p: ConfigReader, dim: int, longest: int, context: int) -> Frequencies:
    """YaRN (arXiv 2309.00071): pairs that turn often keep their speed, slow ones are interpolated."""
    original, theta = _original(p), p.number("rope_theta")
    factor = p.maybe_number("factor") or longest / original

    def pair(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original length."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(p.maybe_number("beta_fast") or 32), pair(p.maybe_number("beta_slow") or 1)
    if p.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32((high - low) or 0.001)
    keep = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    periods = _periods(p, dim)
    slow, fast = 1 / (np.float32(factor) * periods), 1 / periods
    return slow * (1 - keep) + fast * keep, _yarn_scale(p, factor)


def _yarn_scale(p: ConfigReader, factor: float) -> float:
    given = p.maybe_number("attention_factor")
    mscale, all_dim = p.maybe_number("mscale"), p.maybe_number("mscale_all_dim")

    def scale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given is not None:
        return given
    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


def _longrope(p: ConfigReader, dim: int, longest: int, context: int) -> Rope:
    """LongRoPE (arXiv 2402.13753): a divisor for every pair, one set for texts of up to the original length, one for
    longer texts. A context that no longer text fits into has the first set only."""
    original = _original(p)
    sets = {name: p.items(name, float) for name in ("short_factor", "long_factor")}
    for name, divisors in sets.items():
        if divisors is None or len(divisors) != (dim + 1) // 2 or min(divisors) <= 0:
            raise p.fail(name, f"must be a list of {(dim + 1) // 2} positive numbers")
    factor = p.maybe_number("factor") or longest / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = (_floats(np.float32(1) / (np.array(s, np.float32) * _periods(p, dim))) for s in sets.values())
    scale = float(p.maybe_number("attention_factor") or usual)
    return Rope(short, scale, long, original) if context > original else Rope(short, scale)


KINDS: dict[str, Callable[[ConfigReader, int, int, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
}
