"""`open` and `Model`: an opened bundle and the sessions made from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LoraAdapter, open_adapter
from edgedec.bundle.locate import NANO, find
from edgedec.cache.offload import Offload
from edgedec.decoding.sharing import ModelPrefixes
from edgedec.drafters import Tables
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.opened import OpenedModel
from edgedec.policies import FULL, CachePolicy, PolicyHost, make_policy
from edgedec.runtime import Adapter, Runtime, RuntimeOptions, choose_runtime, open_runtime
from edgedec.runtime.trust import trusting
from edgedec.session import Session
from edgedec.speculation.skipping import skipping

# Of a text that other sessions may begin with: instructions, examples, a conversation.
PREFIX_TOKENS = 4096


class Model(OpenedModel):
    """Weights and a runtime, shared by any number of sessions. `cache`: what their caches keep, unless they are made
    with another policy (`edgedec.policies`)."""

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        prefix_tokens: int = 0,
        cache: str = FULL,
        offload: Offload | None = None,
    ) -> None:
        super().__init__(bundle, runtime, ModelPrefixes(runtime.capabilities, prefix_tokens, offload))
        self.cache = cache
        self.policy(cache)  # what would be refused for every session is refused now

    def __repr__(self) -> str:
        return f"<edgedec.Model {self.bundle.manifest.name!r} on {self.runtime.name}>"

    def session(
        self,
        *,
        context: int | None = None,
        on_full: Literal["error", "slide"] = "error",
        sinks: int | None = None,
        speculate: str = "auto",
        learn: bool = False,
        tables: Tables | None = None,
        adapter: Adapter | None = None,
        cache: str | None = None,
    ) -> Session:
        """A new text. `context`: how many tokens it may hold (the model's own limit by default).

        When the context is full, `on_full="error"` raises ContextFull; "slide" keeps the first
        `sinks` tokens (4 by default) and the latest half, and goes on.

        `speculate`: how to draft, "auto", "off" or drafters by name (`edgedec.speculation.choose`); the text is the
        same. `learn`: load what earlier sessions saved (`Session.save_drafters`). `tables`: an empty dict, given to all
        sessions of one thread, in which their drafters share what they learn of the model. `adapter`: low-rank
        weights that its calls use. `cache`: what its cache keeps, "full" or a policy by name, which is lossy: "snapkv:
        budget=0.2" (`edgedec.policies`); by default the model's.
        """
        limit = self.spec.context_length
        capacity = context or limit
        if not 1 <= capacity <= limit:
            raise UsageError(f"context {context}: must be from 1 to {limit}, the model's limit")
        if on_full not in ("error", "slide"):
            raise UsageError(f"on_full {on_full!r}: must be 'error' or 'slide'")
        sinks = min(4, capacity // 4) if sinks is None else sinks
        if on_full == "slide" and not 0 <= sinks <= capacity // 4:
            raise UsageError(f"sinks {sinks}: must be from 0 to {capacity // 4}, a quarter of the context")
        policy = self.policy(self.cache if cache is None else cache)
        session = Session(self, capacity, sinks if on_full == "slide" else None, speculate, tables, adapter, policy)
        if learn:
            session.load_drafters()
        return session

    def policy(self, words: str) -> CachePolicy | None:
        """The cache policy of a new text; None for none."""
        decode = None if self.bundle.manifest.text.tokenizer is None else self._text
        return make_policy(words, PolicyHost(self.spec, self.runtime.capabilities, str(self.bundle.path), decode))

    def _text(self, ids: Sequence[int]) -> str:
        """The text of tokens; the tokenizer is opened when that is first wanted."""
        return self.tokenizer.decode(ids)

    def adapter(self, path: str | os.PathLike[str]) -> LoraAdapter:
        """The LoRA adapter of an adapter file, for `session(adapter=…)`; any number of them may be in use at once."""
        if not self.runtime.capabilities.adapters:
            raise RuntimeUnavailable(f"engine {self.runtime.name} cannot use adapters; use --engine native")
        return open_adapter(path, self.spec)


def open(  # noqa: A001
    path_or_name: str | os.PathLike[str] = NANO,
    *,
    engine: str = "auto",
    device: str = "",
    device_cache: int = 0,
    threads: int = 0,
    kv: str | None = None,
    verify: bool = False,
    prefix_tokens: int | None = None,
    skip_speed: float = 1.0,
    cache: str = FULL,
    offload: str | os.PathLike[str] | None = None,
    offload_bytes: int = 4 << 30,
    trust_code: bool = False,
) -> Model:
    """Open a bundle: a folder, or `nano`, the model that ships with edgedec.

    engine: a file name in `runtimes/` ("native", "ort", "reference"), or "auto". device: what computes, "cpu", "cuda",
    "webgpu", "qnn:SM8650", … (docs/devices.md), "auto" for the quickest that is here, which is measured once; without
    one the CPU. device_cache: bytes of a GPU's memory that caches may take, what is idle beyond that lies in the
    host's; 0: all of it. threads: 0 for all cores.
    kv: the cache format; for "ort" and "reference" one the bundle was exported with. verify: check every hash first.
    prefix_tokens: how many tokens of texts, ended ones too, stay cached for sessions that begin with them (4,096 by
    default); 0: none. skip_speed: skip layers, evenly spread, until a token takes that much less time; lossy: the text
    is another one. 1: none. cache: what caches keep of a text: "full", or a policy (`edgedec.policies`): lossy.
    offload: a folder for texts beyond `prefix_tokens`, `offload_bytes` of them at most; they are gone when the program
    ends. trust_code: run compiled code that lies in the bundle; only if you trust who made it.
    """
    bundle = Bundle.open(find(path_or_name), verify=verify)
    if threads < 0:
        raise UsageError(f"threads {threads}: must be 0 (all cores) or more")
    prefix_tokens = PREFIX_TOKENS if prefix_tokens is None else prefix_tokens
    if prefix_tokens < 0:
        raise UsageError(f"prefix_tokens {prefix_tokens}: must be 0 (none) or more")
    options = RuntimeOptions(threads=threads, kv=kv, device=device, device_cache=device_cache)
    with trusting(trust_code):
        runtime = open_runtime(choose_runtime(bundle, engine, device), bundle, options)
    runtime.load()
    aside = None if offload is None else Offload(offload, offload_bytes)
    return Model(bundle, skipping(runtime, skip_speed), prefix_tokens, cache, aside)
