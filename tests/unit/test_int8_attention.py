"""Text encoders whose matrices have a scale a row attend in integers too (`kernels/cpu/attention_int8.inl`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import encoders_golden
import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.export import row_scales
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels import cpu
from edgedec.runtime import Call, Outputs, Rows, RuntimeOptions, open_runtime
from edgedec.runtimes.native import NativeRuntime
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import Attention

QUICK = ExportOptions(check=False, runtimes=())
POSITIONS = 700
# Less than a vector, a tile and its rest, chunks of 256 keys and what is around them.
LENGTHS = (1, 2, 17, 63, 64, 130, 255, 256, 257, 515, 700)


def checkpoint(folder: Path, key: float = 0.0) -> Path:
    """A BERT with heads of 16 for longer texts; key: what is added to the first value of every key."""
    from safetensors.numpy import load_file, save_file

    of = encoders_golden.golden("bert")
    shapes = {name: [POSITIONS, 48] if "position_embeddings" in name else shape for name, shape in of.tensors.items()}
    encoders_golden.write(folder, of.config | {"max_position_embeddings": POSITIONS}, shapes)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("key.bias"):
            tensors[name][::16] += key
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("rows")
    return export(str(checkpoint(folder / "c")), folder / "b", QUICK)


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[EncodedText]:
    rng = np.random.default_rng(3)
    return [EncodedText(rng.integers(0, 101, n).tolist(), [0] * n) for n in lengths]


def states(bundle: Bundle, given: list[EncodedText], threads: int = 1, isa: str | None = None) -> list[np.ndarray]:
    return list(TextRunner(bundle, NativeRuntime(bundle, "f32", threads, isa)).hidden(given))


def cached(bundle: Bundle) -> int:
    """Bytes of the keys and values of a short text."""
    runtime = NativeRuntime(bundle, "f32", 1)
    cache = runtime.new_cache(64)
    state = np.zeros((3, bundle.spec.hidden_size), np.float32)
    runtime.forward([Call(Rows.text(None, state), cache, range(bundle.spec.n_blocks), state, Outputs())])
    return cache.nbytes


def test_keys_and_values_are_bytes(rows: Bundle, tmp_path: Path) -> None:
    blocks = export(str(checkpoint(tmp_path / "c")), tmp_path / "b", replace(QUICK, block=32))
    assert cached(rows) * 64 == cached(blocks) * 20  # 16 values: bytes and a scale; floats


def test_long_and_short_texts_are_near_the_reference(rows: Bundle) -> None:
    exact = TextRunner(rows, open_runtime("reference", rows, RuntimeOptions()))
    for text, expected, found in zip(texts(), exact.hidden(texts()), states(rows, texts()), strict=True):
        cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.min() > 0.999, len(text.ids)
        assert not np.array_equal(found, expected)


def test_bytes_do_not_depend_on_others_threads_or_instructions(rows: Bundle) -> None:
    given = texts()
    together = [found.tobytes() for found in states(rows, given)]
    assert [states(rows, [text])[0].tobytes() for text in given] == together
    assert [found.tobytes() for found in states(rows, given[::-1], threads=2)][::-1] == together
    isas = [isa for isa, runs in cpu.loader.isas().items() if runs]
    assert len(isas) > 1
    for isa in isas:
        assert [found.tobytes() for found in states(rows, given, isa=isa)] == together, isa


def test_keys_that_bytes_would_spoil_stay_floats(tmp_path: Path) -> None:
    """One value of every key is so large that a scale of its row leaves the others nothing; scores do not change by it,
    because it is the same in all keys."""
    source = str(checkpoint(tmp_path / "c", key=3000.0))
    bundle = export(source, tmp_path / "b", QUICK)
    attending = {f"blocks.{b}.qkv" for b in bundle.spec.attention}
    tensors = bundle.manifest.tensors
    assert {name for name, tensor in tensors.items() if tensor.format == "int8" and not tensor.row_scales} == {
        "embed",
        *attending,
    }


def test_every_drawn_text_is_attended_to_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, change = list[int](), row_scales.attention_change

    def noted(block: Attention, w: BlockWeights, text: np.ndarray) -> float:
        seen.append(len(text))
        return change(block, w, text)

    monkeypatch.setattr(row_scales, "attention_change", noted)
    bundle = export(str(checkpoint(tmp_path / "c")), tmp_path / "b", QUICK)
    assert seen == [16, 48, 64, 128] * len(bundle.spec.attention)


def test_what_attends_in_integers() -> None:
    plain = Attention(3, 3, 16, 0.25, None)
    assert row_scales.attends_in_int8(plain)
    for other in ({"window": 8}, {"softcap": 5.0}, {"distances": 4}, {"slopes": (0.5,) * 3}, {"relative": 4}):
        assert not row_scales.attends_in_int8(replace(plain, **other))
    assert not row_scales.attends_in_int8(replace(plain, head_dim=12))
