"""`edgedec serve --replicas N`: the command of each replica, and their router."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.server.replicas.processes import Replica

# Options of the router, or options that differ between replicas.
_OWN = {"replicas", "host", "port", "api_key", "cors", "log_requests", "threads", "offload", "models_memory", "device"}
# Devices of which a machine may have several; their engines have the same names.
_COUNTED = ("cuda", "opencl")


@dataclass(frozen=True)
class ReplicaCommand:
    """words: options that all replicas share; `threads` and `memory` (bytes of loaded models, 0: not set): of each;
    offload: the folder in which each has one of its own, "" for none; device: of each, or of which each has one;
    engine: determines the device if none is named."""

    words: tuple[str, ...]
    threads: int
    memory: int = 0
    offload: str = ""
    device: str = ""
    engine: str = "auto"

    def arguments(self, number: int) -> list[str]:
        """The arguments of one replica. The last of two equal options counts, so these override the configuration
        file."""
        own = ["--replicas", "1", "--host", "127.0.0.1", "--port", "0", "--threads", str(self.threads)]
        if self.memory:
            own += ["--models-memory", f"{self.memory / 2**30:.6f}"]
        if self.offload:
            own += ["--offload", os.path.join(self.offload, f"replica-{number}")]
        return [*self.words, *own, "--device", self._device(number)]

    def _device(self, number: int) -> str:
        """Of one replica: a GPU of its own, unless EDGEDEC_CUDA or EDGEDEC_OPENCL names one for all."""
        device = self.device or self.engine
        if device not in _COUNTED or os.environ.get(f"EDGEDEC_{device.upper()}"):
            return self.device
        return f"{device}:{_gpu(device, number)}"

    def make(self, number: int, key: str) -> Replica:
        from edgedec.server.replicas.processes import Replica
        from edgedec.server.service import ROUTED

        command = [sys.executable, "-m", "edgedec.cli._replica", "serve", *self.arguments(number)]
        return Replica(number, command, {"EDGEDEC_API_KEY": key, ROUTED: "1"})


def _gpu(engine: str, number: int) -> int:
    """The number of a GPU among all devices; UsageError if there are not so many."""
    from edgedec.runtime.registry import gpu_numbers

    numbers = gpu_numbers(engine)
    if numbers is None:
        return number
    if number < len(numbers):
        return numbers[number]
    raise UsageError(
        f"--replicas: replica {number} has no GPU of its own, {engine} has {len(numbers)} here; "
        f"--device {engine}:0 names one device for all"
    )


def shared_words(context: typer.Context) -> tuple[str, ...]:
    """The given options of this command that are the same for all replicas."""
    words = list[str]()
    for parameter in context.command.params:
        if parameter.name in _OWN or parameter.name is None:
            continue
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":  # typer does not export the enumeration
            words += _said(parameter, context.params[parameter.name])
    return tuple(words)


def _said(parameter: Any, value: Any) -> list[str]:
    """An option with its value, as it is written."""
    name = max(parameter.opts, key=len)
    if isinstance(value, bool):
        return [name] if value else []
    values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return [word for item in values for word in (name, str(getattr(item, "value", item)))]


def threads_of_each(threads: int, replicas: int) -> int:
    """The given number of threads, else an equal share of the cores."""
    return threads or max(1, (os.cpu_count() or 1) // replicas)
