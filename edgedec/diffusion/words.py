"""The value of `--diffusion`: `schedule=bacd:low=0.5,blocks=delimiter,keep=block,steps=8`, or `off`.

A part whose key names a seam begins a method; the parts after it are that method's options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from edgedec.diffusion.blocks import FAMILY as BLOCKS
from edgedec.diffusion.ends import FAMILY as ENDS
from edgedec.diffusion.fits import FAMILY as FITS
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping import FAMILY as KEEPING
from edgedec.diffusion.schedules import FAMILY as SCHEDULES
from edgedec.diffusion.seams import Blocks, EndRule, FillSchedule, FitRule, Keeping, Verify
from edgedec.diffusion.verify import FAMILY as VERIFY
from edgedec.errors import UsageError
from edgedec.plugins import Family, PluginChoice
from edgedec.plugins.words import spelt

FLAG = "--diffusion"
# Autoregressive decoding of a model that was trained for both.
OFF = "off"
SEAMS: dict[str, Family[MethodFacts]] = {
    "schedule": SCHEDULES,
    "blocks": BLOCKS,
    "keep": KEEPING,
    "ends": ENDS,
    "verify": VERIFY,
    "fits": FITS,
}
_STEPS = "steps"
# What stands between commas; those in quotes and brackets separate nothing.
_PART = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\[\]]*\]|[^,'"\[]|['"\[])+""")


@dataclass(frozen=True)
class Methods:
    """The methods of one generation; steps: the most passes of a block, 0: any number; entropy, stale: as in
    `MethodFacts`."""

    schedule: FillSchedule
    blocks: Blocks
    keep: Keeping
    ends: EndRule
    verify: Verify
    fits: FitRule
    steps: int = 0
    entropy: bool = False
    stale: bool = False

    def scheduled(self, schedule: FillSchedule) -> Methods:
        """The same with another schedule."""
        return replace(self, schedule=schedule)


@dataclass(frozen=True)
class Chosen:
    """What words choose: a method for each seam."""

    choices: tuple[tuple[str, PluginChoice], ...]
    steps: int = 0

    @property
    def words(self) -> str:
        """The methods with the options that were given, as for the flag."""
        found = [f"{seam}={name}{spelt(options)}" for seam, (name, options) in self.choices]
        return ",".join([*found, *([f"{_STEPS}={self.steps}"] if self.steps else [])])

    def make(self, host: DiffusionHost) -> Methods:
        """New methods for one generation; UsageError for one that the model cannot be decoded with."""
        made: dict[str, Any] = {}
        for seam, (name, options) in self.choices:
            family = SEAMS[seam]
            contexts = family.facts(name).contexts
            if host.facts.context not in contexts:
                raise UsageError(
                    f"{FLAG} {seam}={name}: is for models with {' or '.join(contexts)} context; this one has "
                    f"{host.facts.context}"
                )
            needs = family.facts(name).needs
            other, _, method = needs.partition("=")
            if needs and dict(self.choices)[other].name != method:
                raise UsageError(f"{FLAG} {seam}={name}: goes with {needs} only; give it too")
            made[seam] = family.make(name, host, options)
        facts = [SEAMS[seam].facts(choice.name) for seam, choice in self.choices]
        stale, entropy = any(each.stale for each in facts), any(each.entropy for each in facts)
        if stale and (verify := dict(self.choices)["verify"].name) != "none":
            raise UsageError(f"{FLAG} verify={verify}: goes with exact keys; leave keep=… out")
        editing = [f"{seam}={choice.name}" for seam, choice in self.choices if SEAMS[seam].facts(choice.name).edits]
        final = [f"{seam}={choice.name}" for seam, choice in self.choices if SEAMS[seam].facts(choice.name).final]
        if editing and final:
            raise UsageError(
                f"{FLAG} {final[0]}: needs filled tokens to stay, and {editing[0]} replaces them; give another"
            )
        return Methods(**made, steps=self.steps, entropy=entropy, stale=stale)


def parse_diffusion(words: str, context: str, shift: bool = True) -> Chosen:
    """The methods that words name for a model of a context; those that are not named are the defaults. shift: of the
    model's facts; a causal model without it was trained on reordered rows (WeDLM), and is decoded so.

    >>> parse_diffusion("schedule=threshold:p=0.8,steps=4", "causal").words
    'schedule=threshold:p=0.8,blocks=fixed,keep=block,ends=first,verify=none,fits=front,steps=4'
    """
    given, steps = _parts(words)
    defaults = {
        "schedule": "threshold",
        "blocks": "fixed",
        "keep": "none" if context == "full" else "block",
        "ends": "first",
        "verify": "none",
        "fits": "front",
    }
    if context == "causal" and not shift and given.get("keep", "reorder") == "reorder":
        defaults |= {"schedule": "entropy", "blocks": "sliding", "keep": "reorder"}
    return Chosen(tuple((seam, _choice(seam, given.get(seam, defaults[seam]))) for seam in SEAMS), steps)


def _choice(seam: str, words: str) -> PluginChoice:
    family = SEAMS[seam]
    chosen = family.parse(words)
    if len(chosen) != 1:
        raise UsageError(f"{FLAG} {seam}={words}: name one; there are: {', '.join(family.names())}")
    if chosen[0].name not in family:
        raise UsageError(f"{FLAG} {seam}: {family.unknown(chosen[0].name)}")
    return chosen[0]


def _parts(words: str) -> tuple[dict[str, str], int]:
    """The words of each seam, and the steps."""
    found, steps, last = dict[str, str](), 0, ""
    for part in filter(None, _PART.findall(words)):
        key, equals, value = (text.strip() for text in part.partition("="))
        if key == _STEPS:
            steps = _whole(value)
        elif key in SEAMS and equals:
            if key in found:
                raise UsageError(f"{FLAG} {words}: {key} is given twice")
            found[key], last = value, key
        elif last and equals:
            found[last] += ("," if ":" in found[last] else ":") + f"{key}={value}"
        else:
            raise UsageError(f"{FLAG} {words}: {_unknown(part, key)}")
    return found, steps


def _unknown(part: str, key: str) -> str:
    near = get_close_matches(key, [*SEAMS, _STEPS], 1, 0.6)
    meant = f" (did you mean {near[0]}=…?)" if near else ""
    return f"no part {part!r}{meant}; there are: {', '.join(f'{name}=…' for name in [*SEAMS, _STEPS])}, or {OFF} alone"


def _whole(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) > 1 << 20:
        raise UsageError(f"{FLAG} steps={value}: must be a whole number, 0 (any number of passes) or more")
    return int(value)
