"""What benchmarks share: lists in flags, words for people, the lines above a table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from edgedec.cli._output import duration

INTERRUPTED = 130


def parse_rows(text: str, flag: str = "--rows") -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4), ascending and each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{flag} {text}: must be numbers of 1 or more with commas between")
    return tuple(sorted({int(part) for part in parts}))


def names_in(text: str) -> list[str]:
    """ "a, b,a" -> ["a", "b"]."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def spec_list(text: str) -> list[str]:
    """ "copy,recycling:fixed=8,top=4" -> ["copy", "recycling:fixed=8,top=4"]: options have commas of their own."""
    names: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return list(dict.fromkeys(names))


def expect(what: str) -> Callable[[float], None]:
    """A function that prints the expected duration of a measurement on stderr."""

    def say(seconds: float) -> None:
        if seconds >= 3:
            print(f"{what}: about {duration(seconds)}; Ctrl-C ends it with what is measured by then", file=sys.stderr)

    return say


def plural(n: int, noun: str) -> str:
    """2, "thread" -> "2 threads"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def show_header(report: dict[str, Any], how: str) -> None:
    """The host; the model, what ran it, and how it was measured."""
    show_host(report)
    print(f"{report['model']}: {report['bits_per_weight']:.2f} bits a weight, {runs_on(report)}; {how}")


def show_host(report: dict[str, Any]) -> None:
    host = report["host"]
    print(f"{host['cpu']}, {host['cores']} cores, {host['os']}")


def runs_on(report: dict[str, Any]) -> str:
    """The engine, its threads and its cache."""
    return f"{report['engine']}, {plural(report['threads'], 'thread')}, KV {report['kv']}"


def end_if_interrupted(interrupted: bool, message: str = "") -> None:
    """Leave with the exit code of an interrupt; the message names what was measured by then."""
    if not interrupted:
        return
    if message:
        print(message, file=sys.stderr)
    raise typer.Exit(INTERRUPTED)
