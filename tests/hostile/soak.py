"""Clients that behave and clients that do not, on one server, for as long as it is told.

    python -m tests.hostile --soak SECONDS

Those that behave know the text that they must get: that of a server without others. Workers of grammars and
templates are killed meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from hostile.attacks import ask
from hostile.inputs import repeated, schema
from hostile.watch import PROMPT, connected, memory, request

PROMPTS = (PROMPT, "A dog ran", "The sun was", "Tom and Lily", "In the garden")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
# Descriptors of workers that a server keeps.
_KEPT = 12
# Seconds between two looks at the memory.
_LOOK = 0.5
# What a request that was not served may get: an error of its own.
ERRORS = (429, 503)


def bodies() -> list[dict[str, object]]:
    """The requests of those that behave, each with one right answer."""
    plain = [{"prompt": prompt, "max_tokens": 24, "temperature": 0} for prompt in PROMPTS]
    return [*plain, {"prompt": PROMPT, "max_tokens": 24, "seed": 5}, {**plain[0], "json_schema": SCHEMA}]


def text_of(answer: bytes) -> str:
    try:
        found: str = json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
    except (ValueError, LookupError):
        return ""
    return found


class Soak:
    """`run`: all clients until the time is over; `wrong`: what must not have been; `most`: MiB at a time."""

    def __init__(self, place: str, pid: int, good: int, bad: int) -> None:
        self.place, self.pid, self.over = place, pid, threading.Event()
        self.codes, self.wrong, self.kills, self.most = Counter[int](), Counter[str](), 0, 0
        self.right = [text_of(ask(place, body)[2]) for body in bodies()]
        work = [(self._behave, i) for i in range(good)] + [(self._misbehave, i) for i in range(bad)]
        work += [(self._kill, 0)]
        self._threads = [threading.Thread(target=act, args=(i,), daemon=True) for act, i in work]

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            self.over.wait(min(left, _LOOK))
            self.most = max(self.most, memory(self.pid))
        self.over.set()
        for thread in self._threads:
            thread.join(120)

    def _behave(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.over.is_set():
            i = rng.randrange(len(self.right))
            status, _, answer = ask(self.place, bodies()[i], 120)
            self.codes[status] += 1
            ended = b"too complex to follow" in answer or b"of memory" in answer
            killed = "json_schema" in bodies()[i] and ended
            if status == 200 and text_of(answer) != self.right[i]:
                self.wrong[f"text {i}"] += 1
            elif status not in (200, *ERRORS) and not killed:
                self.wrong[f"{status} {answer[-200:]!r}"] += 1
            self.over.wait(rng.random() * (1.0 if status == 200 else 3.0))

    def _misbehave(self, seed: int) -> None:
        rng = random.Random(1000 + seed)
        while not self.over.is_set():
            with suppress(OSError):
                rng.choice([self._large, self._silent, self._leaves, self._strange, self._many])(rng)
            self.over.wait(rng.random())

    def _large(self, rng: random.Random) -> None:
        ask(self.place, {"prompt": "word " * rng.choice([2000, 200_000, 800_000])}, 60)

    def _silent(self, rng: random.Random) -> None:
        ends = [connected(self.place, 10) for _ in range(8)]
        for end in ends[::2]:
            end.sendall(b"POST /v1/comp")
        self.over.wait(rng.random() * 12)
        for end in ends:
            end.close()

    def _leaves(self, rng: random.Random) -> None:
        pattern = {"pattern": f"^{repeated(300)}$|{rng.random()}"}
        body = rng.choice([{"json_schema": pattern}, {"stream": True, "ignore_eos": True}, {}])
        whole = request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 400, **body})
        with connected(self.place, 10) as end:
            end.sendall(whole[: rng.choice([len(whole), len(whole) - 7])])
            self.over.wait(rng.random())
            if rng.random() < 0.5:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def _strange(self, rng: random.Random) -> None:
        ask(self.place, {"prompt": "Once", "max_tokens": 8, "json_schema": schema(rng)}, 60)

    def _many(self, rng: random.Random) -> None:
        with connected(self.place, 10) as end:
            end.sendall(request("POST", "/v1/completions", {"prompt": PROMPT, "n": 30, "max_tokens": 200}))
            self.over.wait(2 * rng.random())

    def _kill(self, _: int) -> None:
        """Kill a worker of grammars or templates now and then."""
        rng = random.Random(1)
        while not self.over.wait(3.0):
            workers = [pid for host in children(self.pid) for pid in children(host)]
            if workers:
                with suppress(OSError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    self.kills += 1


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def filled(place: str, texts: int, tokens: int) -> list[int]:
    """Fill the caches: ended texts stay in them until others need the room. The statuses of the answers."""
    codes = list[int]()

    def fill(i: int) -> None:
        body = {"prompt": f"{i} birds", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        codes.append(ask(place, body, 120)[0])

    threads = [threading.Thread(target=fill, args=(i,)) for i in range(texts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def soaked(place: str, pid: int, good: int, bad: int, seconds: float) -> dict[str, object]:
    """Warm up for a third of the time, two minutes at most, and fill the caches (of 16 texts of 512 tokens), then
    measure: answers, what was wrong, MiB and descriptors before and after."""
    warm = Soak(place, pid, good, bad)
    warm.run(min(seconds / 3, 120.0))
    sleep(5)
    full = filled(place, 20, 490)
    before = memory(pid), descriptors(pid)
    long = Soak(place, pid, good, bad)
    long.right = warm.right
    began = monotonic()
    long.run(seconds)
    end = monotonic() + 30
    while descriptors(pid) > before[1] + _KEPT and monotonic() < end:
        sleep(1)
    return {
        "seconds": round(monotonic() - began),
        "answers": dict(long.codes),
        "kills": long.kills,
        "filled": full,
        "wrong": dict(warm.wrong + long.wrong),
        "MiB": (before[0], memory(pid)),
        "most MiB": (warm.most, long.most),
        "descriptors": (before[1], descriptors(pid)),
    }
