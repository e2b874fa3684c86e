"""Worker processes with limits of memory, time and stack, for untrusted input: grammars, templates, tokenizers.

A `Sandbox` runs one *guest*, a stand-alone Python file, in processes of its own; `Sandbox.worker()` is such a process,
`GuestWorker.call` one request to it. A worker that exceeds a limit is killed, and the call raises `LimitExceeded`;
other workers continue. Messages are JSON with a block of bytes beside it, never pickles.

On Linux and macOS a host process loads the guest once and forks a worker in about a millisecond. Elsewhere every worker
is started by itself, and only its time is limited. `EDGEDEC_SANDBOX=off` runs guests in this process without limits.
"""

from edgedec.sandbox.host import Sandbox, enabled
from edgedec.sandbox.limits import GuestLimits
from edgedec.sandbox.worker import GuestWorker, Reply

__all__ = ["GuestLimits", "GuestWorker", "Reply", "Sandbox", "enabled"]
