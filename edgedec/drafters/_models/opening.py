"""Draft models: their bundles, their runtimes, which sessions share, and the translation of their tokens."""

from __future__ import annotations

from edgedec.bundle.folder import Bundle
from edgedec.drafters import DrafterContext
from edgedec.drafters._models.retokenize import Retokenizer, same_tokens
from edgedec.drafters._networks.shared import SharedInstances
from edgedec.errors import BundleNotFound, UsageError
from edgedec.runtime import (
    RUNTIMES,
    Runtime,
    RuntimeOptions,
    choose_runtime,
    open_runtime,
    opened_with,
    unavailable_reason,
)
from edgedec.text.tokenizer import Tokenizer

KIND = "model"
_runtimes: SharedInstances[Runtime] = SharedInstances()


def open_draft(
    host: DrafterContext, path: str, threads: int = 0, kv: str = "", device: str = ""
) -> tuple[Runtime, Retokenizer | None]:
    """The draft model at `path`, or the one in the target's bundle, and the translator of its tokens (None: they are
    the target's). device: by default the target's device."""
    bundle = draft_bundle(host, path)
    translator = translator_of(host, bundle)
    return draft_runtime(host, bundle, threads, kv, device), translator


def draft_bundle(host: DrafterContext, path: str) -> Bundle:
    """The draft model at a path, or the one inside the target's bundle."""
    from edgedec.bundle.locate import find

    inside = host.bundle.manifest.drafts.get(KIND)
    if not path and inside is not None:
        return host.bundle.part(inside.stack)
    if not path:
        raise UsageError("no draft model is in the bundle; name one by the option path, as in model:path=./small")
    try:
        return Bundle.open(find(path))
    except BundleNotFound as error:
        raise UsageError(f"draft model: path={path}: {error}") from None


def draft_runtime(host: DrafterContext, bundle: Bundle, threads: int = 0, kv: str = "", device: str = "") -> Runtime:
    """A runtime for a draft's bundle: the target's kind, device and limit of cache memory, or another kind if that one
    cannot open it, or one on `device`; threads: by default the target's."""
    target = opened_with(host.runtime)
    own = not device and host.runtime.name in RUNTIMES
    own = own and unavailable_reason(host.runtime.name, bundle, target.device) is None
    device, room = (target.device, target.device_cache) if own else (device, 0)
    name = choose_runtime(bundle, host.runtime.name if own else "auto", device)
    threads = threads or host.runtime.capabilities.threads
    options = RuntimeOptions(threads=threads, kv=kv or None, device=device, device_cache=room)
    key = str(bundle.path.resolve()), bundle.digest, name, options
    return _runtimes.get(key, lambda: _loaded(name, bundle, options))


def _loaded(name: str, bundle: Bundle, options: RuntimeOptions) -> Runtime:
    runtime = open_runtime(name, bundle, options)
    runtime.load()
    return runtime


def translator_of(host: DrafterContext, bundle: Bundle) -> Retokenizer | None:
    """The translator between the vocabularies; None if token ids mean the same in both models."""
    ours, theirs = host.bundle.manifest, bundle.manifest
    if ours.text.tokenizer is None and theirs.text.tokenizer is None and ours.spec.vocab_size == theirs.spec.vocab_size:
        return None  # ids without text: there is nothing to compare
    for one, manifest in ((host.bundle, ours), (bundle, theirs)):
        if manifest.text.tokenizer is None:
            raise UsageError(f"drafter model: {one.path} has no tokenizer, so the models' tokens cannot be compared")
    hashes = [manifest.files[manifest.text.tokenizer or ""].sha256 for manifest in (ours, theirs)]
    if hashes[0] == hashes[1] != "":
        return None
    target, draft = host.tokenizer(), Tokenizer.load(bundle.file(theirs.text.tokenizer or ""))
    return None if same_tokens(target, draft) else Retokenizer(target, draft)
