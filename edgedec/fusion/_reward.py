"""Rewards of texts by a program of the user's: a line of JSON for each text in, a line with a number for each out."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Sequence

from edgedec.errors import UsageError

Reward = Callable[[Sequence[str]], list[float]]


def command_reward(command: str, timeout: float, where: str) -> Reward:
    """The reward that a command computes; it is started anew for the texts of each token."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{where}: command={command}: {error}") from None
    if not words:
        raise UsageError(f"{where}: command: is empty; name a program")

    def reward(texts: Sequence[str]) -> list[float]:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        try:
            done = subprocess.run(
                words, input=lines, capture_output=True, text=True, encoding="utf-8", timeout=timeout, check=False
            )
        except (OSError, UnicodeError) as error:
            raise UsageError(f"{where}: command {words[0]}: {error}") from None
        except subprocess.TimeoutExpired:
            raise UsageError(f"{where}: command {words[0]}: no answer in {timeout:g} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            raise UsageError(f"{where}: command {words[0]}: exit status {done.returncode} {last:.200}".rstrip())
        return _numbers(done.stdout, len(texts), words[0], where)

    return reward


def _numbers(printed: str, n: int, name: str, where: str) -> list[float]:
    lines = printed.split()
    try:
        found = [float(line) for line in lines]
    except ValueError:
        found = []
    if len(found) != n:
        raise UsageError(f"{where}: command {name}: printed {printed.strip()!r:.60}; need {n} lines, a number on each")
    return found
