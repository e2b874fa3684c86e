"""The command line of scripts that compile libedgedec for several targets. Standard library only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

Build = Callable[[str, Path, int | None], Path]


def main(arguments: Sequence[str] | None, name: str, targets: Iterable[str], build: Build) -> int:
    """The exit status: 0 if every target was built below the folder. `name`: the program's name in errors."""
    known = list(targets)
    parser = argparse.ArgumentParser(prog=name, description="Compile libedgedec for other machines by zig.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[2] / "build" / name)
    parser.add_argument("--jobs", type=int, help="compilers at once; default: as many as CPUs")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {', '.join(known)}")
    given = parser.parse_args(arguments)
    if unknown := [target for target in given.targets if target not in known]:
        parser.error(f"{unknown[0]}: not one of {', '.join(known)}")
    if find_spec("ziglang") is None:
        print(f"{name}: needs zig: pip install ziglang", file=sys.stderr)
        return 1
    wanted = given.targets or known
    built = [_built(target, given.out.resolve(), given.jobs, build) for target in wanted]
    return int(not all(built))


def _built(target: str, folder: Path, jobs: int | None, build: Build) -> bool:
    """Whether a target was built; a failure does not stop the others."""
    try:
        made = build(target, folder, jobs)
    except Exception as error:  # BuildFailed of build.py, which is no module
        print(f"{getattr(error, 'log', '')}{target}: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{target}: {made} ({made.stat().st_size / 1e6:.2f} MB)", flush=True)
    return True
