"""The kinds of processors that compiled libraries support, and the detection of this one's kinds."""

from __future__ import annotations

import platform
from pathlib import Path

# The flags that /proc/cpuinfo must have for each kind; the best first.
MACHINES = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    "x86-64-v3": ("avx2", "fma", "f16c"),
    "aarch64-linux-i8mm": ("asimddp", "i8mm"),
    "aarch64-linux": ("asimddp",),
    "aarch64-android": ("asimddp",),
}


def machines_here() -> list[str]:
    """The kinds that this processor is, the best first."""
    flags = _cpu_flags()
    return [name for name, wanted in MACHINES.items() if all(flag in flags for flag in wanted)]


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return {"asimddp"} if platform.machine() in ("arm64", "aarch64") else set()
    lines = (line.partition(":") for line in text.splitlines())
    return {flag for key, _, value in lines if key.strip() in ("flags", "Features") for flag in value.split()}
