"""Facts of this machine: CPU, memory, versions, extras, without heavy imports."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from edgedec.extras import extras as requirements
from edgedec.extras import import_name
from edgedec.runtime import available_cores as cores

__all__ = ["cores", "cpu_features", "cpu_model", "extras", "memory", "system", "variables", "versions"]

# What kernels choose by: x86 names, then ARM's in /proc/cpuinfo (asimddp is dotprod).
_X86 = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
_ARM = ("asimd", "asimddp", "i8mm", "sve", "sme")
_NAMES = {"asimd": "neon", "asimddp": "dotprod"}
_BASE = ("numpy", "onnxruntime", "tokenizers", "jinja2", "typer", "rich")
# Extras for development of edgedec.
_OURS = ("test", "test-all", "dev", "docs")
_SECRET = ("KEY", "TOKEN")


def cpu_model() -> str:
    """The name in Linux's /proc/cpuinfo, else the platform's."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown"


def cpu_features() -> list[str]:
    """Instructions that matter to quantized matmuls."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    if not found and platform.machine().lower() in ("arm64", "aarch64"):
        flags = {"asimd", "asimddp"}  # every ARM Mac and Windows laptop has them
    return [_NAMES.get(name, name) for name in (*_X86, *_ARM) if name in flags]


def system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def memory() -> dict[str, int | None]:
    """Bytes of memory: all of it, and what is free for a program now."""
    try:
        text = Path("/proc/meminfo").read_text()
        facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
        return {"total": int(facts["MemTotal"]) * 1024, "available": int(facts["MemAvailable"]) * 1024}
    except (OSError, KeyError):
        pass
    try:
        return {"total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "available": None}
    except (AttributeError, ValueError, OSError):
        return {"total": None, "available": None}


def versions(names: Iterable[str] = _BASE) -> dict[str, str | None]:
    """Installed versions; None where a package is missing."""
    return {name: _version(name) for name in names}


def extras() -> dict[str, dict[str, str | None]]:
    """The packages of every extra with their versions; looked up and not imported."""
    found = {name: packages for name, packages in requirements().items() if name not in _OURS}
    return {name: {_package(p): _optional(p) for p in packages} for name, packages in sorted(found.items())}


def variables() -> dict[str, str]:
    """The environment's EDGEDEC_ variables; of secrets only that they are set."""
    ours = {name: value for name, value in sorted(os.environ.items()) if name.startswith("EDGEDEC_")}
    return {name: "(set)" if name.endswith(_SECRET) else value for name, value in ours.items()}


def _package(requirement: str) -> str:
    """
    >>> _package("ray[data]>=2.60")
    'ray'
    """
    return re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0]


def _optional(requirement: str) -> str | None:
    """The version if it can be imported here."""
    return _version(_package(requirement)) if find_spec(import_name(requirement)) else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None if find_spec(name) is None else "unknown"


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
