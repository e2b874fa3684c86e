"""The limits of a worker process."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from edgedec.errors import LimitExceeded

_MIB = 1 << 20
_SIGNALS = ("SIGPROF", "SIGXCPU", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGKILL")


@dataclass(frozen=True)
class GuestLimits:
    """seconds: of processor time for one request. memory: MiB that a worker may take beyond what its host has.
    stack: MiB. patience: seconds of wall time, a backstop for a guest that waits instead of computing, or for a starved
    machine. yields: a request that takes long gets a lower priority, as texts may be generated meanwhile; on a busy
    machine it may then hardly run at all.
    """

    seconds: float = 2.0
    memory: int = 256
    stack: int = 8
    patience: float = 30.0
    yields: bool = True

    def message(self) -> dict[str, float]:
        """The limits in the form of the host process."""
        return {"seconds": self.seconds, "memory": self.memory * _MIB, "stack": self.stack * _MIB}

    def exceeded(self, status: int | None) -> LimitExceeded:
        """The error for a worker that is gone; `status`: its exit code, the negative number of a signal, if known."""
        signals = {-int(getattr(signal, name)): name for name in _SIGNALS if hasattr(signal, name)}
        name = signals.get(status or 0, "")
        if name in ("SIGPROF", "SIGXCPU"):
            return LimitExceeded(f"takes more processor time than it may have ({self.seconds:g} s)")
        if name in ("SIGSEGV", "SIGBUS"):
            return LimitExceeded(f"is nested too deeply: overflows a stack of {self.stack} MiB")
        if name == "SIGABRT":
            return self.exhausted()
        if name == "SIGKILL":
            return LimitExceeded("its worker process was killed, as a system does that is short of memory")
        return LimitExceeded("its worker process died")

    def exhausted(self) -> LimitExceeded:
        return LimitExceeded(f"takes more than {self.memory} MiB of memory")

    def overdue(self) -> LimitExceeded:
        return LimitExceeded(f"takes more than {self.patience:g} s")
