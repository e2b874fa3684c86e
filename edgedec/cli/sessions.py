"""`edgedec sessions`: saved sessions in a folder, and how they share their beginnings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table, size
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def sessions(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where sessions are saved (run --session).")],
    share: Annotated[
        bool,
        typer.Option("--share", help="Keep what sessions begin with alike once, of those there and of later ones."),
    ] = False,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="With --share: the model of the sessions.")
    ] = "nano",
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove parts that no session names any more; files of sessions stay.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Show saved sessions, what they take and what they share.

    A session is removed by removing its file, and then --clean.

    \b
    Examples:
      edgedec sessions chats --share -m ./smol
      edgedec sessions chats --clean
    """
    from edgedec.cache import store

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of saved sessions")
    if share:
        _share(folder, model)
    if clean and not store.is_store(folder):
        raise UsageError(f"{folder}: its sessions share nothing, so there is nothing to clean")
    freed = store.clean(folder) if clean else 0
    report = _report(folder) | {"freed_bytes": freed}
    if json:
        print_json(report)
    else:
        _show(report)


def _share(folder: Path, model: str) -> None:
    """Make a store of the folder, and put the whole sessions of a model in it into parts."""
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.cache import store
    from edgedec.cache.snapshot import share_file

    bundle = Bundle.open(find(model))
    whole = [path for path in store.sessions(folder) if store.magic_of(path) == store.WHOLE]
    store.make_store(folder)
    others = [path for path in whole if not share_file(path, bundle.origin, bundle.spec)]
    if others:
        names = ", ".join(path.name for path in others[:5])
        raise UsageError(f"{names}: of another model than {bundle.manifest.name}; name it with --model")


def _report(folder: Path) -> dict[str, Any]:
    from edgedec.cache import store
    from edgedec.cache.snapshot import read_file

    rows, held, damaged = list[dict[str, Any]](), dict[str, int](), set[str]()
    for path in store.sessions(folder):
        snapshot, file = read_file(path)
        parts = store.shared_cache(path, file).parts if "session" in file.header else ()
        new = [name for name in parts if name not in held]  # each part is checked once, even if shared
        held |= {name: store.part_size(folder, name) for name in new}
        damaged.update(store.damaged_parts(folder, new))
        own, shared = path.stat().st_size, sum(held[name] for name in parts)
        facts = {"own_bytes": own, "part_bytes": shared, "damaged_parts": [name for name in parts if name in damaged]}
        rows.append({"name": path.name, "tokens": len(snapshot.ids), **facts})
    total = sum(row["own_bytes"] for row in rows) + sum(held.values())
    alone = sum(row["own_bytes"] + row["part_bytes"] for row in rows)
    return {"folder": str(folder), "sessions": rows, "parts": len(held), "bytes": total, "unshared_bytes": alone}


def _show(r: dict[str, Any]) -> None:
    print(
        f"{r['folder']}: {len(r['sessions'])} sessions, {size(r['bytes'])}; if none shared {size(r['unshared_bytes'])}"
    )
    rows = [(s["name"], f"{s['tokens']} tokens", size(s["own_bytes"]), size(s["part_bytes"])) for s in r["sessions"]]
    print_table(rows, ("session", "text", "of its own", "in parts"))
    for row in r["sessions"]:
        if bad := row["damaged_parts"]:
            print(f"{row['name']}: cannot be loaded: {len(bad)} of its parts damaged or missing, {bad[0][:12]} first")
    if r["freed_bytes"]:
        print(f"{size(r['freed_bytes'])} freed")
