"""A small model as a draft: its bundle becomes a part of the target's, its files begin with `draft_model.`"""

from __future__ import annotations

from dataclasses import replace
from shutil import copyfile

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DraftFacts
from edgedec.errors import UsageError
from edgedec.export.amend import adding
from edgedec.export.writer import manifest_text

KIND, PREFIX = "model", "draft_model."
_DEPTH = 8


def add_model(bundle: Bundle, small: Bundle) -> Bundle:
    """Put the model `small` into a bundle, replacing an earlier one. Artifacts of runtimes are left out, so only
    engines that need none can run it. -> the bundle as it is now"""
    manifest = small.manifest
    if manifest.spec.opaque or bundle.spec.opaque:
        raise UsageError(f"{small.path}: one ONNX graph of another program cannot be put into a bundle")
    kept = [name for name in (manifest.weights, manifest.text.tokenizer) if name is not None]
    moved = {name: PREFIX + name for name in kept}
    part = replace(
        manifest,
        weights=moved[manifest.weights],
        text=replace(manifest.text, tokenizer=moved.get(manifest.text.tokenizer or "")),
        files={moved[name]: manifest.files[name] for name in kept},
        artifacts={},
        heads={},
        drafts={},
    )
    with adding(bundle) as staging:
        for name, new in moved.items():
            copyfile(small.file(name), staging.folder / new)
        (staging.folder / f"{PREFIX}json").write_text(manifest_text(part), "utf-8")
        facts = DraftFacts(_DEPTH, f"{PREFIX}json")
        return staging.install(lambda whole: replace(whole, drafts={**whole.drafts, KIND: facts}))
