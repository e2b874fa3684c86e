"""What to install for an optional part, in words that work where this runs.

The distribution is `edgedec-runtime`; the name of the import and the command on PyPI is another project's. So messages
name the packages that an extra consists of, which any environment can install.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec

DISTRIBUTION = "edgedec-runtime"
# onnx>=1.18; extra == "export"
_REQUIREMENT = re.compile(r"^\s*([\w.-]+)(?:\[([\w.,-]+)\])?\s*([^;]*?)\s*(?:;.*extra\s*==\s*['\"]([\w.-]+)['\"].*)?$")
# Packages whose import has another name.
_IMPORTS = {
    "llama-cpp-python": "llama_cpp",
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "nvidia-cuda-nvrtc": "nvidia",
}


def extras() -> dict[str, tuple[str, ...]]:
    """The requirements of every extra, as pip takes them; empty if the package is not installed."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    return requirements_by_extra(lines)


def requirements_by_extra(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """
    >>> requirements_by_extra(['numpy>=1.26', 'onnx>=1.18; extra == "export"', 'ray[data]>=2.60; extra == "ray"'])
    {'export': ('onnx>=1.18',), 'ray': ('ray[data]>=2.60',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        parts = _REQUIREMENT.match(line)
        if parts and parts[4]:
            inner = f"[{parts[2]}]" if parts[2] else ""
            found[parts[4]] = (*found.get(parts[4], ()), f"{parts[1]}{inner}{parts[3]}")
    return found


def install_command(extra: str) -> str:
    """How to get an extra here.

    >>> install_command("export")
    'pip install "onnx>=1.18"'
    """
    packages = extras().get(extra)
    if not packages:  # not installed, but run from a checkout
        return f'pip install ".[{extra}]" in the checkout of edgedec'
    return f"pip install {' '.join(quoted(package) for package in packages)}"


def quoted(requirement: str) -> str:
    """A requirement as every shell takes it."""
    return requirement if re.fullmatch(r"[\w.-]+", requirement) else f'"{requirement}"'


def import_name(requirement: str) -> str:
    """
    >>> import_name("onnxruntime-genai>=0.18"), import_name("ray[data]>=2.60")
    ('onnxruntime_genai', 'ray')
    """
    name = re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0]
    return _IMPORTS.get(name, name.replace("-", "_"))


def installed(names: Iterable[str]) -> Mapping[str, bool]:
    """Which of these requirements can be imported; nothing is imported to find out."""
    return {name: find_spec(import_name(name)) is not None for name in names}
