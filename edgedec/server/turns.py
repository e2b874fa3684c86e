"""Settings of the interpreter for a server: no thread waits long for another one."""

from __future__ import annotations

import gc
import sys

# Seconds that a thread which computes in Python keeps others waiting, of the engine among them, which waits again after
# each native call; Python's own value is 5 ms.
_TURN = 0.001


def shorten_turns() -> None:
    """Let threads take shorter turns, and leave what is there out of garbage collections, each of which stops all
    threads for as long as it takes to look at every object."""
    sys.setswitchinterval(_TURN)
    gc.collect()
    gc.freeze()
