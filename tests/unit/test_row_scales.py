"""Text encoders of int8: a scale a row, of inputs evened out (`export/row_scales.py`)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import encoders_golden
import numpy as np
import pytest
from checkpoints import write_llama
from encoder_checkpoints import sentence_encoder

from edgedec.bundle import Bundle
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.export import row_scales
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.opening import open_source
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtimes.reference.numeric import Weights
from edgedec.spec import Attention, Mlp, ModelSpec
from edgedec.spec.newer import SCALED, newer

QUICK = ExportOptions(check=False, runtimes=())
# A norm before a block, LayerNorm or RMS, and none.
KINDS = {"bert": "scale", "modernbert-score": "layer", "eurobert": "rms"}


def checkpoint(folder: Path, name: str) -> Path:
    of = encoders_golden.golden(name)
    return encoders_golden.write(folder, of.config, of.tensors)


def in_blocks(bundle: Bundle) -> list[str]:
    tensors = bundle.manifest.tensors
    return [name for name, tensor in tensors.items() if tensor.format == "int8" and not tensor.row_scales]


def states(bundle: Bundle, engine: str = "native") -> np.ndarray:
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1))
    ids = np.random.default_rng(3).integers(0, bundle.spec.vocab_size, 12).tolist()
    return next(TextRunner(bundle, runtime).hidden([EncodedText(ids, [0] * 12)]))


def test_int8_encoders_get_scales_of_rows_and_keep_the_embedding_in_blocks(tmp_path: Path) -> None:
    source = str(sentence_encoder(tmp_path / "c"))
    bundle = export(source, tmp_path / "b", ExportOptions())
    assert (bundle.manifest.quantization["block"], bundle.manifest.version) == ("row", 9)
    assert in_blocks(bundle) == ["embed"]
    layouts = {name: tensor.layout for name, tensor in bundle.manifest.tensors.items() if tensor.format == "int8"}
    assert {name for name, layout in layouts.items() if layout == "rows"} == {"embed"}  # a row a token is read
    assert SCALED in newer(bundle.spec)
    assert {block.norm for block in bundle.spec.blocks} == {"scale"}


@pytest.mark.parametrize(
    "options",
    [{"block": 32}, {"weights": "int4"}, {"weights": "f32"}, {"passes": "gptq", "calibrate": Path("t.txt")}],
)
def test_what_is_asked_for_otherwise_stays_in_blocks(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(str(sentence_encoder(tmp_path / "c")))
    from edgedec.export.encoders import block_of

    asked = replace(QUICK, **options)
    body = asked.weights or "int8"
    assert block_of(source, source.spec(), body, asked) == 32
    assert block_of(source, source.spec(), "int8", QUICK) == 0


def test_decoders_and_a_convolution_stay_in_blocks(tmp_path: Path) -> None:
    decoder = export(str(write_llama(tmp_path / "l")), tmp_path / "d", replace(QUICK, weights="int8"))
    assert decoder.manifest.quantization["block"] == "32"
    assert not any(tensor.row_scales for tensor in decoder.manifest.tensors.values())
    assert decoder.manifest.tensors["embed"].layout == "interleave16"
    conv = export(str(checkpoint(tmp_path / "c", "deberta-conv")), tmp_path / "b", QUICK)
    assert conv.spec.entry is not None
    assert conv.spec.entry.conv
    assert conv.manifest.quantization["block"] == "32"


@pytest.mark.parametrize("name", KINDS)
def test_the_same_model_with_inputs_evened_out(tmp_path: Path, name: str) -> None:
    """In floats nothing changes, though every matrix that reads a state does."""
    source = open_source(str(checkpoint(tmp_path / "c", name)))
    spec = source.spec()
    read = cache(lambda tensor, start, stop: source.read(source.weights(spec)[tensor], start, stop))
    found = row_scales.row_scales(spec, read, frozenset(), "int8")
    assert found.spec is not None
    assert found.read is not None
    assert KINDS[name] in {block.norm for block in found.spec.blocks}
    bundle = export(str(source.folder), tmp_path / "b", replace(QUICK, weights="f32"))
    expected = states(bundle, "reference")
    changed = written(tmp_path / "changed", bundle, found.spec, found.read)
    for engine in ("reference", "native", "ort"):
        np.testing.assert_allclose(states(changed, engine), expected, atol=1e-4)
    for b, block in enumerate(spec.blocks):
        matrix = f"blocks.{b}.{'qkv' if block.kind == 'attention' else getattr(block, 'up', '')}"
        before, after = (of(matrix, 0, spec.shapes[matrix][0]) for of in (read, found.read))
        factors = after / before
        np.testing.assert_allclose(factors, factors[:1].repeat(len(factors), 0), rtol=1e-3)
        assert factors.max() / factors.min() > 1.2
        assert abs(np.log(factors[0]).mean()) < 1e-3


def written(folder: Path, like: Bundle, spec: ModelSpec, read: Weights) -> Bundle:
    """A bundle of f32 with this model."""
    from edgedec.export.writer import BundleWriter, Contents

    folder.mkdir()
    formats = {"body": "f32", "head": "f32", "embed": "f32"}
    contents = Contents("changed", spec, like.manifest.text, formats, 32, ("f32",), encoder=like.manifest.encoder)

    def fill(add: Any) -> dict[str, Any]:
        for tensor in spec.tensors():
            add(tensor, lambda start, stop, tensor=tensor: read(tensor, start, stop))
        return {}

    BundleWriter(folder, contents).write(fill)
    return Bundle.open(folder)


def louder(folder: Path, tensor: str, inputs: list[int], by: float, more: float = 0.0) -> Path:
    """The checkpoint with some values of a tensor changed."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(tensor))
    tensors[name][..., inputs] = tensors[name][..., inputs] * by + more
    save_file(tensors, path, {"format": "pt"})
    return folder


