"""`edgedec cache`: what is kept on disk, and how to clear it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, size
from edgedec.errors import UsageError
from edgedec.storage.files import cache_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)

KINDS = {
    "costs": "what a call of k rows costs here",
    "learned": "what drafters learned (--learn)",
    "padded": "models at another's size (bench --as)",
    "converted": "GGUF files converted to bundles",
    "engines": "what calls take on each engine (--device auto)",
    "tuning.json": "schedules of compiled libraries (--tune)",
}


@app.command()
def cache(
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", metavar="NAME", show_default=False, help="Remove this folder of it, or `all`."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Show the cache folder, or clear it.

    It lies where EDGEDEC_CACHE says, else in edgedec under XDG_CACHE_HOME, else in ~/.cache/edgedec. All of it can be
    made again.

    \b
    Examples:
      edgedec cache
      edgedec cache --clear padded
      edgedec cache --clear all
    """
    folder = cache_folder()
    found = {path.name: _content(path) for path in _inside(folder)}
    freed = sum(_remove(folder, name, found) for name in clear or [])
    if json:
        kept = {path.name: _content(path) for path in _inside(folder)}
        entries = {name: {"files": files, "bytes": n} for name, (files, n) in kept.items()}
        print_json({"folder": str(folder), "entries": entries, "freed_bytes": freed})
    elif clear:
        print(f"{folder}: {size(freed)} freed")
    else:
        print(f"{folder}: {size(sum(n for _, n in found.values()))}")
        print_table(
            [
                (name, f"{n} file{'s' * (n != 1)}", size(total), KINDS.get(name, ""))
                for name, (n, total) in found.items()
            ]
        )


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _content(path: Path) -> tuple[int, int]:
    """How many files, and their bytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return len(files), sum(file.stat().st_size for file in files)


def _remove(folder: Path, name: str, found: dict[str, tuple[int, int]]) -> int:
    """Bytes that are freed."""
    if name == "all":
        return sum(_remove(folder, each, found) for each in list(found))
    if name not in found:
        raise UsageError(f"--clear {name}: not in {folder}; there are: {', '.join([*found, 'all'])}")
    path = folder / name
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path)
    return found.pop(name)[1]
