"""Many streams at once for minutes against a server of its own: is every text what it is alone, does memory stay flat?

    python tests/bench/serve_load.py --streams 200 --seconds 120 --slots 16

Prints one JSON object: streams ended, texts that differed, tokens a second, times to the first token, and the
server's memory: every 15 seconds, what it grew by in each half, and from when on it was flat. Exits with 1 if a text
differed or was lost. Each stream begins with the longest text, so that every slot's cache has its size from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import httpx

import edgedec
from edgedec.sampling import Sampling

PROMPTS = ["Once upon a time", "Tom and Lily", "One day, a fox", "the the the the", "Sue had a", "It was late"]


@dataclass
class Tally:
    ended: int = 0
    left: int = 0
    wrong: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)


def task(i: int) -> dict[str, Any]:
    """What stream i asks for: one of 48 texts, so that each can be compared with itself alone."""
    i %= 48
    prompt = PROMPTS[i % len(PROMPTS)]
    sampling = {"temperature": 0.8 if i % 2 else 0.0, "seed": i, "top_p": 1.0, "repetition_penalty": 1.0}
    return {"prompt": prompt, "max_tokens": 40 + 3 * i, **sampling}


def alone(model: edgedec.Model) -> tuple[list[str], int]:
    """The 48 texts, and which is the longest."""
    texts, lengths = [], []
    for i in range(48):
        asked = task(i)
        prompt, most = asked.pop("prompt"), asked.pop("max_tokens")
        session = model.session(context=512, speculate="off")
        texts.append("".join(session.generate(prompt, max_tokens=most, sampling=Sampling(**asked))))
        lengths.append(session.stats.generated)
    return texts, lengths.index(max(lengths))


async def stream(ask: httpx.AsyncClient, i: int, expected: str, tally: Tally) -> None:
    began, text, done = time.perf_counter(), "", False
    leaves = i % 17 == 16
    body = {**task(i), "stream": True, "stream_options": {"include_usage": True}}
    async with ask.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            tally.why[str(answer.status_code)] += 1
            return
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                done = done or line == "data: [DONE]"
                continue
            chunk = json.loads(line[6:])
            if chunk["choices"] and not text:
                tally.first.append(time.perf_counter() - began)
            text += "".join(choice["text"] for choice in chunk["choices"])
            if chunk.get("usage"):
                tally.tokens += chunk["usage"]["completion_tokens"]
            if leaves and len(text) > 20:
                tally.left += 1
                return
    tally.ended += 1
    tally.wrong += not done or text != expected


async def load(place: str, pid: int, expected: list[str], longest: int, streams: int, seconds: float) -> Tally:
    numbers = chain(repeat(longest, streams), count())

    async def one(ask: httpx.AsyncClient, tally: Tally) -> None:
        i = next(numbers)
        await stream(ask, i, expected[i % 48], tally)

    return await keep_asking(place, pid, streams, seconds, one)


async def keep_asking(
    place: str, pid: int, streams: int, seconds: float, one: Callable[[httpx.AsyncClient, Tally], Awaitable[None]]
) -> Tally:
    """So many clients that call `one` again and again, and the server's memory each second."""
    tally, end = Tally(), time.monotonic() + seconds

    async def client(ask: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            try:
                await one(ask, tally)
            except httpx.TransportError as error:
                tally.why[type(error).__name__] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            tally.memory.append(resident(pid))
            await asyncio.sleep(1)

    # Shorter than the server keeps a silent connection: else both may let go of it in the same moment.
    limits = httpx.Limits(max_connections=streams, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=place, limits=limits, timeout=300) as ask:
        await asyncio.gather(watch(), *(client(ask) for _ in range(streams)))
    return tally


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def flatness(memory: list[float], within: float = 0.01) -> dict[str, float]:
    """memory: MiB, one a second. `flat_after_s`: from when on it stays so near its last value.

    100 150 198 199 200 200, within 1 % -> grew 98 MiB, then 2 (1 %), flat after 2 s
    """
    middle, last = memory[(len(memory) - 1) // 2], memory[-1]
    off = [i for i, mib in enumerate(memory) if abs(mib - last) > within * last]
    return {
        "first_half_mib": round(middle - memory[0], 1),
        "second_half_mib": round(last - middle, 1),
        "second_half_percent": round(100 * (last - middle) / middle, 2),
        "flat_after_s": off[-1] + 1 if off else 0,
    }


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--model", default="nano")
    ask.add_argument("--streams", type=int, default=200)
    ask.add_argument("--seconds", type=float, default=60)
    ask.add_argument("--slots", type=int, default=16)
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--spec", default="auto")
    ask.add_argument("--replicas", type=int, default=1)
    ask.add_argument("--max-total-tokens", type=int, default=0)
    given = ask.parse_args()
    expected, longest = alone(edgedec.open(given.model, threads=given.threads))
    sizes = f"--slots {given.slots} --queue {given.streams} --max-total-tokens {given.max_total_tokens}"
    options = f"--port 0 -c 512 {sizes} -t {given.threads} --spec {given.spec} --replicas {given.replicas}".split()
    command = [sys.executable, "-m", "edgedec", "serve", "-m", given.model, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stderr is not None
        place = server.stderr.readline().partition(" at ")[2].split()[0].removesuffix("/v1")
        tally = asyncio.run(load(place, server.pid, expected, longest, given.streams, given.seconds))
        time.sleep(0.5)
        health = httpx.get(f"{place}/health").json()
        server.terminate()
    memory = tally.memory
    print(
        json.dumps(
            {
                **vars(given),
                "ended": tally.ended,
                "left": tally.left,
                "wrong": tally.wrong,
                "failed": tally.why,
                "tokens_per_s": round(tally.tokens / given.seconds),
                "first_token_s_median_p99": [round(q, 3) for q in statistics.quantiles(tally.first, n=100)[49:99:49]],
                "memory_mib": [round(mib) for mib in memory[::15]],
                "memory_growth": flatness(memory),
                "after": health,
            }
        )
    )
    return int(bool(tally.wrong or tally.why or health["running"] or health.get("waiting")))


if __name__ == "__main__":
    sys.exit(main())
