"""libedgedec reads the formats that only GGUF's types have, and refuses what cannot be one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ggufs
import numpy as np
import pytest
import zoo
from clibrary import needs_compiler, opened
from readings import greedy

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleCorrupt
from edgedec.export.exporter import ExportOptions, export
from edgedec.runtimes.native import NativeRuntime

IDS = np.random.default_rng(1).integers(3, 101, 8).tolist()
SIZES: dict[str, Any] = {
    **{"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64},
    "rms_norm_eps": 1e-5,
}
KINDS = {
    "blk.1.attn_output": "MXFP4",
    "token_embd": "Q6_K",
    "attn_output": "Q2_K",
    "ffn_down": "Q3_K",
    "ffn_up": "IQ4_NL",
    "ffn_gate": "IQ4_NL",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("kept")
    path = ggufs.write(zoo._causal("Llama", **SIZES)(), folder / "m.gguf", KINDS | {"": "Q5_K"})
    return export(str(path), folder / "b", ExportOptions(check=False, runtimes=("native",)))


@needs_compiler
def test_the_library_generates_what_python_generates(bundle: Bundle) -> None:
    formats = {t.format for t in bundle.manifest.tensors.values()} - {"f32"}
    assert formats == {"int6", "uint2", "int3", "nl4", "int5", "mx4"}
    expected = greedy(NativeRuntime(bundle, bundle.manifest.kv_formats[0], 1), IDS, 32)
    assert len(set(expected)) > 4
    session = opened(bundle.path).session()
    assert session.generate(IDS, max_tokens=32, temperature=0.0, ignore_eos=True) == expected


OF_PARTS: list[dict[str, Any]] = [
    *({"block": 32}, {"parts": 0}, {"offsets": 64}, {"parts": 1 << 40}),
    *({"format": "int5"}, {"format": "int8"}, {"format": "mx4"}),
]
OF_32: list[dict[str, Any]] = [{"block": 64}, {"zeros": 64}, {"offsets": 64}, {"parts": 64}, {"format": "uint2"}]


@pytest.mark.parametrize(
    ("fmt", "change"), [*(("uint2", change) for change in OF_PARTS), *(("mx4", change) for change in OF_32)]
)
def test_both_refuse_what_no_format_is(bundle: Bundle, fmt: str, change: dict[str, Any], tmp_path: Path) -> None:
    for file in bundle.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = json.loads((tmp_path / MANIFEST).read_text("utf-8"))
    name = next(name for name, t in data["tensors"].items() if t["format"] == fmt)
    data["tensors"][name] |= change
    (tmp_path / MANIFEST).write_text(json.dumps(data), "utf-8")
    with pytest.raises(BundleCorrupt, match=r"tensor|lies outside|parts"):
        Bundle.open(tmp_path)
    with pytest.raises(Exception, match=r"tensor|lies outside|parts"):
        opened(tmp_path)
