"""The ctypes mirror is `api.h`: the same structs, field by field, and the same functions."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from edgedec.kernels import cpu
from edgedec.kernels.cpu import codes, draft_structs, loader, structs

API = (Path(__file__).parents[2] / "kernels" / "cpu" / "api.h").read_text("utf-8")
CODE = re.sub(r"//[^\n]*", "", API)
STRUCTS = {
    "tensor": structs.TensorStruct,
    "norm": structs.NormStruct,
    "attention": structs.AttentionStruct,
    "mlp": structs.MlpStruct,
    "moe": structs.MoeStruct,
    "ssm": structs.SsmStruct,
    "block": structs.BlockStruct,
    "rope": structs.RopeStruct,
    "model": structs.ModelStruct,
    "lora": structs.LoraStruct,
    "route": structs.RouteStruct,
    "adapter": structs.AdapterStruct,
    "view": structs.ViewStruct,
    "sequence": structs.SequenceRows,
    "step_settings": structs.StepSettingsStruct,
    "steps": structs.StepsStruct,
    "step_result": structs.StepResultStruct,
    "drafter_options": draft_structs.DrafterOptionsStruct,
    "verified": draft_structs.VerifiedStruct,
    "calibration": draft_structs.CalibrationStruct,
    "proposal": draft_structs.ProposalStruct,
    "draft_tree": draft_structs.DraftTreeStruct,
}
SIZES = {"int32_t": 4, "uint32_t": 4, "int64_t": 8, "float": 4, "double": 8}


def fields(name: str) -> list[tuple[str, int]]:
    """Names and sizes of a struct's fields as the header has them."""
    body = re.search(rf"struct ed_{name} \{{(.*?)\}};", CODE, re.S)
    assert body
    found = []
    for line in filter(None, (part.strip() for part in body[1].split(";"))):
        kind, names = re.match(r"(?:const )?(\w+)(.*)", line, re.S).groups()  # type: ignore[union-attr]
        for declared in names.split(","):
            pointer = "*" in declared
            size = ctypes.sizeof(ctypes.c_void_p) if pointer else SIZES.get(kind)
            size = ctypes.sizeof(STRUCTS[kind.removeprefix("ed_")]) if size is None else size
            declared, count = array(declared)
            found.append((re.sub(r"[*\s]|const", "", declared), size * count))
    return found


def array(declared: str) -> tuple[str, int]:
    """A declared name without its dimension, and that: "x[ED_LEVELS - 1]" -> "x", 3."""
    found = re.fullmatch(r"(.*)\[(\w+) - (\d+)\]", declared, re.S)
    if found is None:
        return declared, 1
    most = re.search(rf"#define {found[2]} (\d+)", API)
    assert most
    return found[1], int(most[1]) - int(found[3])


@pytest.mark.parametrize("name", STRUCTS)
def test_structs(name: str) -> None:
    mirror = STRUCTS[name]
    assert [(field[0], ctypes.sizeof(field[1])) for field in mirror._fields_] == fields(name)


def test_packed_sequences_are_the_struct() -> None:
    n = len(structs.SequenceRows._fields_)
    values = [7 * i + 1 for i in range(n)]
    made = structs.SequenceRows.from_buffer_copy(structs.pack_sequence(*values))
    assert [getattr(made, name) for name, _ in structs.SequenceRows._fields_] == values


def test_the_version_is_the_header_s() -> None:
    """Beside a library of another version, too, with which the engine does not start."""
    abi = re.search(r"#define ED_ABI (\d+)", CODE)
    assert abi
    assert int(abi[1]) == loader.ABI


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
def test_functions() -> None:
    declared = set(re.findall(r"ED_API [^;]*?(ed_\w+)\(", CODE))
    assert len(declared) > 20
    for name in declared:
        assert getattr(cpu.library(), name)
    assert cpu.library().ed_abi() == loader.ABI
    assert set(codes.ERRORS) >= {int(code) for code in re.findall(r"return (-?\d+);", _checks()) if code not in ("0",)}


def _checks() -> str:
    return (Path(__file__).parents[2] / "kernels" / "cpu" / "check.cpp").read_text("utf-8")
