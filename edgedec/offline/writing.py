"""A finished journal -> the output, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from edgedec.offline.reading import parquet

# Rows in memory at a time for Parquet, which form a row group.
_GROUP = 1024
_MIXED = object()


def write(path: Path, form: str, results: Callable[[], Iterator[bytes]]) -> None:
    """`results()`: lines of JSON in order, from the start at each call. The file appears when it is complete."""
    staging = path.with_name(f"{path.name}.partial.new")
    try:
        if form == "parquet":
            _parquet(staging, results)
        else:
            with staging.open("wb") as file:
                file.writelines(results())
        with staging.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def _parquet(path: Path, results: Callable[[], Iterator[bytes]]) -> None:
    """Twice through: for the columns and their types, then for the rows."""
    import pyarrow

    kinds: dict[str, Any] = {"row": pyarrow.int64()}
    for group in _groups(results()):
        for name in dict.fromkeys(name for row in group for name in row):
            kinds[name] = _wider(kinds.get(name), [row.get(name) for row in group])
    # Columns of several types are stored as JSON.
    mixed = [name for name, kind in kinds.items() if kind is _MIXED or _hollow(kind)]
    kinds |= {name: pyarrow.string() for name in mixed}
    schema = pyarrow.schema(
        [(name, pyarrow.string() if pyarrow.types.is_null(kind) else kind) for name, kind in kinds.items()]
    )
    with parquet().ParquetWriter(path, schema) as file:
        for group in _groups(results()):
            for row in group:
                row |= {name: json.dumps(row[name]) for name in mixed if name in row}
            file.write_table(pyarrow.Table.from_pylist(group, schema))


def _groups(lines: Iterator[bytes]) -> Iterator[list[dict[str, Any]]]:
    while group := [json.loads(line) for line in islice(lines, _GROUP)]:
        yield group


def _wider(known: Any, values: list[Any]) -> Any:
    """A type that holds the column so far (None: nothing yet) and `values`, or `_MIXED`."""
    import pyarrow

    if known is _MIXED:
        return _MIXED
    try:
        found = pyarrow.array(values).type
        if known is None:
            return found
        both = [pyarrow.schema([("x", kind)]) for kind in (known, found)]
        return pyarrow.unify_schemas(both, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return _MIXED


def _hollow(kind: Any) -> bool:
    """Whether the type has an object without members, which Parquet does not support."""
    from pyarrow import types

    if types.is_struct(kind):
        return not kind.num_fields or any(_hollow(kind.field(i).type) for i in range(kind.num_fields))
    return bool(types.is_list(kind)) and _hollow(kind.value_type)
