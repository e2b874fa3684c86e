"""Opening a bundle on a device: cache format, self-test of the driver, one-line errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.kernels.device.interface import DeviceError
from edgedec.runtime import DeviceName, RuntimeOptions, parse_device
from edgedec.runtimes._device.runtime import LaunchedRuntime
from edgedec.runtimes._selftest.opening import TestedDevice, checked
from edgedec.spec import KV_FORMATS

Made = TypeVar("Made", bound=LaunchedRuntime)


def opened(
    kind: type[Made], bundle: Bundle, options: RuntimeOptions, open_device: Callable[[DeviceName], TestedDevice]
) -> Made:
    """The runtime of a kind on a bundle and the device that its options name."""
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in KV_FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
    try:
        device = open_device(parse_device(options.device))
        device = checked(kind.name, device, bundle.spec, matrix_formats(bundle), kv)
        return kind(bundle, kv, device, options.device_cache)
    except DeviceError as error:
        raise RuntimeUnavailable(f"engine {kind.name}: {error}") from None
    except MemoryError as error:
        said = f"{error}; other programs may hold its memory: end them, or use another device, as --device cpu"
        raise RuntimeUnavailable(f"engine {kind.name}: {said}") from None


def matrix_formats(bundle: Bundle) -> frozenset[str]:
    """The formats of a bundle's matrices."""
    tensors = bundle.manifest.tensors
    return frozenset(tensors[name].format for name in bundle.spec.matrices if name in tensors)
