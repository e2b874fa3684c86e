"""The drafter that `--spec off | NAME[:option=value,…][+NAME…]` means, `auto` among the names.

auto: every drafter that costs next to nothing, one of the bundle's trained heads, and for long contexts the model
itself on a part of its cache, under the governor; nothing on
a runtime whose logits depend on how many rows share a call. Of named drafters the governor still chooses how much
they draft, unless one of them has `fixed=N`: N tokens at each call, whatever they cost. What a constraint forces is
drafted with any of them. On a runtime that runs no trees, drafts are cut to one chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.draft import Drafter
from edgedec.drafters import FAMILY, DrafterContext, DrafterFacts, make_drafter
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.drafters.sparse import SparseDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Words
from edgedec.speculation.cost_files import host_costs, survey_of
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.guide import guided
from edgedec.speculation.prompting import PromptingGovernor, has_prompts
from edgedec.speculation.shared import SharedLearning


def make_speculation(words: Words, host: DrafterContext) -> Drafter:
    """The drafter that `words` mean."""
    if words == "off":
        return Off()
    drafters, fixed = list[tuple[str, Drafter]](), 0
    for name, options in FAMILY.parse(words):
        if name == "auto":
            drafters += [(name, _considered(make_drafter(name, host), host)) for name in _auto(host)]
            continue
        fixed = max(fixed, options.pop("fixed", 0))
        drafters.append((name, FAMILY.file(name).make(host, **options)))
    if any(drafter.shift is not None for _, drafter in drafters):
        return _alone(words, drafters)
    return governor(guided(drafters), host, fixed)


def _alone(words: Words, drafters: Sequence[tuple[str, Drafter]]) -> Drafter:
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
    facts = {name: fact for name, fact in FAMILY.all_facts().items() if fact.auto is not None and fact.fits(host)}
    ranked = sorted(facts, key=lambda name: facts[name].auto or 0)
    free = [name for name in ranked if not facts[name].trained]
    heads = [name for name in ranked if facts[name].trained and _has(host, facts[name])]
    return [*free, *heads[:1]]


def _considered(drafter: Drafter, host: DrafterContext) -> Drafter:
    """A drafter of `auto`; one that begins where steps take long is given what they take."""
    if isinstance(drafter, SparseDrafter):
        drafter.step_seconds = lambda cells: _step_seconds(host_costs(host.runtime, host.bundle), cells)
    return drafter


def _step_seconds(costs: Costs, cells: int) -> float:
    """What a row takes after so many tokens; nothing, while that is not known."""
    return costs.seconds[1] + costs.per_cell * cells if len(costs.seconds) > 1 else 0.0


def _has(host: DrafterContext, facts: DrafterFacts) -> bool:
    """Does the bundle have the head or the draft that a drafter needs, and the runtime what that reads?"""
    manifest, can = host.bundle.manifest, host.runtime.capabilities
    drafts = can.hidden and can.slices and facts.draft in manifest.drafts
    return drafts or (facts.head != "" and facts.head in manifest.heads)
