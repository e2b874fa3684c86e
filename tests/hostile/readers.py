"""What reads bytes in Python, for the fuzzer (`tests/fuzz.py`) and for the replay of its corpus: input is accepted, or
refused with an error of edgedec of one line.

    python tests/hostile/readers.py TARGET CORPUS [options of libFuzzer]     by atheris
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

SECONDS = 0.2


def gguf(raw: bytes) -> None:
    from edgedec.export.gguf.file import GgufFile

    GgufFile.open(_written(raw))


def onnx_graph(raw: bytes) -> None:
    from edgedec.bundle.onnx_rules import DECODER_RULES, check_graph

    check_graph(_written(raw), DECODER_RULES, {"data.bin": 64})


def template(raw: bytes) -> None:
    """In this process, where the time is limited alone; a worker's memory is too."""
    from edgedec.errors import TextError
    from edgedec.text import _template_guest as guest

    messages = [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}]
    try:
        with _limited(SECONDS):
            guest.render(raw.decode("utf-8", "replace"), {"messages": messages, "add_generation_prompt": True})
    except (ValueError, MemoryError, TimeoutError, RecursionError) as error:
        raise TextError(" ".join(str(error).split()) or type(error).__name__) from None


def tokenizer_file(raw: bytes) -> None:
    """The inspection before a tokenizer is tried in a worker."""
    from edgedec.errors import TextError
    from edgedec.text.inspection import inspect

    try:
        inspect(json.loads(raw))
    except (ValueError, RecursionError) as error:  # what `check` makes a TextError of
        raise TextError(str(error)) from None


def manifest(raw: bytes) -> None:
    from edgedec.bundle.folder import _parse

    _parse(raw, Path("edgedec.json")).spec.check()


def arrays(raw: bytes) -> None:
    """A saved session or an adapter, whose hash is made right."""
    from edgedec.errors import SessionError
    from edgedec.storage.arrays import read_arrays

    head, _, rest = raw.partition(b"\0")
    body = len(head).to_bytes(8, "little") + head + rest
    read_arrays(_written(b"EDGESESS" + hashlib.sha256(body).digest() + body), b"EDGESESS", "a session", SessionError)


def packed_index(raw: bytes) -> None:
    """The index of a packed bundle, whose sizes and hash are made right."""
    from edgedec.bundle.packed import _HEADER, MAGIC, _read_index

    whole = _HEADER.pack(MAGIC, 1, 0, len(raw), _HEADER.size + len(raw), hashlib.sha256(raw).digest()) + raw
    with _written(whole).open("rb") as file:
        _read_index(file, Path("a.edb"))


def safetensors_header(raw: bytes) -> None:
    from edgedec.export.safetensors import read_header

    read_header(_written(len(raw).to_bytes(8, "little") + raw + bytes(64)))


READERS: dict[str, Callable[[bytes], None]] = {
    "python-gguf": gguf,
    "python-onnx": onnx_graph,
    "python-template": template,
    "python-tokenizer": tokenizer_file,
    "python-manifest": manifest,
    "python-arrays": arrays,
    "python-packed": packed_index,
    "python-safetensors": safetensors_header,
}


def accepted(target: str, raw: bytes) -> bool:
    """Whether the reader accepts it; another error than a refusal of one line is raised."""
    from edgedec.errors import EdgedecError

    try:
        READERS[target](raw)
        return True
    except EdgedecError as error:
        if not str(error).strip():
            raise RuntimeError("a refusal without a word") from error
        return False


@cache
def _place() -> Path:
    shared = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="edgedec-fuzz-", dir=shared if shared.is_dir() else None)
    return Path(folder) / "input.gguf"


def _written(raw: bytes) -> Path:
    _place().write_bytes(raw)
    return _place()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """TimeoutError in the main thread after so long."""

    def late(*_: Any) -> None:
        raise TimeoutError("takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(target: str, options: list[str]) -> None:
    """Run atheris on a target."""
    import atheris
    import jinja2.sandbox  # noqa: F401

    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
    with atheris.instrument_imports(include=["edgedec", "jinja2"]):
        import edgedec.bundle.folder
        import edgedec.bundle.onnx_rules
        import edgedec.bundle.packed
        import edgedec.export.gguf.file
        import edgedec.export.safetensors
        import edgedec.storage.arrays
        import edgedec.text._template_guest
        import edgedec.text.inspection  # noqa: F401
    atheris.Setup([sys.argv[0], *options], lambda raw: accepted(target, raw) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(fuzz(sys.argv[1], sys.argv[2:]))
