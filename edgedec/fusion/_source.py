"""Where a companion's text comes from: which runtime, adapter and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgedec.bundle.adapter import open_adapter
from edgedec.bundle.folder import Bundle
from edgedec.bundle.locate import find
from edgedec.decoding.context import Context
from edgedec.drafters import DrafterContext
from edgedec.drafters._models.opening import draft_runtime, translator_of
from edgedec.errors import BundleNotFound, RuntimeUnavailable, UsageError
from edgedec.runtime import Adapter, Runtime

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel


@dataclass(frozen=True)
class Source:
    """own: the runtime is the text's own. prompt: in place of the text's prompt; None: the same. last: only so many of
    the last tokens of the text's prompt; 0: all. adapter: of its calls, unless it follows the text's. extra: rows below
    the text that are never part of it."""

    runtime: Runtime
    own: bool = True
    prompt: tuple[int, ...] | None = None
    last: int = 0
    adapter: Adapter | None = None
    follows_adapter: bool = True
    extra: int = 0

    def adapter_of(self, context: Context) -> Adapter | None:
        """The adapter of its calls beside this text."""
        return context.adapter if self.follows_adapter else self.adapter

    def text(self, context: Context) -> list[int]:
        """The tokens of the second text."""
        if self.prompt is not None:
            return [*self.prompt, *context.ids[context.n_prompt :]]
        return context.ids[self._skipped(context) :]

    def length(self, context: Context) -> int:
        """How many they are."""
        if self.prompt is not None:
            return len(self.prompt) + len(context.ids) - context.n_prompt
        return len(context.ids) - self._skipped(context)

    def _skipped(self, context: Context) -> int:
        return max(context.n_prompt - self.last, 0) if self.last else 0

    def capacity(self, context: Context) -> int:
        """The most tokens that the second text may have."""
        most, longest = context.cache.capacity, self.runtime.spec.context_length
        return min(most + len(self.prompt or ()), max(most, longest)) if self.own else min(most, longest)


def source_of(
    host: OpenedModel, where: str, bundle: str = "", adapter: str = "", prompt: str | None = None, extra: int = 0
) -> Source:
    """The source that options name: at most one of a bundle with the same tokens, an adapter file or `none` for the
    model without one, and a prompt."""
    given = [name for name, value in (("bundle", bundle), ("adapter", adapter), ("prompt", prompt or "")) if value]
    if len(given) > 1:
        raise UsageError(f"{where}: {' and '.join(given)}: one of them only")
    if bundle:
        return replace(_of_bundle(host, where, bundle), extra=extra)
    if adapter:
        return replace(_of_adapter(host, where, adapter), extra=extra)
    ids: Sequence[int] | None = host.tokenizer.encode(prompt) if prompt else None
    return Source(host.runtime, prompt=None if ids is None else tuple(ids), extra=extra)


def _of_bundle(host: OpenedModel, where: str, path: str) -> Source:
    try:
        found = Bundle.open(find(path))
    except BundleNotFound as error:
        raise UsageError(f"{where}: bundle={path}: {error}") from None
    context = DrafterContext(host.runtime, host.bundle, lambda: host.tokenizer)
    ours, theirs = host.spec.vocab_size, found.spec.vocab_size
    try:
        differ = ours != theirs or translator_of(context, found) is not None
    except UsageError:  # one of them has no tokenizer
        differ = True
    if differ:
        raise UsageError(f"{where}: bundle={path}: its tokens are not those of this model; give one of the same family")
    runtime = draft_runtime(context, found)
    return Source(runtime, own=runtime is host.runtime, follows_adapter=False)


def _of_adapter(host: OpenedModel, where: str, path: str) -> Source:
    if path == "none":
        return Source(host.runtime, follows_adapter=False)
    if not host.runtime.capabilities.adapters:
        raise RuntimeUnavailable(f"{where}: engine {host.runtime.name} cannot use adapters; use --engine native")
    return Source(host.runtime, adapter=open_adapter(path, host.spec), follows_adapter=False)
