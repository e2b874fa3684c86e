"""Names that a hub gives to what lies on this machine's disk: commits and hashes of contents, which become file names.

The client joins them to paths as the server sends them; they are checked before it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from edgedec.errors import CheckpointError

_COMMIT = re.compile(r"[0-9a-f]{40}")
# The Hub's own are hashes in hex; other servers' may be any short word.
_ETAG = re.compile(r"[A-Za-z0-9][\w.+=-]{0,127}", re.ASCII)
_PLACE = "_get_metadata_or_catch_error"


@contextmanager
def checked_names() -> Iterator[None]:
    """Meanwhile the client refuses commits and ETags that are no plain names, with a CheckpointError."""
    module: Any = import_module("huggingface_hub.file_download")
    plain = getattr(module, _PLACE, None)
    if plain is None:  # another version of the client: `check_snapshot` remains
        yield
        return

    def checked(*given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        _, etag, commit, *_ = found
        _check("ETag", etag, _ETAG)
        _check("commit", commit, _COMMIT)
        return found

    setattr(module, _PLACE, checked)
    try:
        yield
    finally:
        setattr(module, _PLACE, plain)


def check_snapshot(folder: Path) -> Path:
    """The folder that the client gives for a model, whose name is a commit."""
    _check("commit", folder.name, _COMMIT)
    if folder.parent.name != "snapshots":
        raise CheckpointError(f"the hub's commit leads to {str(folder)!r}: nothing was read")
    return folder


def _check(what: str, name: object, form: re.Pattern[str]) -> None:
    if name is not None and (not isinstance(name, str) or not form.fullmatch(name)):
        raise CheckpointError(f"the hub's {what} {str(name)[:80]!r} is no name of a file: nothing was written")
