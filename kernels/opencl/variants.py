"""Variants of the program: device features beyond OpenCL C 1.2, by their names in the source."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import sources
from edgedec.kernels.opencl.library import DeviceFacts

# Variants of the program to use that are not used by themselves, and, after a "-", those not to use.
VARIANTS = "EDGEDEC_OPENCL_VARIANTS"
# The variant of the program for shared virtual memory; without it memory is in buffers.
SHARED = "SHARED_MEMORY"


class _Variant(NamedTuple):
    """A variant's requirements (extensions and more), and whether it is used by default."""

    extensions: tuple[str, ...]
    fits: Callable[[DeviceFacts], bool]
    unasked: Callable[[DeviceFacts], bool]


def _always(facts: DeviceFacts) -> bool:
    return True


def _never(facts: DeviceFacts) -> bool:
    return False


def _is_adreno(facts: DeviceFacts) -> bool:
    """Whether it is an Adreno GPU, whose textures have a cache of their own; other GPUs are not known to gain from
    images."""
    return "adreno" in f"{facts.platform} {facts.name}".lower()


# The likeliest culprit first.
EXTRA = {
    "HALF_DOT": _Variant(("cl_khr_fp16",), _always, _never),
    sources.IMAGES: _Variant((), lambda facts: facts.texels > 0, _is_adreno),
    "PACKED_DOT": _Variant(("cl_khr_integer_dot_product",), _always, _always),
    # Sixteen threads have to be in one subgroup, which is certain only if a kernel can request its size.
    "SUBGROUPS": _Variant(("cl_khr_subgroup_shuffle", "cl_intel_required_subgroup_size"), _always, _always),
}


def asked() -> tuple[str, ...]:
    """The variants in EDGEDEC_OPENCL_VARIANTS, to use or, after a "-", not to use; DeviceError for unknown ones."""
    words = tuple(sorted(filter(None, os.environ.get(VARIANTS, "").upper().replace(" ", "").split(","))))
    unknown = [word.removeprefix("-") for word in words if word.removeprefix("-") not in EXTRA]
    if unknown:
        raise DeviceError(f"{VARIANTS}: no variant {unknown[0]}; there are: {', '.join(EXTRA)}")
    return words


def offered(facts: DeviceFacts) -> tuple[str, ...]:
    """The device's features that kernels may use, by their names in the source."""
    words = asked()
    extra = tuple(
        name
        for name, of in EXTRA.items()
        if facts.extensions.issuperset(of.extensions) and of.fits(facts) and (of.unasked(facts) or name in words)
    )
    used = tuple(name for name in extra if f"-{name}" not in words)
    return used + ("EXACT_DIVISION",) * facts.exact_division + (SHARED,) * facts.shared_memory


def language(facts: DeviceFacts, variants: Collection[str]) -> str:
    """The language version to compile for: OpenCL 3.0 drivers offer extension functions in its own version only."""
    number = re.match(r"OpenCL (\d+)", facts.version)
    newer = number is not None and int(number[1]) >= 3
    return "CL3.0" if newer and any(part in EXTRA and EXTRA[part].extensions for part in variants) else "CL1.2"
