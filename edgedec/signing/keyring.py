"""Pinned keys: a folder of .pub files, whose makers' bundles may run code here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgedec.errors import UsageError
from edgedec.signing.keys import LIMIT, PublicKey, public_text, read_public
from edgedec.storage.files import replacing

FOLDER = "EDGEDEC_KEYS"
_SUFFIX = ".pub"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\Z")


def keys_folder() -> Path:
    """EDGEDEC_KEYS, else edgedec/keys under XDG_CONFIG_HOME, else ~/.config."""
    own = os.environ.get(FOLDER)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "edgedec" / "keys"


def pinned() -> dict[str, PublicKey]:
    """The pinned keys by name. A file that is no key is an error that names it."""
    folder = keys_folder()
    try:
        files = sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.is_file())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror or error}") from None
    return {path.stem: _read(path) for path in files}


def pin(key: PublicKey, name: str) -> Path:
    """Trust a key from now on, under a name; its file."""
    if not _NAME.match(name):
        raise UsageError(f"--name {name}: use letters, digits, and _ . @ + - between them")
    held = pinned()
    known = next((other for other, one in held.items() if one.key == key.key), None)
    if known is not None:
        raise UsageError(f"key {key.id}: is trusted already, as {known}")
    if name in held:
        raise UsageError(
            f"--name {name}: stands for key {held[name].id}; remove it first: edgedec trust --remove {name}"
        )
    path = keys_folder() / f"{name}{_SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(public_text(key).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def unpin(name: str) -> Path:
    """Trust a key no longer, by its name or id; the file that is gone."""
    held = pinned()
    found = name if name in held else next((other for other, key in held.items() if key.id == name.upper()), None)
    if found is None:
        there = ", ".join(held) or "none"
        raise UsageError(f"--remove {name}: no trusted key of that name; there are: {there}")
    path = keys_folder() / f"{found}{_SUFFIX}"
    path.unlink()
    return path


def _read(path: Path) -> PublicKey:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not a text'}") from None
    return read_public(text, str(path))
