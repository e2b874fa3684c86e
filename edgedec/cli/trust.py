"""`edgedec trust`: whose signed bundles may run code here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def trust(
    key: Annotated[
        str,
        typer.Argument(metavar="[KEY]", show_default=False, help="A .pub file, or its line; none: list."),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", show_default=False, help="A name for the key; else the file's.")
    ] = "",
    remove: Annotated[
        str, typer.Option("--remove", metavar="NAME", show_default=False, help="Trust this key no longer.")
    ] = "",
    json: o.Json = False,
) -> None:
    """Trust makers of signed bundles, list or remove them.

    Compiled code in a bundle that a trusted key has signed is run without --trust-code. Compare the key with what its
    maker says elsewhere: whoever has the secret half can run programs as you. Keys lie in ~/.config/edgedec/keys, or
    where EDGEDEC_KEYS says.

    \b
    Examples:
      edgedec trust maker.pub
      edgedec trust RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3 --name frank
      edgedec trust
      edgedec trust --remove frank
    """
    if remove and (key or name):
        raise typer.BadParameter("--remove goes alone")
    if remove:
        return _removed(remove, json)
    if key:
        return _added(key, name, json)
    _list(json)


def _added(given: str, name: str, json: bool) -> None:
    from edgedec.signing import pin, read_public
    from edgedec.signing.keys import LIMIT

    path = Path(given)
    if path.is_file():
        with path.open("rb") as file:
            text = file.read(LIMIT).decode("utf-8", "replace")
    elif path.suffix == ".pub":
        raise UsageError(f"{given}: no such file")
    else:
        text = given
    key = read_public(text, given)
    at = pin(key, name or (path.stem if path.is_file() else key.id))
    if json:
        print_json({"name": at.stem, "id": key.id, "file": str(at)})
    else:
        print(f"{at.stem}: key {key.id} is trusted from now on ({at})")


def _removed(name: str, json: bool) -> None:
    from edgedec.signing import unpin

    gone = unpin(name)
    if json:
        print_json({"removed": gone.stem})
    else:
        print(f"{gone.stem}: trusted no longer")


def _list(json: bool) -> None:
    from edgedec.signing import keys_folder, pinned

    held = pinned()
    if json:
        keys = [{"name": name, "id": key.id, "line": str(key)} for name, key in held.items()]
        print_json({"folder": str(keys_folder()), "keys": keys})
    elif held:
        print_table([(name, key.id, str(key)) for name, key in held.items()], ("name", "key", "line"))
    else:
        print(f"{keys_folder()}: no key is trusted; add one with `edgedec trust KEY.pub`")
