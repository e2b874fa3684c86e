"""The models of a server: loaded when a request names one, unloaded by least use when another needs the memory.

A model with pending requests, or with running or waiting texts, stays loaded. If all are in use and another is needed,
the one that was loaded first accepts no more requests: it is unloaded once its texts have ended, and requests that
arrived for it meanwhile load it again. Loading runs in a thread, while texts of other models continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from edgedec.bundle import Bundle
from edgedec.cache.memory import tokens_that_fit
from edgedec.constraints import starting
from edgedec.decoding.apply_policy import most_of_any
from edgedec.errors import EdgedecError
from edgedec.policies import FULL
from edgedec.runtime import Adapter
from edgedec.runtime.memory import check_memory
from edgedec.server.engine import EngineThread
from edgedec.server.errors import APIError
from edgedec.server.limits import ServerLimits
from edgedec.server.memory import release_memory
from edgedec.server.requests import EndEvent
from edgedec.spec import ModelSpec

if TYPE_CHECKING:
    from edgedec.model import Model

log = logging.getLogger("edgedec.server")
_AGAIN = 0.05  # seconds between two checks for a model that may be unloaded
_STAY = 2.0  # the least seconds that a model stays, so that models are not reloaded in turn all the time

_NO_ROOM = "all models in memory are in use; try again later"


@dataclass(frozen=True)
class ModelSource:
    """A model that may be served. `open` opens it and its adapters; `memory`: bytes that it takes with its caches."""

    name: str
    bundle: Bundle
    open: Callable[[], tuple[Model, Mapping[str, Adapter]]]
    adapters: tuple[str, ...] = ()
    memory: int = 0
    created: int = field(default_factory=lambda: int(time()))

    @classmethod
    def of(cls, model: Model, adapters: Mapping[str, Adapter] | None = None) -> ModelSource:
        """A model that is open already."""
        found = dict(adapters or {})
        return cls(model.bundle.manifest.name, model.bundle, lambda: (model, found), tuple(found))


class ServedModel:
    """A loaded model and its engine. `pins`: the number of requests about to use it; `leaving`: it accepts no more
    requests."""

    def __init__(
        self, source: ModelSource, model: Model, adapters: Mapping[str, Adapter], engine: EngineThread
    ) -> None:
        self.source, self.model, self.adapters, self.engine = source, model, adapters, engine
        self.pins, self.leaving = 0, False
        self.used = self.since = monotonic()

    @property
    def idle(self) -> bool:
        """Whether it may be unloaded."""
        return not self.pins and self.engine.idle


@dataclass(frozen=True)
class ModelTarget:
    """The model and adapter of a request. `name`: for answers."""

    served: ServedModel
    name: str
    adapter: Adapter | None = None

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def engine(self) -> EngineThread:
        return self.served.engine


class ModelPool:
    """All models by name. `memory`: bytes that loaded ones may take together, 0: any; on_end: called in an engine's
    thread at the end of every text, with the model's name."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        limits: ServerLimits,
        memory: int = 0,
        on_end: Callable[[str, EndEvent], None] = lambda name, end: None,
    ) -> None:
        self.sources = {source.name: source for source in sources}
        self.limits, self.memory, self._on_end = limits, memory, on_end
        self.loaded: dict[str, ServedModel] = {}
        self._adapters = {adapter: source.name for source in sources for adapter in source.adapters}
        self._lock, self._waiting = asyncio.Lock(), 0
        self.draining, self.loads = False, 0

    async def start(self) -> None:
        """Load the model of a server that has only one."""
        if len(self.sources) == 1:
            async with self._lock:
                await self._load(next(iter(self.sources.values())))

    async def close(self) -> None:
        """End everything."""
        for served in list(self.loaded.values()):
            await run_in_threadpool(served.engine.close)

    def drain(self) -> None:
        """Reject new and waiting requests; running ones continue."""
        self.draining = True
        for served in self.loaded.values():
            served.engine.drain()

    def resolve(self, model: str | None, adapter: str | None = None) -> tuple[ModelSource, str | None]:
        """The model and the adapter of a request; APIError 404 for an unknown one."""
        name = next(iter(self.sources)) if model is None and len(self.sources) == 1 else model
        if name is None:
            raise APIError(400, f"model: is missing; this server has {self._names()}", "model", "invalid_value")
        if name in self._adapters and name not in self.sources:
            name, adapter = self._adapters[name], adapter or name
        if name not in self.sources:
            raise APIError(
                404, f"model {name!r} is not here; this server has {self._names()}", "model", "model_not_found"
            )
        source = self.sources[name]
        if adapter is not None and adapter not in source.adapters:
            known = ", ".join(map(repr, source.adapters)) or "none"
            raise APIError(404, f"adapter {adapter!r} is not here; {name!r} has {known}", "adapter", "model_not_found")
        return source, adapter

    @asynccontextmanager
    async def use(self, wanted: tuple[str | None, str | None]) -> AsyncIterator[ModelTarget]:
        """A context with a model and an adapter by name, loaded; it stays loaded inside, and while its texts run."""
        source, adapter = self.resolve(*wanted)
        served = self.loaded.get(source.name)
        if served is None or served.leaving:
            async with self._turn():
                served = self.loaded.get(source.name) or await self._load(source)
        served.pins += 1
        try:
            yield ModelTarget(served, adapter or source.name, None if adapter is None else served.adapters[adapter])
        finally:
            served.pins -= 1
            served.used = monotonic()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The lock, with the same limits on waiting requests and time as for a slot."""
        most = self.limits.slots + self.limits.queue
        if self._waiting >= most:
            raise APIError(429, "too many requests wait already; try again later", code="queue_full", wait=1)
        self._waiting += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self._lock.acquire()
        except TimeoutError:
            raise APIError(503, _NO_ROOM, "model", "no_room", wait=5) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    async def _load(self, source: ModelSource) -> ServedModel:
        """Load a model; the caller holds the lock."""
        self._check_open()
        if await self._make_room(source):
            await run_in_threadpool(release_memory)
        try:
            model, adapters = await run_in_threadpool(source.open)
        except EdgedecError as error:
            log.error("%s: %s", source.name, error)
            raise APIError(500, f"model {source.name!r} cannot be opened; see the server's log", "model") from None
        await run_in_threadpool(starting.start, model)
        self._check_open()  # loading takes a while
        engine = EngineThread(model, limits_under(self.limits, model), lambda end: self._on_end(source.name, end))
        engine.start()
        self.loads += 1
        served = self.loaded[source.name] = ServedModel(source, model, adapters, engine)
        return served

    def _check_open(self) -> None:
        """APIError 503 while the server is shutting down."""
        if self.draining:
            raise APIError(503, "the server is shutting down", code="shutting_down", wait=5)

    async def unload(self, name: str) -> None:
        """Unload a model if it is idle."""
        async with self._lock:
            served = self.loaded.get(name)
            if served is not None and served.idle:
                await self._drop(served)
                del served
                await run_in_threadpool(release_memory)

    async def _make_room(self, source: ModelSource) -> bool:
        """Unload the least recently used models until the model fits; returns whether any was unloaded."""
        if not self.memory:
            return False
        if source.memory > self.memory:
            message = f"model {source.name!r} takes {source.memory >> 20} MiB; this server's models may take "
            raise APIError(503, message + f"{self.memory >> 20} MiB together (--models-memory)", "model", "no_room")
        end, before = monotonic() + self.limits.seconds, len(self.loaded)
        try:
            while sum(served.source.memory for served in self.loaded.values()) + source.memory > self.memory:
                idle = [served for served in self.loaded.values() if served.idle]
                if idle:
                    await self._drop(min(idle, key=lambda served: (not served.leaving, served.used)))
                elif monotonic() > end or self.draining:
                    raise APIError(503, _NO_ROOM, "model", "no_room", wait=5)
                else:
                    self._choose_leaving()
                    await asyncio.sleep(_AGAIN)
        finally:
            for served in self.loaded.values():
                served.leaving = False
        return len(self.loaded) < before

    def _choose_leaving(self) -> None:
        """Choose the model that accepts no more requests; one at a time."""
        served = min(self.loaded.values(), key=lambda served: served.since)
        if monotonic() - served.since > _STAY:
            served.leaving = True

    async def _drop(self, served: ServedModel) -> None:
        del self.loaded[served.source.name]
        await run_in_threadpool(served.engine.close)

    def _names(self) -> str:
        return ", ".join(repr(name) for name in (*self.sources, *self._adapters))


def fitted(limits: ServerLimits, model: Model) -> ServerLimits:
    """The limits of a server of one model: caches for fewer texts at a time if memory is too small for all slots.
    ContextFull if it is too small for the requested tokens, or for one text."""
    own, can, cache = limits_under(limits, model), model.runtime.capabilities, model.runtime.new_cache(1)
    fits = tokens_that_fit(model.spec, cache.kv, can.page_slots)
    if fits is None or own.room <= fits or can.device != "cpu":
        return limits
    if limits.tokens or fits < own.each:
        most = own.room if limits.tokens else own.each
        check_memory(cache, limits.tokens or own.context, can, None if model.cache == FULL else most)
        return limits if limits.tokens else replace(limits, tokens=own.each, held=own.held)
    return replace(limits, tokens=fits, held=own.held)


def limits_of(limits: ServerLimits, spec: ModelSpec) -> ServerLimits:
    """The limits of one model's engine: its context is at most the model's own."""
    most = spec.context_length
    return replace(limits, context=min(limits.context or most, most))


def limits_under(limits: ServerLimits, model: Model) -> ServerLimits:
    """The limits of an open model's engine, whose cache policy may keep a part of each text: in whole pages."""
    own, policy, can = limits_of(limits, model.spec), model.policy(model.cache), model.runtime.capabilities
    if own.tokens or policy is None:
        return own
    page = max(can.page_slots, 1)
    return replace(own, held=-(-most_of_any(policy, own.context, can) // page) * page)
