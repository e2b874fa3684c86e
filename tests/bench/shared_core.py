"""How fast is a bundle decoded while another process takes a core?

    python tests/bench/shared_core.py BUNDLE [native:2 native:1 ort:2 ...]

Each ENGINE:THREADS generates 64 tokens by turns, alone and then beside a process that spins on the last core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from time import perf_counter

import edgedec

TOKENS, TURNS = 64, 6
SPIN = "import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


def main(bundle: str, *names: str) -> None:
    models = {}
    for name in names or ("native:2", "native:1", "ort:2", "ort:1"):
        engine, threads = name.split(":")
        models[name] = edgedec.open(bundle, engine=engine, threads=int(threads))
    alone = measure(models)
    spinning = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        shared = measure(models)
    finally:
        spinning.kill()
    print(f"{'':12}{'alone':>24}{'beside a busy process':>28}     ms a token, median (min to max)")
    for name in models:
        print(f"{name:12}{show(alone[name]):>24}{show(shared[name]):>28}")


def measure(models: dict[str, edgedec.Model]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(TURNS + 1):
        for name, model in models.items():
            tokens = model.session(context=256).tokens(range(5, 37), max_tokens=TOKENS + 1, ignore_eos=True)
            next(tokens)
            began = perf_counter()
            n = sum(1 for _ in tokens)
            if turn:
                times[name].append((perf_counter() - began) / n * 1e3)
    return times


def show(times: list[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    if len(sys.argv) < 2 or not hasattr(os, "sched_setaffinity"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
