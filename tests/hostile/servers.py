"""`edgedec serve` as people start it, with few descriptors where that is attacked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep


@contextmanager
def server(bundle: str, flags: Sequence[str], descriptors: int, log: Path) -> Iterator[tuple[str, int]]:
    """(its address, its process) of a server whose stderr goes to a file."""

    def limited() -> None:
        import resource

        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-m", "edgedec", "serve", "-m", bundle, "--port", "0", *flags]
    end = monotonic() + 120
    with log.open("w") as out, subprocess.Popen(command, stderr=out, preexec_fn=limited) as process:
        try:
            while " at http" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert monotonic() < end, "the server does not start"
                sleep(0.05)
            yield log.read_text().partition(" at ")[2].split()[0].removesuffix("/v1"), process.pid
        finally:
            process.kill()
