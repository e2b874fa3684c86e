"""`edgedec verify`: is every byte of a bundle what it was at export?"""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli._output import print_json, progress_bar, size
from edgedec.cli.options import Json

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    json: Json = False,
) -> None:
    """Check every file of a bundle against its hash.

    \b
    Examples:
      edgedec verify ./smol
      edgedec verify nano --json
    """
    from edgedec.bundle import Bundle
    from edgedec.model import find

    opened = Bundle.open(find(bundle))
    files = opened.manifest.files
    total, done = sum(file.size for file in files.values()), 0
    with progress_bar(quiet=json) as show:
        show("hashes", 0, total)

        def count(name: str, n: int) -> None:
            nonlocal done
            done += n
            show("hashes", done, total)

        opened.verify(count)
    if json:
        print_json({"ok": True, "bundle": str(opened.path), "files": len(files), "bytes": total, "digest": opened.digest})
    else:
        print(f"{opened.path}: ok, {len(files)} files, {size(total)}")
