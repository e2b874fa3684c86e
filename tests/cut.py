"""A small model of the same tokenizer: the first layers of a bundle whose layers predict on their own, as nano's do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from edgedec.bundle.manifest import MANIFEST


def first_layers(source: Path, folder: Path, layers: int) -> Path:
    """A bundle of the first `layers` layers of the one at `source`, for the native and the reference engine."""
    folder.mkdir(parents=True)
    about = json.loads((source / MANIFEST).read_text("utf-8"))
    about["spec"]["layers"] = about["spec"]["layers"][:layers]
    blocks = sum(map(len, about["spec"]["layers"]))
    about["tensors"] = {
        name: facts
        for name, facts in about["tensors"].items()
        if not name.startswith("blocks.") or int(name.split(".")[1]) < blocks
    }
    kept = (about["weights"], about["text"]["tokenizer"])
    about["files"] = {name: about["files"][name] for name in kept}
    about |= {"name": f"{about['name']}-{layers}", "kv_formats": ["f32"], "parity": None}
    about |= {part: {} for part in ("artifacts", "heads", "drafts", "kv_scales")}
    for name in kept:
        shutil.copyfile(source / name, folder / name)
    (folder / MANIFEST).write_text(json.dumps(about), "utf-8")
    return folder
