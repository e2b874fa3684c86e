"""The other engines of `edgedec bench cache`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from edgedec.cli._output import duration, print_table

if TYPE_CHECKING:
    import edgedec
    from edgedec.bench.cache_peers import Peer

NAMES = ("llama.cpp",)


def checked(text: str) -> list[str]:
    """The names of --peers."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in NAMES:
            raise typer.BadParameter(
                f"--peers {text}: no engine {name!r} to compare with; there are: {', '.join(NAMES)}"
            )
    return list(dict.fromkeys(found))


@contextmanager
def opened(
    model: edgedec.Model, path: str, names: list[str], steps: bool, report: dict[str, Any]
) -> Iterator[dict[str, Peer]]:
    """The engines, with the weights as they read them while they are measured; those that cannot take part are named
    in report["skipped"]. steps: prompts are filled in, not read."""
    from edgedec.bench.cache_cost import STEPS
    from edgedec.bench.cache_peers import llama_cpp
    from edgedec.cli._bench_peers import convert

    if not names:
        yield {}
        return
    with TemporaryDirectory(prefix="edgedec-") as folder:
        gguf = Path(folder) / "weights.gguf"
        if reason := convert(model.bundle, gguf):
            leave_out(report, "llama.cpp", reason)
            yield {}
        else:
            yield {"llama.cpp": llama_cpp(path, str(gguf), report["threads"], report["kv"], STEPS, steps)}


def leave_out(report: dict[str, Any], name: str, reason: str) -> None:
    """Note that an engine took no part, and why."""
    report.setdefault("skipped", {})[name] = reason
    print(f"edgedec bench cache: left out: {name}: {reason}", file=sys.stderr)


def show(report: dict[str, Any]) -> None:
    """The table of the other engines."""
    rows = [
        (
            name,
            n,
            f"{f['prefill_ratio']:.2f}" if "prefill_ratio" in f else "",
            f"{f['step_ratio']:.2f}",
            duration(f["prefill_s"]) if "prefill_s" in f else "",
            f"{f['step_ms']:.2f}",
        )
        for name, found in report.get("peers", {}).items()
        for n, f in found.items()
    ]
    if rows:
        header = ("engine", "context", "prefill ratio", "step ratio", "prefill", "step ms")
        print_table(rows, header, "Other engines on the same weights; ratios: theirs over our whole cache")
