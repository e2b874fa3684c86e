"""Variants of the program: what of a device kernels use beyond OpenCL C 1.2, by the names that their source has."""

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
    """Of a program: the extensions and what else a device has to have for it, and whether it is then used unasked."""

    extensions: tuple[str, ...]
    fits: Callable[[DeviceFacts], bool]
    unasked: Callable[[DeviceFacts], bool]


def _always(facts: DeviceFacts) -> bool:
    return True


def _never(facts: DeviceFacts) -> bool:
    return False


def _is_adreno(facts: DeviceFacts) -> bool:
    """Its textures have a cache of their own; that others gain by images is not known."""
    return "adreno" in f"{facts.platform} {facts.name}".lower()


# The likeliest culprit first.
EXTRA = {
    "HALF_DOT": _Variant(("cl_khr_fp16",), _always, _never),
    sources.IMAGES: _Variant((), lambda facts: facts.texels > 0, _is_adreno),
    "PACKED_DOT": _Variant(("cl_khr_integer_dot_product",), _always, _always),
    # Sixteen threads have to be of one subgroup, which is sure only where a kernel can ask for its size.
    "SUBGROUPS": _Variant(("cl_khr_subgroup_shuffle", "cl_intel_required_subgroup_size"), _always, _always),
}


def asked() -> tuple[str, ...]:
    """What EDGEDEC_OPENCL_VARIANTS says: variants, or variants after a "-"; DeviceError for others than there are."""
    words = tuple(sorted(filter(None, os.environ.get(VARIANTS, "").upper().replace(" ", "").split(","))))
    unknown = [word.removeprefix("-") for word in words if word.removeprefix("-") not in EXTRA]
    if unknown:
        raise DeviceError(f"{VARIANTS}: no variant {unknown[0]}; there are: {', '.join(EXTRA)}")
    return words


def offered(facts: DeviceFacts) -> tuple[str, ...]:
    """What kernels may use of a device, by the names that their source has for it."""
    words = asked()
    extra = tuple(
        name
        for name, of in EXTRA.items()
        if facts.extensions.issuperset(of.extensions) and of.fits(facts) and (of.unasked(facts) or name in words)
    )
    used = tuple(name for name in extra if f"-{name}" not in words)
    return used + ("EXACT_DIVISION",) * facts.exact_division + (SHARED,) * facts.shared_memory


def language(facts: DeviceFacts, variants: Collection[str]) -> str:
    """What the program is compiled as: drivers of OpenCL 3.0 have functions of extensions in its own language only."""
    number = re.match(r"OpenCL (\d+)", facts.version)
    newer = number is not None and int(number[1]) >= 3
    return "CL3.0" if newer and any(part in EXTRA and EXTRA[part].extensions for part in variants) else "CL1.2"
