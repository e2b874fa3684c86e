"""The rooms of commands and measurements: signatures that can be read, functions that fit a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_PARAMETERS, MOST_LINES = 12, 40
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> int:
    """How many parameters a function has; a group of flags is one."""
    given = function.args
    return len([*given.posonlyargs, *given.args, *given.kwonlyargs])


def lines(function: Function) -> int:
    """The lines of a function's statements, without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def functions(text: str) -> Iterator[Function]:
    yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))


def of_rooms(*rooms: str) -> dict[str, Function]:
    """Every function in these folders, by file and name."""
    return {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": function
        for room in rooms
        for path in sorted((ROOT / "edgedec" / room).rglob("*.py"))
        for function in functions(path.read_text("utf-8"))
    }


def test_no_signature_is_long() -> None:
    """What a command takes together is a group of flags (`edgedec/cli/_flags/groups.py`)."""
    found = of_rooms("cli")
    assert len(found) > 300
    assert {name: parameters(f) for name, f in found.items() if parameters(f) > MOST_PARAMETERS} == {}


def test_no_function_is_long() -> None:
    found = of_rooms("cli", "bench")
    assert len(found) > 500
    assert {name: lines(f) for name, f in found.items() if lines(f) > MOST_LINES} == {}


@pytest.mark.parametrize(
    ("text", "count", "length"),
    [
        ("def f(a, /, b, *, c): pass", 3, 1),
        ('async def f(self):\n    """Says."""', 1, 0),
        (
            'def f(\n    a: int,\n) -> None:\n    """Says.\n\n    More."""\n    if a:\n        a += 1\n    return',
            1,
            3,
        ),
    ],
)
def test_what_is_counted(text: str, count: int, length: int) -> None:
    (found,) = functions(text)
    assert (parameters(found), lines(found)) == (count, length)