def test_inputs_that_are_large_in_every_row_cost_nothing() -> None:
    """Two inputs forty times as large as the others, of small weights, as encoders have them."""
    rng = np.random.default_rng(1)
    inputs, matrix = (rng.standard_normal((n, 48)).astype(np.float32) for n in (200, 48))
    inputs[:, [5, 17]] *= 40
    matrix[:, [5, 17]] /= 40
    spec = ModelSpec("rows", 50, 48, 64, ((Attention(2, 2, 8, 1.0, None), Mlp(8)),), 1e-5, True, ())
    factors = row_scales._factors(inputs, matrix)
    assert factors.argsort()[-2:].tolist() in ([5, 17], [17, 5])
    assert spec.shapes["blocks.0.qkv"] == (48, 48)
    plain = row_scales._change(spec, lambda *_: matrix, "blocks.0.qkv", inputs)
    evened = row_scales._change(
        spec, lambda *_: (matrix * factors).astype(np.float32), "blocks.0.qkv", inputs / factors
    )
    step = np.abs(inputs).max(axis=1, keepdims=True) / 127
    rounded = np.round(inputs / step) * step - inputs
    of_inputs = np.linalg.norm(rounded @ matrix.T) / np.linalg.norm(inputs @ matrix.T)
    assert of_inputs < plain < 1.3 * of_inputs
    assert evened < plain / 5


def test_a_matrix_that_rows_would_spoil_stays_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One input of `down` is so large that a scale of its row leaves the others nothing."""
    source = checkpoint(tmp_path / "c", "bert")
    louder(source, "layer.1.intermediate.dense.bias", [3], 0.0, 300.0)
    louder(source, "layer.1.output.dense.weight", [3], 1e-2)
    assert in_blocks(export(str(source), tmp_path / "b", QUICK)) == ["embed", "blocks.3.down"]
    monkeypatch.setattr(row_scales, "_MOST", np.inf)
    assert in_blocks(export(str(source), tmp_path / "all", QUICK)) == ["embed"]


def test_integers_of_the_checkpoint_are_stored_as_they_are(tmp_path: Path) -> None:
    source = open_source(str(checkpoint(tmp_path / "c", "bert")))
    spec = source.spec()
    read = cache(lambda tensor, start, stop: source.read(source.weights(spec)[tensor], start, stop))
    found = row_scales.row_scales(spec, read, frozenset(("embed", "blocks.0.qkv")), "int8")
    assert found.spec is not None
    assert [block.norm for block in found.spec.blocks] == ["none", *["scale"] * (spec.n_blocks - 1)]
    assert not found.kept
    assert "embed" not in row_scales.row_scales(spec, read, frozenset(), "f16").kept
