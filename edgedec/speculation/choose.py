"""The drafter for `--spec off | NAME[:option=value,…][+NAME…]`, where a name may be `auto`.

auto: all drafters of negligible cost, one of the bundle's trained heads, and for long contexts the model itself on a
part of its cache, under the governor; no drafter on a runtime whose logits depend on how many rows share a call. The
governor also sets the draft size of named drafters, unless one of them has `fixed=N`: N tokens at each call, regardless
of cost. Tokens that a constraint forces are drafted with any of them. On a runtime without trees, drafts are cut to one
chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edgedec.decoding.draft import Drafter
from edgedec.drafters import FAMILY, DrafterContext, DrafterFacts, Tables
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.drafters.sparse import SparseDrafter
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Words
from edgedec.speculation.bank import AUTO, NAMED, Terms
from edgedec.speculation.cost_files import host_costs, probe_of
from edgedec.speculation.costs import Costs
from edgedec.speculation.deferred import Deferred
from edgedec.speculation.governor import Governor
from edgedec.speculation.guide import guided
from edgedec.speculation.prompting import PromptingGovernor, has_prompts
from edgedec.speculation.reasons import ENGINE, TEXTS
from edgedec.speculation.state import SharedLearning


class _Choice(NamedTuple):
    """What words choose. makers: of each drafter; fixed: the tokens of each draft, 0: chosen by cost."""

    makers: list[tuple[str, Callable[[DrafterContext], Drafter]]]
    fixed: int
    terms: Terms


def make_speculation(words: Words, host: DrafterContext) -> Drafter:
    """The drafter for the value of `--spec`."""
    if words == "off":
        return Off()
    # Sessions that share tables read the words once.
    choice = host.table(("words", words), lambda: _read(words, host)) if isinstance(words, str) else _read(words, host)
    if words == "auto" and choice.makers and (shared := _shared(host)) is not None:
        names = [name for name, _ in choice.makers]
        return Forced(Deferred(lambda: _governor(_made(choice, host), host), shared.openings, names))
    drafters = _made(choice, host)
    if any(drafter.shift is not None for _, drafter in drafters):
        return _alone(words, drafters, choice.fixed)
    return governor(drafters, host, choice.fixed, choice.terms)


def session_drafter(model: OpenedModel, words: Words, tables: Tables | None) -> Drafter:
    """A new drafter for a text of a model."""
    return make_speculation(words, DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer, tables))


def _made(choice: _Choice, host: DrafterContext) -> Sequence[tuple[str, Drafter]]:
    return guided([(name, make(host)) for name, make in choice.makers])


def _read(words: Words, host: DrafterContext) -> _Choice:
    makers, fixed, terms = list[tuple[str, Callable[[DrafterContext], Drafter]]](), 0, NAMED
    chosen = FAMILY.parse(words)
    _check_together(words, chosen)
    for name, options in chosen:
        if name == "auto":
            makers += [(name, partial(_considered, FAMILY.file(name).make)) for name in _auto(host)]
            terms = AUTO
            continue
        fixed = max(fixed, options.pop("fixed", 0))
        makers.append((name, partial(FAMILY.file(name).make, **options)))
    return _Choice(makers, fixed, terms)


def _check_together(words: Words, chosen: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """UsageError for drafters that say different things of the draft of a call, which is one tree."""
    if any(name == "off" and (options or len(chosen) > 1) for name, options in chosen):
        raise UsageError(f"--spec {words}: off drafts nothing; give it alone, without options")
    sizes = sorted({options["fixed"] for _, options in chosen if options.get("fixed")})
    if len(sizes) > 1:
        raise UsageError(f"--spec {words}: fixed={sizes[0]} and fixed={sizes[1]}: a call has one draft; give one size")


def _alone(words: Words, drafters: Sequence[tuple[str, Drafter]], fixed: int) -> Drafter:
    """The single drafter of a text that it changes: it must draft at every call, without other drafters."""
    if fixed:
        raise UsageError(f"--spec {words}: fixed={fixed}: a drafter that changes the text drafts by `length`")
    if len(drafters) > 1:
        raise UsageError(f"--spec {words}: a drafter that changes the text takes no others beside it")
    return drafters[0][1]


def governor(
    drafters: Sequence[tuple[str, Drafter]], host: DrafterContext, fixed: int = 0, terms: Terms = AUTO
) -> Drafter:
    """These drafters under the governor, after the tokens that a constraint forces. There are none if the engine may
    not draft with `auto`."""
    return Forced(_governor(drafters, host, fixed, terms)) if drafters else Off(ENGINE, TEXTS[ENGINE])


def _governor(
    drafters: Sequence[tuple[str, Drafter]], host: DrafterContext, fixed: int = 0, terms: Terms = AUTO
) -> Governor:
    def costs() -> Costs:
        return host_costs(host.runtime, host.bundle)

    kind = PromptingGovernor if has_prompts(drafters) else Governor
    return kind(drafters, costs, fixed, host.runtime.capabilities.trees, probe_of, _shared(host), terms)


def _shared(host: DrafterContext) -> SharedLearning | None:
    """What the sessions that share tables learn together."""
    return None if host.tables is None else host.table("speculation", SharedLearning)


def _auto(host: DrafterContext) -> list[str]:
    """The drafters of `auto` by rank, cheapest first, because a guess of two drafters counts for the first. Of the
    drafters that need a head only the first whose head is in the bundle."""
    if not host.runtime.capabilities.batch_invariant:
        return []
    facts = {name: fact for name, fact in FAMILY.all_facts().items() if fact.auto is not None and fact.fits(host)}
    ranked = sorted(facts, key=lambda name: facts[name].auto or 0)
    free = [name for name in ranked if not facts[name].trained]
    heads = [name for name in ranked if facts[name].trained and _has(host, facts[name])]
    return [*free, *heads[:1]]


def _considered(make: Callable[[DrafterContext], Drafter], host: DrafterContext) -> Drafter:
    """A drafter of `auto`; the sparse drafter, which starts only where steps are slow, gets a function of their
    time."""
    drafter = make(host)
    if isinstance(drafter, SparseDrafter):
        drafter.step_seconds = lambda cells: _step_seconds(host_costs(host.runtime, host.bundle), cells)
    return drafter


def _step_seconds(costs: Costs, cells: int) -> float:
    """The seconds of a row after `cells` cached tokens; 0 while unknown."""
    return costs.seconds[1] + costs.per_cell * cells if len(costs.seconds) > 1 else 0.0


def _has(host: DrafterContext, facts: DrafterFacts) -> bool:
    """Whether the bundle has the head or the draft that a drafter needs, and the runtime the outputs that it reads."""
    manifest, can = host.bundle.manifest, host.runtime.capabilities
    drafts = can.hidden and can.slices and facts.draft in manifest.drafts
    return drafts or (facts.head != "" and facts.head in manifest.heads)
