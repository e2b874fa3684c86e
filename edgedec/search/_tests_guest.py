"""Runs a program and tests of it in a worker process: the standard library only."""

from __future__ import annotations

from typing import Any


def setup(message: dict[str, Any]) -> None:
    pass


def handle(message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """How many tests pass, and what the first that fails says. A program that fails passes none."""
    names: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(message["program"], "program", "exec"), names)
    except MemoryError:
        raise
    except BaseException as error:
        return {"passed": 0, "said": _line(error)}, b""
    passed, said = 0, ""
    for test in message["tests"]:
        try:
            exec(compile(test, "test", "exec"), dict(names))
            passed += 1
        except MemoryError:
            raise
        except BaseException as error:
            said = said or f"{test.strip()[:100]}: {_line(error)}"
    return {"passed": passed, "said": said}, b""


def _line(error: BaseException) -> str:
    return f"{type(error).__name__} {' '.join(str(error)[:500].split())}".strip()[:200]
