"""Find the compiled engine and load it, or give a one-line reason."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

ABI = 31  # ed_abi() of the library that this Python code calls
LIBRARY = {"win32": "_native.dll", "darwin": "_native.dylib"}.get(sys.platform, "_native.so")
OVERRIDE = "EDGEDEC_CPU_LIBRARY"  # another build of the library, for tests
AGAIN = "reinstall edgedec with a C++17 compiler"


def path() -> Path:
    """The library's path: in this folder, else, for a checkout that was not compiled, in the installed edgedec."""
    own = Path(os.environ.get(OVERRIDE) or Path(__file__).with_name(LIBRARY))
    if own.is_file() or OVERRIDE in os.environ:
        return own
    installed = (Path(entry, "edgedec", "kernels", "cpu", LIBRARY) for entry in sys.path)
    return next((file for file in installed if file.is_file()), own)


def library() -> ctypes.CDLL:
    """The engine, loaded once. Raises ImportError with the reason if it cannot be used."""
    return _load(path())


def why_not() -> str | None:
    """None if the engine can be used, else the reason in one line."""
    try:
        library()
    except ImportError as error:
        return str(error)
    return None


def isa() -> str:
    """The instruction set that the engine runs with here, such as "avx512vnni", "i8mm" or "scalar"."""
    return _text(library().ed_isa())


def isas() -> dict[str, bool]:
    """The compiled instruction sets, best first, and whether this CPU can run them."""
    return {name.rstrip("+"): name.endswith("+") for name in _text(library().ed_isas()).split(",") if name}


@cache
def _load(file: Path) -> ctypes.CDLL:
    if not file.is_file():
        if OVERRIDE in os.environ:
            raise ImportError(f"{OVERRIDE}: no such file: {file}")
        raise ImportError(f"not built (no working compiler when edgedec was installed); {AGAIN}")
    try:
        found = ctypes.CDLL(str(file))
        found.ed_abi.restype = ctypes.c_int
        found.ed_abi.argtypes = []
        abi = found.ed_abi()
        for function in (found.ed_isa, found.ed_isas):
            function.restype = ctypes.c_char_p
            function.argtypes = []
    except (OSError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise ImportError(f"built for another machine or damaged: {said}; {AGAIN}") from None
    if abi != ABI:
        raise ImportError(f"built from another version of edgedec (ABI {abi}, not {ABI}); {AGAIN}")
    return found


def _text(raw: bytes) -> str:
    return raw.decode("ascii")
