"""Adapters, configs and journals that say something else than they may: refused with one line, or read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama, write_safetensors

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LowRank, open_adapter, save_adapter
from edgedec.cli import main
from edgedec.errors import CheckpointError, UsageError
from edgedec.offline.journal import Journal

pytest.importorskip("onnx", reason="exporting needs onnx")

from edgedec.export.adapter import CONFIG, WEIGHTS, read_peft
from edgedec.export.exporter import ExportOptions, export

MODULE = "base_model.model.model.layers.0.self_attn.o_proj"
SETTINGS = {"peft_type": "LORA", "lora_alpha": 8}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("hostile")
    options = ExportOptions(weights="f32", check=False, runtimes=("native",))
    export(str(write_llama(folder / "source")), folder / "bundle", options)
    return Bundle.open(folder / "bundle")


def one_line(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert main([str(word) for word in argv]) == 1
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("edgedec"))
    return line


# ---- LoRA


def peft(folder: Path, a: tuple[int, ...], b: tuple[int, ...], settings: dict[str, Any]) -> Path:
    """A checkpoint with a pair of these shapes."""
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(settings))
    arrays = {f"{MODULE}.lora_{x}.weight": np.ones(shape, np.float32) for x, shape in (("A", a), ("B", b))}
    write_safetensors(folder / WEIGHTS, arrays)
    return folder


def test_a_pair_that_fits(bundle: Bundle, tmp_path: Path) -> None:
    out, inner = bundle.spec.tensors()["blocks.0.o"]
    (low,) = read_peft(peft(tmp_path / "a", (2, inner), (out, 2), SETTINGS), bundle).values()
    assert low.b.tolist() == np.full((out, 2), 4.0).tolist()


# (A, B of the matrix [OUT, IN], the settings, the message); -1 stands for OUT, -2 for IN.
PAIRS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "other ranks": ((2, -2), (-1, 3), SETTINGS, "no low-rank pair"),
    "one row for all": ((2, -2), (-1, 1), SETTINGS, "no low-rank pair"),
    "rank 0": ((0, -2), (-1, 0), SETTINGS, "no low-rank pair"),
    "a rank above the matrix": ((5000, -2), (-1, 5000), SETTINGS, "no low-rank pair"),
    "flat": ((64,), (-1, 2), SETTINGS, "no low-rank pair"),
    "no dimensions": ((), (), SETTINGS, "no low-rank pair"),
    "three dimensions": ((1, 2, -2), (-1, 2, 1), SETTINGS, "no low-rank pair"),
    "another input": ((2, 7), (-1, 2), SETTINGS, "another shape"),
    "another output": ((2, -2), (7, 2), SETTINGS, "another shape"),
    "alpha is text": ((2, -2), (-1, 2), SETTINGS | {"lora_alpha": "8"}, "lora_alpha"),
    "alpha is null": ((2, -2), (-1, 2), SETTINGS | {"lora_alpha": None}, "lora_alpha"),
    "alpha is a list": ((2, -2), (-1, 2), SETTINGS | {"lora_alpha": [8]}, "lora_alpha"),
    "patterns are a list": ((2, -2), (-1, 2), SETTINGS | {"alpha_pattern": ["o_proj"]}, "alpha_pattern"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_lora_that_does_not_fit(
    bundle: Bundle, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, inner = bundle.spec.tensors()["blocks.0.o"]
    a, b, settings, why = PAIRS[case]
    shapes = [tuple({-1: out, -2: inner}.get(size, size) for size in shape) for shape in (a, b)]
    folder = peft(tmp_path / "a", shapes[0], shapes[1], settings)
    with pytest.raises(CheckpointError, match=why):
        read_peft(folder, bundle)
    assert why in one_line(capsys, "adapter", folder, "-m", bundle.path, "-o", tmp_path / "a.lora")
    assert not (tmp_path / "a.lora").exists()


@pytest.mark.parametrize("rank", [0, 5000])
def test_an_adapter_file_of_a_rank_that_no_model_has(bundle: Bundle, tmp_path: Path, rank: int) -> None:
    out, inner = bundle.spec.tensors()["blocks.0.o"]
    low = LowRank(np.zeros((rank, inner), np.float32), np.zeros((out, rank), np.float32))
    save_adapter(tmp_path / "a.lora", "a", bundle.spec, {"blocks.0.o": low})
    with pytest.raises(UsageError, match=r"blocks\.0\.o does not fit this model"):
        open_adapter(tmp_path / "a.lora", bundle.spec)


# ---- ids of the end of a text


@pytest.mark.parametrize("ids", ["2", 2.0, True, [2, "3"], [None], {"id": 2}, -1, 1 << 40, [[2]]], ids=str)
@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
def test_ids_of_another_type(tmp_path: Path, key: str, ids: object, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_llama(tmp_path / "source", **{key: ids})
    (source / "generation_config.json").unlink(missing_ok=True)
    line = one_line(capsys, "export", source, "-o", tmp_path / "bundle", "--no-check")
    assert f"{key}: " in line
    assert "is not the number of a token" in line
    assert not (tmp_path / "bundle").exists()


# ---- journals


def test_a_header_that_comes_twice_is_read_once(tmp_path: Path) -> None:
    """As where two copies of a journal were put together."""
    journal = Journal(tmp_path / "j")
    journal.begin({"about": {"out": 1}})
    journal.add(0, "d0", {"a": 0}, False)
    header = (tmp_path / "j").read_bytes().split(b"\n")[0] + b"\n"
    with (tmp_path / "j").open("ab") as file:
        file.write(header)
    journal.close()
    again = Journal(tmp_path / "j")
    again.add(1, "d1", {"a": 1}, False)
    again.close()
    read = Journal(tmp_path / "j")
    assert (len(read.done), read.cut, read.failed) == (2, 0, 0)
    assert list(read.results()) == [b'{"a": 0}\n', b'{"a": 1}\n']
    assert read.header["about"] == {"out": 1}


def test_another_header_in_the_middle_ends_a_journal(tmp_path: Path) -> None:
    lines = []
    for place in ("one", "two"):
        journal = Journal(tmp_path / place)
        journal.begin({"about": place})
        journal.add(len(lines), "d", {"a": place}, False)
        journal.close()
        lines.append((tmp_path / place).read_bytes())
    (tmp_path / "both").write_bytes(b"".join(lines))
    read = Journal(tmp_path / "both")
    assert list(read.results()) == [b'{"a": "one"}\n']
    assert read.cut == len(lines[1])
