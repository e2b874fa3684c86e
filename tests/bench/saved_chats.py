"""A hundred saved chats on disk: as whole files, in a store, and as texts to be read again.

    python tests/bench/saved_chats.py [MODEL] [TEXT]

Each chat is 400 tokens of instructions that all have, one of five openings of 100 tokens, and 100 tokens of its
own (cut from TEXT, the README by default); the last 20 are generated. Sizes in bytes a chat; milliseconds to save and
to load one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

import edgedec
from edgedec.cache.store import make_store
from edgedec.spec import KV_FORMATS

CHATS, OPENINGS = 100, 5
README = Path(__file__).parents[2] / "README.md"


def main(name: str, text: Path) -> None:
    for kv in KV_FORMATS:
        model = edgedec.open(name, kv=kv, threads=2, prefix_tokens=8192)
        ids = model.tokenizer.encode(text.read_text("utf-8"))
        texts = [chat(ids, i) for i in range(CHATS)]
        with TemporaryDirectory() as folder:
            report(model, kv, texts, Path(folder))


def chat(ids: list[int], i: int) -> list[int]:
    opening, own = 400 + 100 * (i % OPENINGS), (977 * i) % (len(ids) - 80)
    return [*ids[:400], *ids[opening : opening + 100], *ids[own : own + 80]]


def report(model: edgedec.Model, kv: str, texts: list[list[int]], folder: Path) -> None:
    places = {name: folder / name for name in ("whole", "store", "text")}
    for place in places.values():
        place.mkdir()
    make_store(places["store"])
    times: dict[str, list[float]] = {}
    for i, ids in enumerate(texts):
        session = model.session(speculate="off")
        list(session.tokens(ids, max_tokens=20, ignore_eos=True))
        for name, place in places.items():
            began = perf_counter()
            session.save(place / f"{i}", reread=name == "text")
            middle = perf_counter()
            other = model.session(speculate="off")
            other.load(place / f"{i}")
            times.setdefault(f"save {name}", []).append(middle - began)
            times.setdefault(f"load {name}", []).append(perf_counter() - middle)
            mine, saved = other._context.cache.save(), session._context.cache.save()
            assert all(np.array_equal(array, mine[part]) for part, array in saved.items())
    whole = size(places["whole"])
    for name, place in places.items():
        ms = [1e3 * median(times[f"{what} {name}"]) for what in ("save", "load")]
        share = f"{size(place) / whole:.3f} of whole files"
        print(
            f"{kv:5} {name:6} {size(place) // CHATS:9} bytes a chat, {share}; save {ms[0]:.0f} ms, load {ms[1]:.0f} ms"
        )


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nano", Path(sys.argv[2]) if len(sys.argv) > 2 else README)
