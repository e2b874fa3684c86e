"""A bundle's weights as a GGUF file, for llama.cpp beside our engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from edgedec.bench.timing import Config
from edgedec.bundle.locate import is_gguf
from edgedec.errors import RuntimeUnavailable
from edgedec.extras import install_command

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

LLAMA = "llama.cpp"


def write_for_library(bundle: Bundle, path: Path) -> str | None:
    """Write the weights for llama.cpp's library; the reason if that is not possible."""
    return missing_library() or write_weights(bundle, path)


def missing_library() -> str | None:
    return f"needs llama-cpp-python: {install_command('peers')}" if find_spec("llama_cpp") is None else None


def write_weights(bundle: Bundle, path: Path) -> str | None:
    """Write the weights as llama.cpp reads them; the reason if that is not possible."""
    try:
        import_module("edgedec.export.gguf").write_gguf(bundle, path)
    except (RuntimeUnavailable, OSError) as error:
        return str(error)
    return None


@contextmanager
def with_weights(configs: Mapping[str, Config], bundle: Bundle) -> Iterator[tuple[dict[str, Config], dict[str, str]]]:
    """The configurations, llama.cpp's with a file of the weights that is there meanwhile: the model's own if that is
    a GGUF file, else one that is written; without it, and the reason, if there can be no such file."""
    others = {name: config for name, config in configs.items() if name != LLAMA}
    if LLAMA not in configs:
        yield others, {}
        return
    with TemporaryDirectory(prefix="edgedec-") as folder:
        own = Path(configs[LLAMA].model)
        given = own.is_file() and is_gguf(own)
        path = own if given else Path(folder) / "weights.gguf"
        reason = missing_library() if given else write_for_library(bundle, path)
        if reason is None:
            yield {name: replace(c, gguf=str(path)) if name == LLAMA else c for name, c in configs.items()}, {}
        else:
            yield others, {LLAMA: reason}
