"""Other engines at the same contexts and weights as the policies, in the same rounds: each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgedec.bench.llama_weights import LLAMA, write_for_library
from edgedec.bench.timing import BenchWorker, Config
from edgedec.errors import EdgedecError

if TYPE_CHECKING:
    from edgedec.model import Model

# llama.cpp's names of edgedec's cache formats.
FORMATS = {"f32": "f32", "f16": "f16", "int8": "q8_0", "int4": "q4_0"}

# Seconds to read so many tokens, and of a step after them.
Peer = Callable[[int], tuple[float, float]]


@dataclass
class PeerReadings:
    """By name and context, one a round: seconds of reading and of a step. left_out: why one took no part."""

    seconds: dict[str, dict[int, list[tuple[float, float]]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, peers: Mapping[str, Peer], context: int) -> None:
        """A round of each; one that fails is left out from then on."""
        for name, peer in peers.items():
            if name in self.left_out:
                continue
            try:
                found = peer(context)
            except EdgedecError as error:
                self.left_out[name] = str(error)
            else:
                self.seconds.setdefault(name, {}).setdefault(context, []).append(found)

    def report(self, whole: Mapping[int, tuple[list[float], list[float]]]) -> dict[str, Any]:
        """peers.NAME.CONTEXT: its seconds over those of our whole cache (`whole`: of reading, of a step), round by
        round. Above 1 ours is faster."""
        return {
            name: {str(n): _facts(rounds, *whole[n]) for n, rounds in by_context.items() if whole[n][1]}
            for name, by_context in self.seconds.items()
        }


def _facts(rounds: list[tuple[float, float]], prefill: list[float], step: list[float]) -> dict[str, float]:
    facts = {
        "step_ratio": round(median(theirs / ours for (_, theirs), ours in zip(rounds, step, strict=False)), 3),
        "step_ms": round(1e3 * median(seconds for _, seconds in rounds), 3),
    }
    if prefill:
        facts |= {
            "prefill_ratio": round(median(one / ours for (one, _), ours in zip(rounds, prefill, strict=False)), 3),
            "prefill_s": round(median(seconds for seconds, _ in rounds), 3),
        }
    return facts


@contextmanager
def opened_peers(
    model: Model, path: str, threads: int, steps: int, filled: bool
) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """llama.cpp, with the weights as it reads them while it is measured; or no engine, and the reason by name. path:
    of the model's bundle; filled: prompts are filled in, not read."""
    with TemporaryDirectory(prefix="edgedec-") as folder:
        gguf = Path(folder) / "weights.gguf"
        if reason := write_for_library(model.bundle, gguf):
            yield {}, {LLAMA: reason}
        else:
            kv = model.runtime.new_cache(1).kv
            yield {LLAMA: llama_cpp(path, str(gguf), threads, kv, steps, filled)}, {}


def llama_cpp(model: str, gguf: str, threads: int, kv: str, steps: int, filled: bool) -> Peer:
    """llama.cpp on the same weights, with a cache of the same bits: a process for each context. filled: prompts are
    filled in, not read."""

    def measure(context: int) -> tuple[float, float]:
        config = Config("llama.cpp", model, context, steps, threads, FORMATS[kv], gguf)
        with BenchWorker(config) as worker:
            found = worker.request({"do": "filled" if filled else "run"})
        return found.get("prefill_s", nan), found["decode_s"] / steps

    return measure
