"""The Swift package, which nobody compiles here: what it takes of the header is there, with as many arguments."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "kernels/lib/include/edgedec.h").read_text("utf-8"), flags=re.S)
SWIFT = ROOT / "android_demo" / "swift"
CODE = re.sub(r"//[^\n]*", "", (SWIFT / "Sources" / "Edgedec" / "Edgedec.swift").read_text("utf-8"))


def arguments(text: str, at: int) -> int:
    """How many arguments a call has whose parenthesis opens at `at`."""
    depth, commas, end = 0, 0, at
    while depth or end == at:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[end], 0)
        commas += text[end] == "," and depth == 1
        end += 1
    inside = text[at + 1 : end - 1].strip()
    return 0 if inside in ("", "void") else commas + 1


def functions() -> dict[str, int]:
    found = re.finditer(r"EDGEDEC_API[^;(]*?\b(edgedec_\w+)(\()", HEADER)
    return {call[1]: arguments(HEADER, call.start(2)) for call in found}


def test_calls_are_those_of_the_header() -> None:
    declared = functions()
    calls = [(call[1], arguments(CODE, call.start(2))) for call in re.finditer(r"\b(edgedec_\w+)(\()", CODE)]
    called = [(name, n) for name, n in calls if n or name in declared]  # edgedec_sampling() makes a structure
    assert len(called) > 10
    for name, n in called:
        assert declared[name] == n, name


def test_fields_and_names_are_those_of_the_header() -> None:
    structs = dict(re.findall(r"typedef struct (edgedec_\w+) \{(.*?)\} \w+;", HEADER, re.S))
    made = dict(re.findall(r"var (\w+) = (edgedec_\w+)\(\)", CODE))
    assert {"drawn", "options"} <= set(made)
    # `options` is the name of three structures.
    of = {
        name: "".join(structs[s] for n, s in re.findall(r"var (\w+) = (edgedec_\w+)\(\)", CODE) if n == name)
        for name in made
    }
    used = [(name, field) for name, field in re.findall(r"\b(\w+)\.(\w+) = ", CODE) if name in made]
    assert len(used) > 10
    for name, field in used:
        assert re.search(rf"\b{field}\b", of[name]), f"{name}.{field}"
    for constant in re.findall(r"\bEDGEDEC_\w+", CODE):
        assert re.search(rf"\b{constant}\b", HEADER), constant


def test_the_package_names_its_folders() -> None:
    manifest = (SWIFT / "Package.swift").read_text("utf-8")
    for target in re.findall(r'[tT]arget\(name: "(\w+)"', manifest) + re.findall(
        r'systemLibrary\(name: "(\w+)"', manifest
    ):
        assert (SWIFT / "Sources" / target).is_dir(), target
    shim = (SWIFT / "Sources" / "CEdgedec" / "shim.h").read_text("utf-8")
    assert "edgedec.h" in shim
