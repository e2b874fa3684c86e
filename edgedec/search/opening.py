"""The search of a session's generation: what it refuses, the room it needs, and the job of a batch that it is."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.decoding.apply_policy import most_held
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.messages import Stats
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.runtime.memory import check_memory
from edgedec.search.found import SearchResult
from edgedec.search.host import SearchHost
from edgedec.search.record import BranchTrace
from edgedec.search.running import SearchRun


def open_search(
    model: OpenedModel,
    context: Context,
    config: GenerationConfig,
    stats: Stats,
    drafter: Callable[[], Drafter],
    diffusion: object | None,
    trace: list[BranchTrace] | None = None,
) -> SearchRun | None:
    """The search that a config names, None if it names none. drafter(): a new one for each text that is rolled;
    diffusion: how the model's blocks are filled, which no search goes with; trace: gets what becomes of each branch.
    ContextFull if the texts' caches need more memory than is free."""
    capabilities = model.runtime.capabilities
    most = min(context.cache.capacity, len(context.ids) + (config.max_tokens or 0))
    held = None if context.policy is None else most_held(context, most, capabilities)
    if not config.search:
        check_memory(context.cache, most, capabilities, held)
        return None
    if diffusion is not None:
        raise UsageError(f"--search {config.search}: does not go with diffusion decoding")
    if config.awrs:
        raise UsageError(f"--search {config.search}: does not go with awrs, whose weights are of texts that are drawn")
    host = SearchHost(capabilities, lambda: model.tokenizer, model.eos, config, drafter, model)
    found = SearchRun(host, context, config, stats)
    found.trace(trace)
    check_memory(context.cache, found.need if config.max_tokens is not None else most, capabilities, held)
    return found


def found(search: SearchRun | None, text: str) -> SearchResult:
    """What a search found. text: of its answer."""
    assert search is not None
    return search.found(text)


def as_job(job: Job, search: SearchRun | None) -> Job:
    """The job of a batch, with the branches and the width of its search."""
    if search is not None:
        job.forks, job.width, job.need = search.room.forks, search.width, search.need
    return job
