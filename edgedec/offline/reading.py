"""Rows of a JSONL, CSV or Parquet file, one by one: a file is never held whole.

A row that cannot be read is a row all the same, with an error.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.extras import install_command
from edgedec.text.tokenizer import one_line

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
# Longer lines are rejected.
LONGEST = 64 << 20
_CHUNK = 64


@dataclass(frozen=True)
class Row:
    """`number` counts from 0; `data` the columns that have a value; `error`: why there are none.

    `digest`: a hash of its content; `at`: how far into the input it ends (bytes, of Parquet rows).
    """

    number: int
    digest: str
    data: dict[str, Any]
    error: str = ""
    at: int = 0


def format_of(path: Path) -> str:
    """The format by the file's ending."""
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path}: the name must end in one of {', '.join(FORMATS)}") from None


def length(path: Path, form: str) -> int:
    """The size of the input, in the unit of `Row.at`."""
    return int(parquet().ParquetFile(path).metadata.num_rows) if form == "parquet" else path.stat().st_size


@contextmanager
def reading(path: Path, form: str, pipe: IO[bytes] | None = None) -> Iterator[Iterator[Row]]:
    """The rows of a file, or of a pipe (JSONL)."""
    if form == "parquet":
        yield _parquet(path)
    elif form == "csv":
        with path.open("rb") as file:
            yield _csv(file)
    elif pipe is not None:
        yield _jsonl(pipe)
    else:
        with path.open("rb") as file:
            yield _jsonl(file)


def parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise RuntimeUnavailable(f"Parquet needs pyarrow: {install_command('parquet')}") from None
    return pyarrow.parquet


def plain(value: object) -> Any:
    """A value without a JSON type: bytes in base64, dates in ISO format, anything else as text."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _jsonl(file: IO[bytes]) -> Iterator[Row]:
    """Blank lines are no rows."""
    at = number = count = 0
    while line := file.readline(LONGEST):
        count += 1
        at += len(line)
        too_long = len(line) >= LONGEST
        while too_long and not line.endswith(b"\n"):
            line = file.readline(LONGEST)
            at += len(line)
            if not line:
                break
        if not too_long and not line.strip():
            continue
        data, error = ({}, f"longer than {LONGEST} bytes") if too_long else _object(line.removeprefix(b"\xef\xbb\xbf"))
        yield Row(number, _digest(line), data, error and f"line {count}: {error}", at)
        number += 1


def _object(line: bytes) -> tuple[dict[str, Any], str]:
    """A line's columns, or its error. Null counts as missing."""
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_constant)
    except UnicodeDecodeError as error:
        return {}, f"not UTF-8 text (byte {error.start})"
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON ({one_line(error)})"
    if not isinstance(found, dict):
        return {}, "not a JSON object"
    return {key: value for key, value in found.items() if value is not None}, ""


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _csv(file: IO[bytes]) -> Iterator[Row]:
    """A cell may hold line breaks; an empty one is no value."""
    csv.field_size_limit(LONGEST)
    at = 0

    def lines() -> Iterator[str]:
        nonlocal at
        for raw in iter(lambda: file.readline(LONGEST), b""):
            text = (raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw).decode("utf-8", "surrogateescape")
            at += len(raw)
            yield text

    table = csv.reader(lines())
    header: list[str] | None = None
    number = 0
    while True:
        try:
            cells, error = next(table), ""
        except StopIteration:
            return
        except csv.Error as broken:
            cells, error = [str(at)], f"not CSV ({one_line(broken)})"
        if header is None:
            header = [] if error else cells
            if not header or len(set(header)) < len(header):
                raise UsageError(f"CSV: {error or 'the first line must name the columns, each once'}")
        elif cells:
            if not error and len(cells) > len(header):
                error = f"{len(cells)} cells, but {len(header)} columns"
            if not error and any("\udc80" <= c <= "\udcff" for cell in cells for c in cell):
                error = "not UTF-8 text"
            data = {} if error else {name: cell for name, cell in zip(header, cells, strict=False) if cell}
            text = "\x1f".join(cells).encode("utf-8", "surrogateescape")
            yield Row(number, _digest(text), data, error and f"line {table.line_num}: {error}", at)
            number += 1


def _parquet(path: Path) -> Iterator[Row]:
    library = parquet()
    import pyarrow

    try:
        # Not read ahead: one row group's pages are all that is held.
        with library.ParquetFile(path, pre_buffer=False) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_CHUNK):
                for found in batch.to_pylist():
                    text = json.dumps(found, default=plain, sort_keys=True)
                    data = {name: value for name, value in found.items() if value is not None}
                    yield Row(number, _digest(text.encode()), data, "", number + 1)
                    number += 1
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{path}: not Parquet ({one_line(error)})") from None


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=8).hexdigest()
