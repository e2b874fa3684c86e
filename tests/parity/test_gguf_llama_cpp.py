"""llama.cpp and edgedec on the same GGUF file: the greedy tokens of the same floats, near where more is rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_architectures as architectures
import numpy as np
import pytest
import readings as r
from gguf_models import MODELS
from ggufs import gguf

from edgedec.bundle import Bundle
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.gguf.types import OWN, SUGGESTED
from edgedec.runtime import RuntimeOptions, open_runtime

pytest.importorskip("llama_cpp", reason="comparing with llama.cpp needs the package llama_cpp")

IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()
# Types that a bundle holds as they are, and its format for each.
KEPT = {"F32": "f32", "F16": "f16", "Q8_0": "int8", "Q4_0": "int4"}
# llama.cpp's names of files, and the type that all their matrices have.
PURE = {
    **{kind: kind for kind in ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q6_K", "IQ4_NL", "IQ4_XS")},
    **{f"{kind}_M": kind for kind in ("Q3_K", "Q4_K", "Q5_K")},
}
# Layers that no model of `readings` has.
OTHERS = ("llama_bias_yarn_tied", "smollm3", "granitemoe", "qwen3_moe")


def native(path: Path, folder: Path, **options: Any) -> tuple[Bundle, Any]:
    """The bundle of a file, and the CPU engine with it."""
    bundle = export(str(path), folder, ExportOptions(check=False, runtimes=("native",), **options))
    return bundle, open_runtime("native", bundle, RuntimeOptions(threads=1))


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("name", r.MODELS)
def test_the_same_tokens_as_llama_cpp(name: str, kind: str, tmp_path: Path) -> None:
    """64 greedy ones of the kept weights in float arithmetic, each program following its own."""
    path = r.write(r.MODELS[name](), tmp_path / "m.gguf", kind)
    bundle, ours = native(path, tmp_path / "b", weights=KEPT[kind])
    matrices = {name: t.format for name, t in bundle.manifest.tensors.items() if name in bundle.spec.matrices}
    assert set(matrices.values()) - {"f32"} == {KEPT[kind]} - {"f32"}  # routers of experts are f32
    integers = kind in ("Q8_0", "Q4_0")
    wanted = r.llama_cpp_greedy(r.floats_by_llama_cpp(path) if integers else path, IDS[:8], 64)
    assert len(set(wanted)) > 8
    assert r.greedy(open_runtime("reference", bundle) if integers else ours, IDS[:8], 64) == wanted
    # As they run: of integers both round activations to 8 bits, and what is nearly a tie may fall to either side.
    text = [*IDS[:8], *wanted]
    theirs, found = r.llama_cpp_logits(path, text), r.all_logits(ours, text)
    far, same = r.kl(theirs, found), (theirs.argmax(1) == found.argmax(1)).mean()
    print(f"{name} {kind}: KL {far:.1e}, {same:.0%} same")
    assert far < (1e-5 if not integers else 0.1 if name == "Mixtral" else 2e-3)  # a router may choose another expert
    assert same > (0.85 if integers else 0.98)


@pytest.mark.parametrize("kind", PURE)
def test_every_type_is_read_as_llama_cpp_reads_it(kind: str, tmp_path: Path) -> None:
    """64 greedy tokens of the file's values: llama.cpp's own floats of it, and ours."""
    floats = r.write(r.MODELS["Llama"](), tmp_path / "f.gguf")
    path = r.quantized_by_llama_cpp(f"MOSTLY_{kind}", floats, tmp_path / "m.gguf", pure=True)
    assert {t.tensor_type.name for t in gguf.GGUFReader(path).tensors} == {PURE[kind], "F32"}
    ours, theirs = r.of_file(path), r.floats_by_llama_cpp(path)
    wanted = r.llama_cpp_greedy(theirs, IDS[:8], 64)
    assert len(set(wanted)) > 8
    assert r.greedy(ours, IDS[:8], 64) == wanted
    assert r.kl(r.llama_cpp_logits(theirs, wanted), r.all_logits(ours, wanted)) < 1e-5


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_too(name: str, tmp_path: Path) -> None:
    path = r.write(MODELS[name](), tmp_path / "m.gguf")
    bundle, ours = native(path, tmp_path / "b", weights="f32")
    found = r.llama_cpp_logits(path, IDS)
    far = np.abs(found - r.all_logits(r.of_file(path), IDS)).max()
    print(f"{name}: {far:.1e}")
    assert far < 0.05
    assert (found.argmax(1) == r.all_logits(ours, IDS).argmax(1)).mean() > 0.9
    n = min(64, bundle.spec.context_length - 8)
    assert r.greedy(ours, IDS[:8], n) == r.llama_cpp_greedy(path, IDS[:8], n)


@pytest.mark.parametrize("name", ["smallthinker", "smallthinker_softmax"])
def test_routers_that_read_the_state_before_attention(name: str, tmp_path: Path) -> None:
    """With layers that turn no heads, as llama.cpp has them where there is a window, for which it takes 4096."""
    window = {"attention.sliding_window": 4096} if name == "smallthinker" else {}
    _, path = architectures.write(name, tmp_path / "m.gguf", **window, **r.NAMES)
    bundle, ours = native(path, tmp_path / "b", weights="f32")
    assert [block.rope for block in bundle.spec.attention.values()] == [
        0 if i % 4 or not window else None for i in range(5)
    ]
    theirs = r.llama_cpp_logits(path, IDS)
    for runtime in (r.of_file(path), ours):
        far = np.abs(theirs - r.all_logits(runtime, IDS)).max() / theirs.std()
        print(f"{name}: {far:.1e}")
        assert far < 1e-4
    assert r.greedy(ours, IDS[:8], 64) == r.llama_cpp_greedy(path, IDS[:8], 64)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_llama_cpp_is_as_near_on_the_same_integers(kind: str, tmp_path: Path) -> None:
    path = r.write(r.MODELS["Llama"](), tmp_path / "m.gguf", kind)
    exact, ours = r.all_logits(r.of_file(path), IDS), r.all_logits(native(path, tmp_path / "b")[1], IDS)
    found = r.llama_cpp_logits(path, IDS, "f16")
    assert r.rms(ours - exact) < 0.1 * exact.std()  # activations are rounded to 8 bits, there as here
    assert r.rms(found - ours) < 0.1 * exact.std()
    assert r.rms(ours - exact) < 1.5 * r.rms(found - exact)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "Q4_0", "Q5_1"])
def test_files_that_llama_cpp_quantized(kind: str, tmp_path: Path) -> None:
    """Types mixed as it mixes them: the file's own values give its logits, and the bundle is near them."""
    floats = r.write(r.MODELS["Llama"](), tmp_path / "f.gguf")
    path = r.quantized_by_llama_cpp(f"MOSTLY_{kind}", floats, tmp_path / "m.gguf")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert set(kinds.values()) > {"F32"}
    mixed = export(str(path), tmp_path / "m", ExportOptions(check=False))
    formats = {name: t.format for name, t in mixed.manifest.tensors.items() if name.startswith("blocks")}
    down = kinds["blk.0.ffn_down.weight"]
    assert formats["blocks.1.down"] == OWN.get(down, SUGGESTED[down])
    assert kind != "Q4_K_M" or set(formats.values()) >= {"int4", "int6", "int8"}
    one, other = (r.all_logits(open_runtime(name, mixed), IDS) for name in ("native", "ort"))
    assert r.rms(one - other) < 0.2
    exact, theirs = r.all_logits(r.of_file(path), IDS), r.llama_cpp_logits(path, IDS)
    ours = r.all_logits(native(path, tmp_path / "b", weights="int8")[1], IDS)
    assert r.rms(theirs - exact) < 0.1 * exact.std()
    assert r.rms(ours - exact) < 0.2 * exact.std()
    far, near = r.kl(theirs, one), r.kl(theirs, ours)
    print(f"{kind}: KL {far:.4f}, with --weights int8 {near:.4f}")
    assert near < 0.02
    # What is not kept, matrices of several types, is rounded to 8 bits; activations are, everywhere.
    assert far < 1.5 * near + 1e-5
