"""`edgedec datastore`: documents as tokens with an index, for drafts retrieved from them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, progress_bar, size
from edgedec.errors import UsageError
from edgedec.plugins.words import quoted

if TYPE_CHECKING:
    from edgedec.bundle import Bundle
    from edgedec.text.tokenizer import Tokenizer

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Documents: any text (<|endoftext|> between them), or .jsonl.")
]
Store = Annotated[Path, typer.Option("--out", "-o", metavar="STORE", help="The datastore file.")]
Count = Callable[[int], None]
# Longer documents are encoded in parts, which end at a line.
_PART = 1 << 16
_END = "<|endoftext|>"


@app.callback()
def datastore() -> None:
    """Make a datastore of documents to draft from.

    For --spec auto+datastore:path=STORE.

    \b
    Examples:
      edgedec datastore build notes.txt manual.md -m ./smol -o notes.store
      edgedec datastore add letters.jsonl -m ./smol -o notes.store
    """


@app.command()
def build(
    files: Files,
    out: Store,
    model: o.ModelName = "nano",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing datastore.")] = False,
    json: o.Json = False,
) -> None:
    """Build a datastore of files. Documents are read as a stream; memory stays under a quarter of a GB.

    \b
    Examples:
      edgedec datastore build notes.txt manual.md -o notes.store
      edgedec datastore build "src/main.py" -m ./smol -o code.store --force --json
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; pass --force, or `edgedec datastore add` to extend it")
    _write(files, out, model, json, more=False)


@app.command()
def add(files: Files, out: Store, model: o.ModelName = "nano", json: o.Json = False) -> None:
    """Add files to a datastore.

    \b
    Examples:
      edgedec datastore add letters.jsonl -o notes.store
      edgedec datastore add letters.jsonl -m ./smol -o notes.store --json
    """
    _write(files, out, model, json, more=True)


def _write(files: list[Path], out: Path, model: str, json: bool, more: bool) -> None:
    from edgedec.bundle import Bundle
    from edgedec.bundle.locate import find
    from edgedec.storage.datastore import Datastore, write_datastore
    from edgedec.text.tokenizer import Tokenizer

    bundle = Bundle.open(find(model))
    bundle.require_decoder()
    digest, vocab = _tokenizer(bundle), bundle.spec.vocab_size
    tokenizer = Tokenizer.load(bundle.file(bundle.manifest.text.tokenizer or ""))
    onto = Datastore(out, digest, vocab) if more else None
    total, done = sum(_size(file) for file in files), 0
    with progress_bar(quiet=json) as show:

        def count(n: int) -> None:
            nonlocal done
            done += n
            show("documents", done, total)

        tokens, segments = write_datastore(out, digest, vocab, encoded(files, tokenizer, count), onto)
    facts = {"file": str(out), "tokens": tokens, "segments": segments, "bytes": out.stat().st_size}
    if json:
        print_json({**facts, "added": tokens - (onto.tokens if onto else 0)})
    else:
        spec = shlex.quote(f"auto+datastore:path={quoted(str(out))}")
        print(f"{out}: {tokens:,} tokens, {size(out.stat().st_size)}; use it with --spec {spec}")


def _tokenizer(bundle: Bundle) -> str:
    name = bundle.manifest.text.tokenizer
    if name is None:
        raise UsageError(
            f"{bundle.path}: has no tokenizer, so documents cannot be encoded; name another bundle with -m"
        )
    return bundle.manifest.files[name].sha256


def _size(file: Path) -> int:
    try:
        if file.is_dir():
            raise UsageError(f"{file}: is a folder; name its files")
        return file.stat().st_size
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None


def encoded(files: list[Path], tokenizer: Tokenizer, count: Count = lambda n: None) -> Iterator[list[int]]:
    """The tokens of each document. One long line at most is in memory, besides `_PART` characters."""
    for file in files:
        documents = _lines_of_json if file.suffix == ".jsonl" else _plain
        for parts in documents(file, count):
            ids = [token for part in parts for token in tokenizer.encode(part, special=False)]
            if ids:
                yield ids


def _plain(file: Path, count: Count) -> Iterator[list[str]]:
    """The documents of a text, parts of them at a time."""
    held, n = list[str](), 0
    for line in _lines(file, count):
        *ended, line = line.split(_END)
        for text in ended:
            yield ["".join([*held, text])]
            held, n = [], 0
        held.append(line)
        n += len(line)
        if n >= _PART:
            yield ["".join(held)]
            held, n = [], 0
    yield ["".join(held)]


def _lines_of_json(file: Path, count: Count) -> Iterator[list[str]]:
    """The texts of each line's object, lists of texts among them."""
    for number, line in enumerate(_lines(file, count), 1):
        if not line.strip():
            continue
        try:
            item = loads(line)
            values = list(item.values()) if isinstance(item, dict) else [item]
        except ValueError:
            values = []
        flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
        found = [part for part in flat if isinstance(part, str)]
        if not found:
            raise UsageError(f"{file}: line {number}: no JSON object with text in it")
        yield found


def _lines(file: Path, count: Count) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                count(len(raw))
                try:
                    yield raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UsageError(f"{file}: line {number}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
