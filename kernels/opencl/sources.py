"""The engine's kernels as one program's source."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
# The variant of the program that has the products a second time, with weights read through images (`images.py`).
IMAGES = "IMAGES"
# In the order in which they need each other.
FILES = ("arith", "args", "kv", "prepare", "product", "from_buffer", "products")
_THROUGH_IMAGES = ("from_image", "products")
_REST = ("attention", "slots", "views", "head", "moe", "ssm", "delta")


def source() -> str:
    return f"{_text(FILES)}#ifdef {IMAGES}\n{_text(_THROUGH_IMAGES)}#endif\n{_text(_REST)}"


def _text(names: tuple[str, ...]) -> str:
    return "".join((HERE / f"{name}.cl").read_text("utf-8") for name in names)


# The end of every kernel's argument list, and the arguments added for memory in buffers.
_END = "__local uchar* memory)"
_ARENAS = ", ".join(f"__global uchar* arena{i}" for i in range(4))


def with_arenas(text: str) -> str:
    """The program with the buffers that all memory is in as further arguments of each kernel (`memory.py`)."""
    whole = text + (HERE / "arenas.cl").read_text("utf-8")
    return whole.replace(_END, f"{_END[:-1]}, {_ARENAS})")
