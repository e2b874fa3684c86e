"""The checkpoint that a training of masks begins with, and the one that it writes.

A model without a mask gets one: its vocabulary grows to the next multiple of 16, the new rows begin as the mean of the
others. One that fills masks already goes on as it was trained.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from edgedec.bundle import Bundle
from edgedec.bundle.locate import BUNDLED, find
from edgedec.bundle.manifest import MANIFEST, DiffusionFacts
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.diffusion import KEY, diffusion_facts
from edgedec.export.exits_model import load, write_model
from edgedec.export.lessons import LessonEncoder
from edgedec.export.text import TOKENIZER, ends_of
from edgedec.export.unbundled import unbundled
from edgedec.models import architecture
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

_ROUND = 16
BLOCK = 8


@dataclass(frozen=True)
class WantedFacts:
    """What the command line says of the section `diffusion`; None: as the checkpoint has it, else the default."""

    mask: int | None = None
    shift: bool | None = None
    context: str | None = None
    block: int | None = None


def checkpoint_folder(place: str, room: Path, frozen: bool = False) -> Path:
    """The folder of a checkpoint; that of a bundle is written below `room`. frozen: its weights are not trained, so
    they may be rounded."""
    if place not in BUNDLED and not (Path(place) / MANIFEST).is_file():
        return Path(place)
    return unbundled(Bundle.open(find(place)), room / "checkpoint", frozen)


def lesson_encoder(folder: Path) -> LessonEncoder:
    """Lesson -> the tokens of a row, as the checkpoint's own tokenizer gives them."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise UsageError(f"{path}: missing; train-diffusion reads texts with it")
    tokenizer = Tokenizer.from_file(str(path))
    ends = ends_of(folder, Checkpoint.open(folder).config)
    return LessonEncoder(
        lambda text, begins: tokenizer.encode(text, add_special_tokens=begins).ids, ends[0] if ends else None
    )


def facts_of(folder: Path, wanted: WantedFacts) -> tuple[DiffusionFacts, bool]:
    """The facts of the model to be, and whether the checkpoint fills masks already."""
    checkpoint = Checkpoint.open(folder)
    spec = checkpoint.spec()
    found = diffusion_facts(checkpoint.config, spec)
    given = {key: value for key, value in asdict(wanted).items() if value is not None}
    if found is not None:
        for key in ("mask", "shift", "context"):
            if given.get(key, getattr(found, key)) != getattr(found, key):
                raise UsageError(f"--{key}: {folder} was trained with {key} {getattr(found, key)}; leave it out")
        given = asdict(found) | given
    _check_mask(given.get("mask"), spec, folder)
    defaults: dict[str, Any] = {"mask": spec.vocab_size, "shift": True, "context": "causal", "block": BLOCK}
    facts = DiffusionFacts(**defaults | given)
    if facts.block < (2 if facts.shift else 1):
        raise UsageError(f"--block {facts.block}: a shifted block of one token has no mask to learn; take 2 or more")
    return facts, found is not None


def _check_mask(mask: int | None, spec: ModelSpec, folder: Path) -> None:
    if mask is not None and not 0 <= mask < spec.vocab_size:
        raise UsageError(
            f"--mask {mask}: beyond the {spec.vocab_size} tokens of {folder}; leave it out, and a token is added"
        )


def filling_model(folder: Path, facts: DiffusionFacts, length: int) -> Any:
    """The network, with a row for the mask. CheckpointError for what cannot see later tokens."""
    config = Checkpoint.open(folder).config
    spec = architecture(config).spec(config)
    for block in spec.blocks:
        if not isinstance(block, Attention | Mlp | Moe):
            raise CheckpointError(f"{folder}: masks see later tokens, which a block of kind {block.kind} cannot")
        if isinstance(block, Attention) and block.window is not None and block.window < length:
            raise CheckpointError(
                f"{folder}: its attention sees {block.window} tokens; take --length {block.window - 1}"
            )
    try:
        model = load(folder)
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{folder}: transformers cannot read it ({' '.join(str(error).split())[:200]})") from None
    for name, w in model.named_parameters():
        if not torch.isfinite(w).all():
            raise CheckpointError(f"{folder}: {name} holds values that are not finite")
    if facts.mask >= spec.vocab_size:
        _widen(model, -(-(facts.mask + 1) // _ROUND) * _ROUND)
    return model


def _widen(model: Any, size: int) -> None:
    """Rows for the mask, and for a round number of them."""
    known = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            part.weight[known:] = part.weight[:known].mean(0)


def write_filling(model: Any, facts: DiffusionFacts, source: Path, out: Path) -> None:
    """The checkpoint that `edgedec export` takes."""
    write_model(model, source, out)
    path = out / "config.json"
    config = json.loads(path.read_text("utf-8"))
    place = config["text_config"] if "vocab_size" in config.get("text_config", {}) else config
    place["vocab_size"] = model.get_input_embeddings().weight.shape[0]
    path.write_text(json.dumps(config | {KEY: asdict(facts)}, indent=2) + "\n", "utf-8")
