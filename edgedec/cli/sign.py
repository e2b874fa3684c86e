"""`edgedec sign`: vouch for a bundle, so that those who trust your key run its code without being asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json
from edgedec.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PASSWORD = "EDGEDEC_SIGN_PASSWORD"


@app.command()
def sign(
    bundle: Annotated[
        str, typer.Argument(metavar="[BUNDLE]", show_default=False, help="Bundle folder; none with --new-key.")
    ] = "",
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", show_default=False, help="Your secret key.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option("--new-key", metavar="FILE", show_default=False, help="Make a key, and its .pub beside it."),
    ] = None,
    comment: Annotated[
        str, typer.Option("--comment", metavar="TEXT", show_default=False, help="A line that is signed too.")
    ] = "",
    json: o.Json = False,
) -> None:
    """Sign a bundle with your key.

    What is signed is the manifest, which holds the hash of every file.

    The signature is edgedec.json.minisig, as minisign writes it (minisign -Sm edgedec.json does the same). Whoever has
    pinned your public key (edgedec trust) runs compiled code of the bundle without --trust-code. Keys are minisign's
    too. A password is asked for at a terminal, or read from EDGEDEC_SIGN_PASSWORD.

    \b
    Examples:
      edgedec sign --new-key maker.key
      edgedec sign ./smol --key maker.key
    """
    if new_key is not None:
        if bundle or key is not None:
            raise typer.BadParameter("--new-key goes alone; sign with the key afterwards")
        return _new_key(new_key, json)
    if not bundle or key is None:
        raise typer.BadParameter("give a bundle and --key FILE, or --new-key FILE")
    _sign(bundle, key, comment, json)


def _new_key(path: Path, json: bool) -> None:
    from edgedec.signing.makers import new_key, write_key

    made = new_key()
    public = write_key(made, path, _password("Password for the new key (empty: none): ", twice=True))
    if json:
        print_json({"key": str(path), "public": str(public), "id": made.id, "line": str(made.public)})
    else:
        print(f"{path}: secret key {made.id}, keep it to yourself")
        print(f"{public}: for those who trust it: {made.public}")


def _sign(bundle: str, path: Path, comment: str, json: bool) -> None:
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.signing.makers import is_locked, read_key, sign

    opened = Bundle.open(find(bundle))
    key = read_key(path, _password(f"Password of {path}: ") if is_locked(path) else "")
    made = sign(opened, key, comment or f"{opened.manifest.name}, {len(opened.manifest.files)} files")
    if json:
        print_json({"bundle": str(opened.path), "signature": str(made), "id": key.id, "digest": opened.digest})
    else:
        print(f"{made}: signed by key {key.id}")


def _password(prompt: str, twice: bool = False) -> str:
    """From the variable, else from the terminal, else none."""
    given = os.environ.get(PASSWORD)
    if given is not None:
        return given
    if not sys.stdin.isatty():
        return ""
    from getpass import getpass

    password = getpass(prompt)
    if twice and password and getpass("Again: ") != password:
        raise UsageError("the passwords differ; nothing was made")
    return password
