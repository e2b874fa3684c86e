"""`edgedec bench --compare A.json B.json`: two reports beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedec.cli._output import print_table
from edgedec.errors import UsageError

# Numbers that say how something was measured, or of which nothing is better or worse.
_SETTINGS = ("host", "versions", "spread", "speed_ratios", "tasks", "prompt_tokens", "differ", "repetitions", "threads")


def read_report(path: Path) -> dict[str, Any]:
    """What a bench command printed with --json."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or "host" not in report:
        raise UsageError(f"{path}: not a report of edgedec bench --json")
    return report


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """{"differences": what was measured differently, "rows": {name: {a, b, ratio, apart}}}; apart: the ranges of both
    do not overlap (None where only one value is known)."""
    first, second = dict(_numbers(a)), dict(_numbers(b))
    rows = {}
    for name in (name for name in first if name in second):
        (x, low_x, high_x), (y, low_y, high_y) = first[name], second[name]
        ranged = low_x != high_x or low_y != high_y
        apart = (low_x > high_y or low_y > high_x) if ranged else None
        rows[name] = {"a": x, "b": y, "ratio": y / x if x else None, "apart": apart}
    about = ("model", "host", "threads", "prompt", "generate", "kv", "engine")
    return {"differences": [key for key in about if a.get(key) != b.get(key)], "rows": rows}


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, tuple[float, float, float]]]:
    """(name, (median, least, largest)) of every number that was measured."""
    if isinstance(value, dict) and {"median", "min", "max"} <= set(value):
        yield name, (value["median"], value["min"], value["max"])
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _SETTINGS:
                yield from _numbers(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            label = inner.get("label", i) if isinstance(inner, dict) else i
            yield from _numbers(inner, f"{name}.{label}" if name else str(label))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, (value, value, value)


def show(a: Path, b: Path, found: dict[str, Any]) -> None:
    """The table for people."""
    if found["differences"]:
        print(f"measured differently: {', '.join(found['differences'])}")
    changed = {name: row for name, row in found["rows"].items() if row["a"] != row["b"]}
    rows = [
        (name, f"{row['a']:.4g}", f"{row['b']:.4g}", "" if row["ratio"] is None else f"{row['ratio']:.2f}", _mark(row))
        for name, row in changed.items()
    ]
    print_table(rows, ("", a.name, b.name, "ratio", "ranges"))
    print(f"\n{len(found['rows']) - len(changed)} of {len(found['rows'])} numbers are the same")


def _mark(row: dict[str, Any]) -> str:
    return {None: "", True: "apart", False: "overlap"}[row["apart"]]
