"""What strangers' schemas cost the others: gaps between tokens of running streams, quiet and under attack.

    PYTHONPATH=tests python tests/bench/hostile_load.py --streams 4 --attackers 4 --seconds 20

Attackers send generated schemas and bombs without pause. The server is a process of its own, as `edgedec serve` is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import httpx
from hostile import inputs as hostile
from serving import started

from edgedec.bundle.locate import find

BOMBS = [text for kind, text in hostile.CONSTRAINTS.values() if kind == "json_schema" and len(text) < 1 << 19]
LATE = [{"type": "object", "properties": {"a": {"const": "x" * 40}, "b": {"pattern": f"^{hostile.repeated(n)}$"}},
         "required": ["a", "b"]} for n in (50, 100, 300)]  # fmt: skip


def stream(place: str, schema: object, until: float, gaps: list[float]) -> None:
    """Texts one after another; seconds between their pieces."""
    body: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    if schema is not None:
        body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    with httpx.Client(base_url=place, timeout=120) as client:
        while monotonic() < until:
            last = 0.0
            with client.stream("POST", "/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        now = monotonic()
                        gaps += [now - last] if last else []
                        last = now


def attack(place: str, seed: int, until: float, codes: Counter[str]) -> None:
    rng = random.Random(seed)
    with httpx.Client(base_url=place, timeout=120) as client:
        while monotonic() < until:
            some = [hostile.schema(rng), {"type": "string", "pattern": hostile.pattern(rng)}, rng.choice(LATE)]
            schema = json.loads(rng.choice(BOMBS)) if rng.random() < 0.1 else rng.choice(some)
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            body = {"prompt": "Once", "max_tokens": 60, "response_format": form}
            try:
                codes[str(client.post("/v1/completions", json=body).status_code)] += 1
            except httpx.TransportError as error:
                codes[type(error).__name__] += 1


def measured(place: str, streams: int, attackers: int, seconds: float) -> tuple[list[float], list[float], Counter[str]]:
    """Gaps of free streams, of one that follows a schema of practice, and what attackers were answered."""
    until, free, held, codes = monotonic() + seconds, [], [], Counter[str]()
    listed = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 30}

    def threads() -> Iterator[threading.Thread]:
        for _ in range(streams):
            yield threading.Thread(target=stream, args=(place, None, until, free))
        yield threading.Thread(target=stream, args=(place, listed, until, held))
        for seed in range(attackers):
            yield threading.Thread(target=attack, args=(place, seed, until, codes))

    running = list(threads())
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return free, held, codes


def shown(name: str, gaps: list[float]) -> str:
    ordered = sorted(gaps)
    at = [1000 * ordered[min(int(len(ordered) * q), len(ordered) - 1)] for q in (0.5, 0.95, 0.99)]
    mean = 1000 * statistics.mean(gaps)
    return f"{name}: {len(gaps)} gaps, ms: median {at[0]:.2f}, p95 {at[1]:.2f}, p99 {at[2]:.2f}, mean {mean:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--attackers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    slots = str(given.streams + given.attackers + 1)
    with started(Path(find("nano")), "--slots", slots) as (place, process):
        for _ in range(given.rounds):
            for attackers in (0, given.attackers):
                free, held, codes = measured(place, given.streams, attackers, given.seconds)
                load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
                print(f"{attackers} attackers, load {load:.1f}, answers {dict(codes)}")
                print(" ", shown("free", free))
                print(" ", shown("held", held), flush=True)
        assert process.poll() is None


if __name__ == "__main__":
    main()
