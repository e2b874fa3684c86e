"""The most memory of each engine for the same texts, each in a process of its own.

    python tests/bench/encoder_memory.py OUT/bundle onnx:OUT/int8.onnx llama.cpp:OUT/q8_0.gguf --tokens 128 --texts 64

Files as tests/bench/encoder_geometry.py writes them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

from edgedec.bench.embedding import EmbedShape, of_bundle
from edgedec.bench.encoder_peers import of_llama_cpp, of_onnx
from edgedec.bundle import Bundle

VOCABULARY = 30522  # BERT's


def most(engine: str, shape: EmbedShape, threads: int) -> float:
    """MiB of this process after the texts went through."""
    kind, _, place = engine.partition(":")
    if not place:
        run = of_bundle(Bundle.open(engine), "native", threads)[1]
    else:
        run = {"onnx": of_onnx, "llama.cpp": of_llama_cpp}[kind](place, threads)[1]
    run(shape.draw(VOCABULARY))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="of this process")
    given = parser.parse_args()
    if given.one:
        print(f"{most(given.engines[0], EmbedShape(given.texts, given.tokens), given.threads):.0f} MiB")
    else:
        for engine in given.engines:
            own = ["--one", "--tokens", str(given.tokens), "--texts", str(given.texts), "-t", str(given.threads)]
            done = subprocess.run([sys.executable, __file__, engine, *own], capture_output=True, text=True, check=True)
            print(f"{engine}: {done.stdout.strip()}")
