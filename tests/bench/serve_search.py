"""Plain streams of a server before and while others search: the gap between two pieces of a stream (median,
and in medians its 99th percentile), the longest, and what the searches got.

    python tests/bench/serve_search.py nano --seconds 30
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from time import monotonic, sleep

sys.path.insert(0, str(Path(__file__).parents[1]))
from hostile.attacks import ask
from hostile.servers import server
from hostile.watch import Watch


def told(what: str, gaps: list[float]) -> None:
    gaps.sort()
    middle, most = gaps[len(gaps) // 2], gaps[-1]
    high = gaps[len(gaps) * 99 // 100]
    each = f"{1e3 * middle:.1f} ms, 99 % {1e3 * high:.1f} ({high / middle:.1f}), longest {1e3 * most:.0f}"
    print(f"{what}: {len(gaps)} gaps, median {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--search", default="beam:width=4")
    parser.add_argument("--searches", type=int, default=8)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    body = {"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0, "search": given.search}
    codes, over = Counter[int](), threading.Event()

    def keep_searching() -> None:
        while not over.is_set():
            codes[ask(watch.place, body, 120)[0]] += 1

    flags = ["-c", "512", "--slots", "64", "--speculate", "off"]
    with tempfile.TemporaryDirectory() as folder, server(given.bundle, flags, 0, Path(folder) / "log") as (place, _):
        watch = Watch(place, given.streams, 400).start()
        sleep(3)
        began = monotonic()
        sleep(given.seconds)
        between = monotonic()
        threads = [threading.Thread(target=keep_searching) for _ in range(given.searches)]
        for thread in threads:
            thread.start()
        sleep(given.seconds)
        over.set()
        ended = monotonic()
        told("alone", [s for at, s in watch.gaps if began <= at < between])
        told(f"beside {given.searches} of {given.search}", [s for at, s in watch.gaps if between + 1 <= at < ended])
        for thread in threads:
            thread.join()
        watch.stop()
    print(f"answers to searches: {dict(codes)}; streams that failed: {Counter(watch.failed)}")


if __name__ == "__main__":
    main()
