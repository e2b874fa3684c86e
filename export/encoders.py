"""What the export of a text encoder does otherwise: facts of its texts, and a check of its vectors instead of its
logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import EncoderFacts, WeightFormat
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.export_options import ExportOptions
from edgedec.export.row_scales import fit_rows
from edgedec.export.weights import ROW, ROW_BLOCK
from edgedec.runtime import RuntimeOptions, choose_runtime, open_runtime
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec

DECODER_FORMAT: WeightFormat = "int4"
# Of models as small as encoders are, four bits are felt.
ENCODER_FORMAT: WeightFormat = "int8"
_TOKENS, _LEAST = 32, {"f32": 0.9999, "f16": 0.9999, "int8": 0.9, "int4": 0.0}


def require_encoder_options(spec: ModelSpec, kv: Sequence[str], kv_heads: float, tokens: int) -> None:
    """UsageError for options that an encoder has no use for, CheckpointError for the tokenizer of another model.
    tokens: of the tokenizer, 0: there is none."""
    if spec.output is None:
        return
    if kv_heads:
        raise UsageError(f"--kv-heads: {spec.architecture} encodes texts, it keeps no cache")
    if not spec.causal and tuple(kv) != ("f32",):
        raise UsageError(f"--kv {','.join(kv)}: {spec.architecture} encodes texts, it keeps no cache; leave it out")
    if tokens > spec.vocab_size:
        raise CheckpointError(
            f"tokenizer.json: {tokens} tokens, the model has {spec.vocab_size}: it is the tokenizer of another model"
        )


def encoder_facts(source: Checkpoint, spec: ModelSpec) -> EncoderFacts | None:
    """How texts are given to the model; None for one that only generates text."""
    return None if spec.output is None and source.modes is None else source.modules.facts


def usual_format(source: Checkpoint, spec: ModelSpec) -> WeightFormat:
    """The format of matrices where none is asked for."""
    return DECODER_FORMAT if encoder_facts(source, spec) is None else ENCODER_FORMAT


def block_of(source: Checkpoint, spec: ModelSpec, body: WeightFormat, options: ExportOptions) -> int:
    """Weights that share a scale: as many as asked for, else of a text encoder's int8 matrices all of a row, unless the
    checkpoint has scales of its own or passes choose the integers."""
    if options.block is not None:
        return options.block
    chosen = source.quantization is not None or options.passes or options.quality != "fast"
    return ROW if body == "int8" and fit_rows(spec) and not chosen else ROW_BLOCK


def check_encoder(
    bundle: Bundle,
    spec: ModelSpec,
    read: Callable[[str, int, int], NDArray[np.float32]],
    formats: Mapping[str, str],
    threads: int,
) -> None:
    """CheckpointError if the states of a bundle's rows are not those of its checkpoint. The floats run in the reference
    on tokens that are drawn; entry and output are the host's in both. spec: the checkpoint's, of which the bundle may
    have other blocks."""
    texts = [_drawn(spec)]
    runtime = open_runtime(choose_runtime(bundle), bundle, RuntimeOptions(threads=threads))
    found = next(TextRunner(bundle, runtime).hidden(texts))
    expected = next(TextRunner(bundle, Reference(spec, read)).hidden(texts))
    cosine = (found * expected).sum(1) / (np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1) + 1e-30)
    least = min(_LEAST[fmt] for fmt in formats.values())
    if not np.isfinite(found).all() or float(cosine.mean()) < least:
        raise CheckpointError(
            f"the bundle does not compute what its checkpoint does: a cosine of {float(cosine.mean()):.4f} between "
            "their states. Nothing was written; --no-check writes it as it is"
        )


def _drawn(spec: ModelSpec) -> EncodedText:
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, min(_TOKENS, spec.context_length))
    return EncodedText(ids.tolist(), [0] * len(ids))
