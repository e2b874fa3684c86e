"""`edgedec serve` as a replica: it ends with the process that started it, even after a crash.

python -m edgedec.cli._replica serve -m nano --port 0
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread

from edgedec.cli import main


def _end_with_parent() -> None:
    """End this process when its parent is gone, which closes the other end of its standard input."""
    while os.read(0, 1 << 10):  # not sys.stdin, whose lock a thread may not hold when Python ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
