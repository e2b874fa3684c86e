"""What a checkpoint itself computes for a text, to compare an import with: by transformers, or by edgedec's own float
model where that knows the architecture and torch is absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import CheckpointError, EdgedecError
from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.layers import through_layer
from edgedec.models import FAMILY as ARCHITECTURES
from edgedec.runtime import Rows
from edgedec.runtime.long_ropes import with_long_ropes
from edgedec.runtimes.reference import Reference

# Older ones do not read what newer ones write (`older_config`).
_TRANSFORMERS = 5
Ids = NDArray[np.int64]


class Expected(NamedTuple):
    """logits float32 [n, vocab_size], and what computed them."""

    logits: NDArray[np.float32]
    by: str


def checkpoint_logits(folder: Path, config: dict[str, Any], ids: Ids) -> Expected | None:
    """The checkpoint's logits of a text; None where nothing here can compute them."""
    if _has_transformers():
        return _of_transformers(folder, ids)
    if config.get("model_type") not in ARCHITECTURES:
        return None
    try:
        return Expected(_of_edgedec(folder, ids), "edgedec's float model")
    except EdgedecError:
        return None


def _has_transformers() -> bool:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return False
    return int(version("transformers").split(".")[0]) >= _TRANSFORMERS


def _of_transformers(folder: Path, ids: Ids) -> Expected | None:
    import torch
    import transformers

    how = {"dtype": torch.float32, "attn_implementation": "eager", "use_safetensors": True, "local_files_only": True}
    with _offline():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, **how, output_loading_info=True)
        except (ValueError, KeyError, ImportError, OSError, RuntimeError) as error:
            why = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{folder}: transformers cannot load it, to check the import by: {why}") from None
    if info["missing_keys"]:
        raise CheckpointError(f"{folder}: lacks weights of its architecture, among them {min(info['missing_keys'])}")
    with torch.no_grad():
        logits = model.eval()(torch.tensor([ids.tolist()])).logits[0].float().numpy()
    return Expected(logits, f"transformers {transformers.__version__}")


@contextmanager
def _offline() -> Iterator[None]:
    """Nothing is downloaded, and nothing printed but what fails."""
    logging: Any = import_module("transformers.utils.logging")
    before, said = os.environ.get("HF_HUB_OFFLINE"), logging.get_verbosity()
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(said)
        logging.enable_progress_bar()
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _of_edgedec(folder: Path, ids: Ids) -> NDArray[np.float32]:
    """A layer at a time, as an export does it."""
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec(None)
    parts = checkpoint.weights(spec)
    reference = Reference(spec, lambda name, start, stop: checkpoint.read(parts[name], start, stop))
    runtime = cast(Reference, with_long_ropes(reference))
    cache, hidden = runtime.new_cache(len(ids)), runtime.embed(Rows.chain(ids, 0))
    for layer in range(spec.n_layers):
        hidden = through_layer(runtime, cache, hidden, ids, layer, runtime.capabilities.prefill_chunk)
    return runtime.head(hidden)
