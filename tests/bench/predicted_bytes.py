"""Bytes of ten saved texts: predicted as in a store, without prediction, deflated, and by zstd.

    python tests/bench/predicted_bytes.py [MODEL] [TEXT] [TOKENS]

Each text is so many tokens cut from TEXT. Shares of the bytes of the cache; zstd is the program, left out without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np

import edgedec
from edgedec.cache import kv_code
from edgedec.cache.kv_parts import KVParts, fields
from edgedec.cache.store import CHUNK

TEXTS = 10
README = Path(__file__).parents[2] / "README.md"


def main(name: str, text: Path, tokens: int) -> None:
    for kv in ("f32", "f16", "int8"):
        model = edgedec.open(name, kv=kv, engine="native", threads=1, prefix_tokens=0)
        ids = model.tokenizer.encode(text.read_text("utf-8")[: 40 * TEXTS * tokens])
        total = dict.fromkeys(("whole", "predicted", "unpredicted", "deflate", "zstd"), 0)
        for i in range(TEXTS):
            for key, n in sizes(model, ids[i * tokens : (i + 1) * tokens]).items():
                total[key] += n
        shares = ", ".join(f"{key} {n / total['whole']:.3f}" for key, n in total.items() if n and key != "whole")
        print(f"{name} {kv}: {total['whole']} bytes; {shares}", flush=True)


def sizes(model: edgedec.Model, ids: list[int]) -> dict[str, int]:
    session = model.session(speculate="off")
    session.append(ids)
    list(session.tokens(max_tokens=1, ignore_eos=True))
    cache = session._context.cache
    arrays = cache.save()
    raw = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    found = {"whole": len(raw), "predicted": 0, "unpredicted": 0, "deflate": len(zlib.compress(raw, 6))}
    if shutil.which("zstd"):
        packed = subprocess.run(["zstd", "-12", "-c", "-q"], input=raw, capture_output=True, check=True)
        found["zstd"] = len(packed.stdout)
    parts = KVParts.split(model.spec, cache.kind, arrays)
    source, none = kv_code.sources(ids[: parts.length]), np.full(parts.length, -1)
    for b, rows in parts.rows.items():
        for half in rows:
            for field in fields(model.spec, cache.kind, b):
                for at in range(0, parts.length, CHUNK):
                    stop = min(at + CHUNK, parts.length)
                    for key, by in (("predicted", source), ("unpredicted", none)):
                        found[key] += len(kv_code.encode(half[:, :stop], field, at, by[:stop]))
    return found


if __name__ == "__main__":
    name, text, tokens = [*sys.argv[1:], *["nano", str(README), "300"][len(sys.argv) - 1 :]]
    main(name, Path(text), int(tokens))
