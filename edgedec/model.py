"""`open` and `Model`: an opened bundle and its sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LoraAdapter
from edgedec.bundle.locate import NANO, find
from edgedec.bundle.routed import RoutedAdapters, open_adapters
from edgedec.cache.offload import Offload
from edgedec.decoding.sharing import ModelPrefixes
from edgedec.diffusion.decoding import DiffusionDecoding
from edgedec.drafters import Tables
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.opened import OpenedModel
from edgedec.policies import FULL, CachePolicy, PolicyHost, make_policy
from edgedec.runtime import Adapter, Runtime, RuntimeOptions, choose_runtime, open_runtime
from edgedec.runtime.trust import trusting
from edgedec.session import Session
from edgedec.skipping import skipping
from edgedec.text.subwords import Joinable, joinable_of

if TYPE_CHECKING:
    from edgedec.encoding import LearnedLabels, Ranked
    from edgedec.encoding.transport import Align

# Tokens of texts that stay cached as prefixes for other sessions: instructions, examples, a conversation.
PREFIX_TOKENS = 4096


class Model(OpenedModel):
    """Weights and a runtime, shared by any number of sessions. `cache`: the default cache policy of its sessions
    (`edgedec.policies`)."""

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        prefix_tokens: int = 0,
        cache: str = FULL,
        offload: Offload | None = None,
        diffusion: str = "",
    ) -> None:
        super().__init__(bundle, runtime, ModelPrefixes(runtime.capabilities, prefix_tokens, offload))
        self.cache, self.diffusion = cache, diffusion
        if diffusion:
            DiffusionDecoding.of(self, diffusion)
        self.policy(cache)  # an invalid policy fails here, not at the first session

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
        diffusion: str | None = None,
    ) -> Session:
        """A new text. `context`: how many tokens it may hold (the model's own limit by default).

        When the context is full, `on_full="error"` raises ContextFull; "slide" keeps the first
        `sinks` tokens (4 by default) and the latest half, and goes on.

        `speculate`: how to draft, "auto", "off" or drafters by name (`edgedec.speculation.choose`); the text is the
        same. `learn`: load what earlier sessions saved (`Session.save_drafters`). `tables`: an empty dict, given to all
        sessions of one thread, in which their drafters share learned tables. `adapter`: low-rank weights that its calls
        use. `cache`: "full" or a cache policy by name, which is lossy: "snapkv:budget=0.2" (`edgedec.policies`); by
        default the model's. `diffusion`: how a diffusion model decodes (`edgedec.diffusion`), "" for its defaults; by
        default the model's.
        """
        self.require_decoder()
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
        how = self.diffusion if diffusion is None else diffusion
        kept = sinks if on_full == "slide" else None
        session = Session(self, capacity, kept, speculate, tables, adapter, policy, how)
        if learn:
            session.load_drafters()
        return session

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        prompt: str | None = None,
        dimensions: int = 0,
        truncate: bool = False,
    ) -> NDArray[np.float32]:
        """A vector of each text [n, width]; of one text [width]. Tokens are taken as they are. prompt: words in front,
        by name ("query"), "" for none; None: the model's default. dimensions: only the first so many; 0: all. truncate:
        cut texts that are too long, which are an error else."""
        given = [texts] if isinstance(texts, str) else texts
        found = self.encoder.embed(given, prompt=prompt, dimensions=dimensions, truncate=truncate)
        return found[0] if isinstance(texts, str) else found

    def rerank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """Documents by how well they fit a query, the best first: (index, score)."""
        return self.encoder.rerank(query, documents, top=top, truncate=truncate)

    def classify(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        examples: Mapping[str, Sequence[str]] | None = None,
        align: Align | None = None,
        labels: LearnedLabels | str | os.PathLike[str] | None = None,
        truncate: bool = False,
    ) -> list[dict[str, float]]:
        """The scores of the model's labels for each text or pair of texts, the highest first. Of a model that embeds:
        `examples`, a few texts of each label: the scores are cosines to their means, which `align` moves towards the
        texts (docs/own-encoders.md), or `labels`, learned ones or their file."""
        encoder = self.encoder
        if examples is None and align is not None:
            raise UsageError("align: moves the means of examples, give some")
        if labels is not None and examples is not None:
            raise UsageError("labels: give examples or learned labels, not both")
        if labels is not None:
            known = encoder.open_labels(labels) if isinstance(labels, str | os.PathLike) else labels
            return encoder.by_labels(_single(texts), known, truncate=truncate)
        if examples is not None:
            return encoder.by_examples(_single(texts), examples, align, truncate=truncate)
        return encoder.classify(texts, truncate=truncate)

    def policy(self, words: str) -> CachePolicy | None:
        """The cache policy of a new text; None for none."""
        host = PolicyHost(self.spec, self.runtime.capabilities, str(self.bundle.path))
        if self.bundle.manifest.text.tokenizer is not None:
            host = replace(host, decode=self._text, joinable=self._joinable)
        return make_policy(words, host)

    def _joinable(self) -> Joinable:
        return joinable_of(self.tokenizer, self.spec.vocab_size)

    def _text(self, ids: Sequence[int]) -> str:
        """The text of tokens; the tokenizer is opened on first use."""
        return self.tokenizer.decode(ids)

    def adapter(self, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> LoraAdapter | RoutedAdapters:
        """The LoRA adapter of an adapter file, for `session(adapter=…)`; any number of them may be in use at once.
        more: the other files of a set of adapters with gates, of which each token takes two."""
        if not self.runtime.capabilities.adapters:
            raise RuntimeUnavailable(f"engine {self.runtime.name} cannot use adapters; use --engine native")
        return open_adapters((path, *more), self.spec)


def _single(texts: Sequence[str | tuple[str, str]]) -> list[str]:
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise UsageError("labels: a pair of texts has no vector")
    return single


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
    diffusion: str = "",
) -> Model:
    """Open a bundle: a folder, or `nano`, the model that ships with edgedec.

    engine: a file name in `runtimes/` ("native", "ort", "reference"), or "auto". device: "cpu", "cuda", "webgpu",
    "qnn:SM8650", … (docs/devices.md), "auto" for the quickest available, which is measured once; by default the CPU.
    device_cache: bytes of a GPU's memory that caches may take, idle caches above that are in host memory; 0: all of it.
    threads: 0 for all cores. kv: the cache format; for "ort" and "reference" one the bundle was exported with. verify:
    check every hash first. prefix_tokens: tokens of texts, ended ones included, that stay cached for sessions with the
    same prefix (4,096 by default); 0: none. skip_speed: skip layers, evenly spread, for this speedup per token; lossy:
    the text changes. 1: none. cache: "full", or a cache policy (`edgedec.policies`), which is lossy. offload: a folder
    for texts beyond `prefix_tokens`, at most `offload_bytes`; it is emptied when the program ends. trust_code: run
    compiled code from the bundle; only if you trust its author. diffusion: the default of its sessions, such as
    "schedule=threshold:p=0.8,keep=block" (docs/diffusion.md).
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
    return Model(bundle, skipping(runtime, skip_speed), prefix_tokens, cache, aside, diffusion)
