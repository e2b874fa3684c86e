"""`--spec auto | off | NAME[:option=value,…][+NAME…]`: words to a drafter.

auto: every drafter that costs next to nothing, and the bundle's trained heads, under the governor; nothing on a
runtime whose logits depend on how many rows share a call. Of named drafters the governor still chooses how much
they draft, unless one of them says `fixed=N`: N tokens at each call, whatever it costs. What a constraint forces
rides along with any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters import Drafter, DrafterContext, make_drafter
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.speculation.costs import Costs, host_costs
from edgedec.speculation.governor import Governor

# Cheapest first: a guess that two make counts for the first.
_FREE = ("copy", "suffix", "recycling", "trigram")
_HEADS = ("hydra", "medusa")


def make_speculation(words: str, host: DrafterContext) -> Drafter:
    """The drafter that `words` mean."""
    if words == "off":
        return Off()
    if words == "auto":
        return governor([(name, make_drafter(name, host)) for name in _auto(host)], host)
    drafters, fixed = [], 0
    for part in words.split("+"):
        name, _, rest = part.partition(":")
        options = _options(part, rest)
        fixed = max(fixed, _whole(part, options.pop("fixed", "0")))
        drafters.append((name, make_drafter(name, host, options)))
    return governor(drafters, host, fixed)


def governor(drafters: Sequence[tuple[str, Drafter]], host: DrafterContext, fixed: int = 0) -> Drafter:
    def costs() -> Costs:
        return host_costs(host.runtime, host.bundle)

    return Forced(Governor(drafters, costs, fixed)) if drafters else Off()


def _auto(host: DrafterContext) -> list[str]:
    if not host.runtime.invariant:
        return []
    heads = [name for name in _HEADS if name in host.bundle.manifest.heads]
    return [*_FREE, *heads[:1]]


def _options(part: str, rest: str) -> dict[str, str]:
    """ "ngram=3,store=x" -> {"ngram": "3", "store": "x"}."""
    found: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--spec {part}: {item!r} must be OPTION=VALUE, as in recycling:fixed=8")
        found[key] = value
    return found


def _whole(part: str, value: str) -> int:
    if not value.isdigit():
        raise UsageError(f"--spec {part}: fixed={value} must be a whole number")
    return int(value)
