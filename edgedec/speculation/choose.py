"""`--spec off | NAME[:option=value,…][+NAME…]`, `auto` among the names: from words to a drafter.

auto: every drafter that costs next to nothing, one of the bundle's trained heads, and for long contexts the model
itself on a part of its cache, under the governor; nothing on
a runtime whose logits depend on how many rows share a call. Of named drafters the governor still chooses how much
they draft, unless one of them has `fixed=N`: N tokens at each call, whatever they cost. What a constraint forces is
drafted with any of them. On a runtime that runs no trees, drafts are cut to one chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from edgedec.decoding.draft import Drafter
from edgedec.drafters import DrafterContext, drafter_module, drafter_names, make_drafter
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.drafters.sparse import SparseDrafter
from edgedec.errors import UsageError
from edgedec.speculation.cost_files import host_costs, survey_of
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.guide import guided
from edgedec.speculation.prompting import PromptingGovernor, has_prompts
from edgedec.speculation.shared import SharedLearning
from edgedec.words import split_options


def make_speculation(words: str, host: DrafterContext) -> Drafter:
    """The drafter that `words` mean."""
    if words == "off":
        return Off()
    drafters, fixed = list[tuple[str, Drafter]](), 0
    for part in words.split("+"):
        name, _, rest = part.partition(":")
        if part == "auto":
            drafters += [(name, _considered(make_drafter(name, host), host)) for name in _auto(host)]
            continue
        if name == "auto":
            raise UsageError(f"--spec {part}: auto takes no options; others beside it do, as in auto+copy:fixed=3")
        options = split_options(f"--spec {part}", rest, "recycling:fixed=8")
        fixed = max(fixed, _whole(part, options.pop("fixed", "0")))
        drafters.append((name, make_drafter(name, host, options)))
    if any(drafter.shift is not None for _, drafter in drafters):
        return _alone(words, drafters)
    return governor(guided(drafters), host, fixed)


def _alone(words: str, drafters: Sequence[tuple[str, Drafter]]) -> Drafter:
    """A drafter that makes another text: it has to draft at every call, and nothing else may."""
    if len(drafters) > 1:
        raise UsageError(f"--spec {words}: a drafter that changes the text (transfer) takes no others beside it")
    return drafters[0][1]


def governor(drafters: Sequence[tuple[str, Drafter]], host: DrafterContext, fixed: int = 0) -> Drafter:
    """These drafters under the governor, after what a constraint forces."""
    if not drafters:
        return Off()

    def costs() -> Costs:
        return host_costs(host.runtime, host.bundle)

    shared = None if host.tables is None else host.table("speculation", SharedLearning)
    kind = PromptingGovernor if has_prompts(drafters) else Governor
    return Forced(kind(drafters, costs, fixed, host.runtime.capabilities.trees, survey_of, shared))


def _auto(host: DrafterContext) -> list[str]:
    """The drafters of `auto` by rank, cheapest first: a guess that two make counts for the first. Of those that need
    a head only the first whose head the bundle has."""
    if not host.runtime.capabilities.batch_invariant:
        return []
    files = {name: drafter_module(name) for name in drafter_names()}
    ranked = sorted((name for name in files if hasattr(files[name], "AUTO")), key=lambda name: int(files[name].AUTO))
    ranked = [name for name in ranked if not hasattr(files[name], "fits") or files[name].fits(host)]
    free = [name for name in ranked if not hasattr(files[name], "HEAD") and not hasattr(files[name], "DRAFT")]
    heads = [name for name in ranked if name not in free and _has(host, files[name])]
    return [*free, *heads[:1]]


def _considered(drafter: Drafter, host: DrafterContext) -> Drafter:
    """A drafter of `auto`; one that begins where steps take long is given what they take."""
    if isinstance(drafter, SparseDrafter):
        drafter.step_seconds = lambda cells: _step_seconds(host_costs(host.runtime, host.bundle), cells)
    return drafter


def _step_seconds(costs: Costs, cells: int) -> float:
    """What a row takes after so many tokens; nothing, while that is not known."""
    return costs.seconds[1] + costs.per_cell * cells if len(costs.seconds) > 1 else 0.0


def _has(host: DrafterContext, file: ModuleType) -> bool:
    """Does the bundle have the head or the draft that this drafter needs, and the runtime what that reads?"""
    manifest, head, can = host.bundle.manifest, getattr(file, "HEAD", None), host.runtime.capabilities
    drafts = can.hidden and can.slices and getattr(file, "DRAFT", "") in manifest.drafts
    return drafts or (head is not None and head.kind in manifest.heads)


def _whole(part: str, value: str) -> int:
    if not value.isdigit():
        raise UsageError(f"--spec {part}: fixed={value} must be a whole number")
    return int(value)
