"""Programs judged by tests that run in the sandbox: the share of tests that pass."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from edgedec.errors import LimitExceeded, RuntimeUnavailable, UsageError
from edgedec.sandbox import GuestLimits, Sandbox, enabled
from edgedec.search import _tests_guest as guest
from edgedec.search.branch import Branch
from edgedec.search.scoring import Score


def read_tests(file: str) -> list[str]:
    """The tests of a file: a statement of Python in each line that is neither empty nor a comment."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--search tests: file={file}: cannot be read ({error})") from None
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise UsageError(f"--search tests: file={file}: has no tests; one statement a line, as assert f(2) == 4")
    for test in found:
        try:
            compile(test, file, "exec")
        except (SyntaxError, ValueError):
            raise UsageError(f"--search tests: file={file}: {test!r:.60} is no statement of Python") from None
    return found


class ByTests:
    """The share of tests that a program passes; one that fails, or exceeds its limits, passes none."""

    asks = True

    def __init__(self, tests: Sequence[str], seconds: float, whole: bool) -> None:
        """whole: the program is the prompt and the text, not the text alone."""
        if not enabled():
            raise RuntimeUnavailable("--search tests: programs run in the sandbox only, and EDGEDEC_SANDBOX=off")
        self._tests, self._whole, self._seconds = list(tests), whole, seconds
        self._lock = threading.Lock()

    def score(self, prompt: str, text: str, branch: Branch) -> Score:
        program = prompt + text if self._whole else text
        with self._lock:
            worker = _sandbox(self._seconds).worker()
            try:
                reply = worker.call(program=program, tests=self._tests)
            except LimitExceeded as error:
                return Score(0.0, str(error))
            finally:
                worker.close()
        if reply.error:
            return Score(0.0, reply.error)
        return Score(reply.values["passed"] / len(self._tests), reply.values["said"])

    def close(self) -> None:
        pass


@cache
def _sandbox(seconds: float) -> Sandbox:
    return Sandbox(Path(guest.__file__), limits=GuestLimits(seconds=seconds, patience=30 + 10 * seconds))
